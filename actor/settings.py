"""Every setting and every limit, each with a number and a unit, from one file and the environment.

A setting is an environment variable ``SEMIF_NAME`` or the key ``name`` of a TOML file; the
environment wins. Unknown names are refused, so that a typo never leaves a limit at its default.
"""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from actor.nats_url import fault_of

__all__ = ["ENVIRONMENT_PREFIX", "Settings", "SettingsError", "load", "shown"]

ENVIRONMENT_PREFIX = "SEMIF_"

_TOKEN = r"^[A-Za-z0-9_-]+\Z"  # noqa: S105 - a NATS subject token, not a secret
_SUBJECT = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\Z"
"""``\\Z``, because ``$`` lets a newline pass, and a newline ends a protocol line."""
_REPLY_PREFIX = r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?"
_SRV_PREFIX = r"^\$?[A-Za-z0-9_-]+(\.\$?[A-Za-z0-9_-]+)*\Z"
_SURROGATE = re.compile("[\ud800-\udfff]")
"""What the bytes of a variable become that are not UTF-8; msgspec fails on them."""

Count = Annotated[int, Meta(ge=1, le=2**53)]
"""Up to where every JSON reader keeps integers exact."""
Text = Annotated[str, Meta(min_length=1)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class SettingsError(Exception):
    """The settings cannot be used; the text says which one, and why."""


def _default_instance() -> str:
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname()) or "host"
    return f"{host}-{os.getpid()}"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an actor needs to know before it starts."""

    nats_url: Text = "nats://127.0.0.1:4222"
    """Servers to connect to, separated by commas."""
    nats_creds: Path | None = None
    """File with a user JWT and its seed (``.creds``)."""
    nats_nkey_file: Path | None = None
    """File with an nkey seed."""
    nats_user: Text | None = None
    """User name."""
    nats_password_file: Path | None = None
    """File whose text, less a final newline, is the password of ``nats_user``."""
    nats_token_file: Path | None = None
    """File whose text, less a final newline, is the server's token."""
    nats_tls_ca: Path | None = None
    """PEM file of the certificate authorities to trust; the system's without it."""
    nats_tls_cert: Path | None = None
    """PEM file of the client certificate."""
    nats_tls_key: Path | None = None
    """PEM file of the client certificate's key."""
    nats_tls_required: bool = False
    """Handshake before the server says a word (its ``handshake_first``); plaintext is refused."""
    nats_inbox_prefix: Annotated[str, Meta(pattern=_SUBJECT)] | None = None
    """Where replies to this program's own requests come. Default: ``_INBOX``, as everybody's."""
    subject_prefix: Annotated[str, Meta(pattern=_SUBJECT)] = "semif.v1"
    """Leading tokens of every subject."""
    queue_group: Annotated[str, Meta(pattern=rf"\A\Z|{_SUBJECT}")] = "semif"
    """Queue group of the request subjects: actors of one group share the requests.

    Empty: no group, and every actor answers each request.
    """
    srv_prefix: Annotated[str, Meta(pattern=_SRV_PREFIX)] = "$SRV"
    """Leading tokens of the discovery subjects (NATS services protocol, ADR-32)."""
    reply_prefixes: Annotated[
        str, Meta(pattern=rf"^{_REPLY_PREFIX}(,{_REPLY_PREFIX})*\Z", max_length=1024)
    ] = "_INBOX.,_INBOX_,_R_.,_GR_."
    """What a reply subject may start with, separated by commas; others are not answered.

    ``_R_.`` and ``_GR_.`` are the server's own, for callers of other accounts and clusters: it
    lets no client use them.
    """
    instance: Annotated[str, Meta(pattern=_TOKEN, max_length=128)] = msgspec.field(
        default_factory=_default_instance
    )
    """Name of this actor, unique on the bus. Default: host name and process id."""

    model: Path | None = None
    """Directory made by ``semif-actor model import``. Required to run."""
    revision: str | None = None
    """Revision the manifest in ``model`` must have. Default: the one it has."""
    device: Annotated[str, Meta(pattern=r"^(cpu|cuda|cuda:[0-9]+)\Z")] = "cuda"
    """Device of the model: ``cpu``, ``cuda`` (the first card) or ``cuda:N``. Never another."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Number format of the weights on the device."""
    vram_cap_gib: Annotated[float, Meta(gt=0, le=65_536)] | None = None
    """CUDA memory this process may take, in GiB. Default: the whole card."""
    max_tokens: Annotated[int, Meta(ge=128, le=1_048_576)] = 4096
    """Longest prompt in tokens; longer ones are refused, never truncated."""
    scorer: Literal["fast", "reference"] = "fast"
    """``fast`` scores many requests together; ``reference`` is SemIf's own code, one by one."""
    prefix_cache_mib: Annotated[int, Meta(ge=0, le=1_048_576)] = 512
    """Device memory for what the model computed of states, kept for later requests, in MiB."""
    batch_tokens_max: Count = 8192
    """Most tokens in one forward pass: those computed (``fast``), or rows, each as long as the
    longest of them (``reference``).
    """
    batch_rows_max: Count = 64
    """Most prompts in one call of the scorer."""

    request_bytes_max: Count = 1_048_576
    """Largest request body in bytes."""
    request_depth_max: Annotated[int, Meta(ge=1, le=200)] = 64
    """Deepest nesting of a state. json, which SemIf uses, recurses: keep it far below 1,000."""
    request_decisions_max: Count = 256
    """Most decisions in one ``score_shared`` request."""
    queue_jobs_max: Count = 256
    """Most requests accepted and not yet answered."""
    queue_bytes_max: Count = 67_108_864
    """Most bytes of request bodies accepted and not yet answered."""
    queue_tokens_max: Count = 1_048_576
    """Most prompt tokens to compute of requests accepted and not yet answered."""
    timeout_ms_default: Count = 30_000
    """Milliseconds a request may take when its caller sets no ``Semif-Timeout-Ms``."""
    timeout_ms_max: Count = 600_000
    """Largest ``Semif-Timeout-Ms`` accepted, in milliseconds."""

    jobs: bool = False
    """Take requests from the stream of jobs too."""
    jobs_stream: Annotated[str, Meta(pattern=_TOKEN, max_length=128)] = "SEMIF_JOBS"
    """Stream of the jobs, a work queue."""
    results_stream: Annotated[str, Meta(pattern=_TOKEN, max_length=128)] = "SEMIF_RESULTS"
    """Stream of the jobs' results."""
    dead_stream: Annotated[str, Meta(pattern=_TOKEN, max_length=128)] = "SEMIF_DEAD"
    """Stream of the dead letters, of jobs and of rules."""
    jobs_durable: Annotated[str, Meta(pattern=_TOKEN, max_length=128)] = "semif"
    """Durable consumer of the jobs, which all actors share."""
    ack_wait_s: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    """Seconds after which a message that nobody works on is delivered again."""
    deliveries_max: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Deliveries of one message; one that still failed becomes a dead letter."""
    dedup_s: Annotated[float, Meta(ge=1, le=86_400)] = 120.0
    """Seconds in which a result is never stored twice; above any redelivery's delay."""
    rules: Path | None = None
    """TOML file of rules: events to decide, and where the decisions go."""

    heartbeat_s: Annotated[float, Meta(ge=0.1, le=3600)] = 5.0
    """Seconds between heartbeats."""
    canary_s: Seconds = 60.0
    """Seconds after which the known decision is asked again, idle or busy."""
    drain_s: Seconds = 30.0
    """Seconds that a stop waits for work in flight."""
    bus_lost_s: Seconds = 60.0
    """Seconds without a connection after which the process ends."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log line written."""
    log_format: Literal["json", "console"] = "json"
    """``json``: one object a line. ``console``: for people."""


FIELDS = tuple(field.name for field in msgspec.structs.fields(Settings))
FILE_SETTINGS = tuple(
    name
    for name in FIELDS
    if name.startswith("nats_") and name.endswith(("_creds", "_file", "_ca", "_cert", "_key"))
)


def load(
    config: Path | None = None, environment: Mapping[str, str] = os.environ
) -> tuple[Settings, dict[str, str]]:
    """Give the settings, and for each name where its value came from.

    Raises :class:`SettingsError` for unreadable files, unknown names and values out of bounds.
    """
    values: dict[str, Any] = {}
    sources = dict.fromkeys(FIELDS, "default")
    if config is not None:
        for name, value in _read_file(config).items():
            values[name] = value
            sources[name] = str(config)
    for variable, value in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX):
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            if name not in FIELDS:
                raise SettingsError(f"{variable} is not a setting.")
            if _SURROGATE.search(value):
                raise SettingsError(f"{name}: {variable} is not UTF-8.")
            values[name] = value
            sources[name] = variable
    try:
        settings = msgspec.convert(values, Settings, strict=False, dec_hook=_decode_path)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{error}") from None
    if fault := fault_of(settings.nats_url):
        raise SettingsError(f"nats_url: {fault}")
    _check_together(settings)
    return settings, sources


def _decode_path(kind: type, value: Any) -> Any:
    """Let msgspec make a path of a string, unless no file can have that name."""
    if kind is Path and isinstance(value, str) and value and "\0" not in value:
        return Path(value)
    raise ValueError("Expected a path")


def _read_file(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        # ValueError is tomllib's and the codec's, and int()'s for thousands of digits.
        raise SettingsError(f"{config}: {error}") from None


def _check_together(settings: Settings) -> None:
    if settings.vram_cap_gib is not None and settings.device == "cpu":
        raise SettingsError("vram_cap_gib has no effect on cpu; unset it or ask for cuda.")
    if settings.max_tokens > settings.batch_tokens_max:
        raise SettingsError(
            f"batch_tokens_max is {settings.batch_tokens_max}: "
            f"no room for one prompt of max_tokens, {settings.max_tokens}."
        )
    if settings.timeout_ms_default > settings.timeout_ms_max:
        raise SettingsError(
            f"timeout_ms_default, {settings.timeout_ms_default}, is over "
            f"timeout_ms_max, {settings.timeout_ms_max}."
        )
    if settings.jobs or settings.rules:
        _check_streams(settings)
    for name in FILE_SETTINGS:
        path = getattr(settings, name)
        if path is not None and (not os.access(path, os.R_OK) or path.is_dir()):
            raise SettingsError(f"{name}: {path} cannot be read.")
    _check_reply_prefixes(settings)
    if (settings.nats_tls_cert is None) != (settings.nats_tls_key is None):
        raise SettingsError("nats_tls_cert and nats_tls_key go together.")
    if (settings.nats_user is None) != (settings.nats_password_file is None):
        raise SettingsError("nats_user and nats_password_file go together.")


def _check_streams(settings: Settings) -> None:
    # An actor dies between result and acknowledgement, and so does the next: after two waits and
    # the time of an answer the result comes once more, and must still be known.
    horizon_s = 2 * settings.ack_wait_s + settings.timeout_ms_default / 1000
    if settings.dedup_s < horizon_s:
        raise SettingsError(
            f"dedup_s, {settings.dedup_s:g}, is below {horizon_s:g}, the seconds until a "
            "redelivery's result: twice ack_wait_s, and timeout_ms_default."
        )
    names = (settings.jobs_stream, settings.results_stream, settings.dead_stream)
    if len(set(names)) < len(names):
        raise SettingsError("jobs_stream, results_stream and dead_stream must differ.")


def _check_reply_prefixes(settings: Settings) -> None:
    """Refuse a prefix that lets a caller make us publish to a subject of our own.

    And a choice without our own inbox: the start asks, and waits for our own answer.
    """
    prefixes = settings.reply_prefixes.split(",")
    for prefix in prefixes:
        for own in (f"{settings.subject_prefix}.", f"{settings.srv_prefix}."):
            if prefix.startswith(own) or own.startswith(prefix):
                raise SettingsError(
                    f"reply_prefixes: {prefix} would let replies go to {own}>, our own subjects."
                )
    inbox = f"{settings.nats_inbox_prefix or '_INBOX'}."
    if not inbox.startswith(tuple(prefixes)):
        raise SettingsError(f"reply_prefixes: {inbox}, our own inbox, is not among them.")


def shown(name: str, value: object) -> str:
    """Give ``value`` for people, without the password or token that a URL may hold."""
    text = "" if value is None else str(value)
    if name != "nats_url":
        return text
    # Only a comma before a scheme parts two servers here: any other may be in a password that
    # somebody forgot to percent-encode.
    return ",".join(map(_without_secret, re.split(r",(?=\s*[A-Za-z]+://)", text)))


def _without_secret(server: str) -> str:
    user_info, at, host = server.rpartition("@")
    if not at:
        return server
    scheme = re.match(r"(\s*[A-Za-z]+://)?", user_info)
    start = scheme[0] if scheme else ""
    user, colon, _ = user_info.removeprefix(start).partition(":")
    is_user = colon and not set(user) & set("@,/")
    return f"{start}{user + colon if is_user else ''}***@{host}"
