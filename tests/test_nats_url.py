"""NATS URLs: nats-py takes all that are let through, as they were meant; nothing secret is told."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.client import Client

from actor.bus.credentials import servers
from actor.nats_url import fault_of
from actor.settings import Settings

SCHEMES = ["nats://", "tls://", ""]
PIECES = [
    *"natsw:/@.,[]?#%-_019 \n\t\u2100",
    "[::1]",
    "1.2.3.4",
    "http://",
    "ws://",
    "wss://",
    *SCHEMES,
]

labels = st.from_regex(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,20}[A-Za-z0-9_])?", fullmatch=True)
names = st.lists(labels, min_size=1, max_size=4).map(".".join).filter(lambda n: n.lower() != "none")
hosts = st.one_of(
    names, st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(lambda ip: f"[{ip}]")
)
secrets = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=",/?#[]:@"))
user_infos = st.one_of(
    st.just(("", None, None)),
    secrets.map(lambda token: (f"{token}@", token, None)),
    st.tuples(secrets, secrets).map(lambda both: (f"{both[0]}:{both[1]}@", *both)),
)
ports = st.one_of(st.none(), st.integers(1, 65535))
parts = st.tuples(user_infos, hosts, ports)


def taken_by_nats(urls: str) -> list[tuple[str | None, str | None, str, int | None]]:
    """Give user, password, host and port of each server, as nats-py finds them."""
    client = Client()
    client._setup_server_pool(servers(Settings(nats_url=urls)))
    return [
        (s.uri.username, s.uri.password, s.uri.hostname, s.uri.port) for s in client._server_pool
    ]


@given(listed=st.lists(parts, min_size=1, max_size=3), data=st.data())
def test_a_list_of_servers_is_taken_as_it_was_meant(
    listed: list[tuple[tuple[str, str | None, str | None], str, int | None]], data: st.DataObject
) -> None:
    """User, password or token, host, port: nats-py finds what was put together here."""
    urls, meant = [], []
    for (user_info, user, password), host, port in listed:
        scheme = data.draw(st.sampled_from(SCHEMES))
        urls.append(f"{scheme}{user_info}{host}" + (f":{port}" if port else ""))
        meant.append((user, password, host.strip("[]").lower(), port or 4222))
    text = data.draw(st.sampled_from([",", ", ", " ,"])).join(urls)

    assert fault_of(text) is None
    assert taken_by_nats(text) == meant


@given(text=st.one_of(st.lists(st.sampled_from(PIECES)).map("".join), st.text(st.characters())))
@example("nats:nats://a")
@example("ws://a/nats://b")
@example("a" * 64)
@example("nats://none")
@example("[::1]x:1")
@example("nats://a\u2100b@c")
def test_nats_py_takes_whatever_is_let_through(text: str) -> None:
    """No text passes on which its own parser fails, or after which it looks for no host."""
    if fault_of(text) is not None:
        return

    for _, _, host, port in taken_by_nats(text):
        assert host.encode("idna")
        assert port is None or 0 < port < 65536


@pytest.mark.parametrize(
    "url",
    [
        *("nats://u:sekret@a:b:c", ",", "  ", "nats://", "http://x", "nats://a:99999", "a:99999"),
        *(
            "",
            "a,",
            ",a",
            "nats://a,,tls://b",
            "a:0",
            "a:-1",
            "a:+1",
            "a: 1",
            "a:\u0661",
            "a:123456",
        ),
        *(
            "NATS://a",
            "xnats://a",
            "nats:/a",
            "nats//a",
            "//a",
            "nats://nats://a",
            "http://u:p@x:1",
        ),
        *("none", "None:1", "a b", "a..b", ".", "a" * 64, "nats://u:p@", "a%20b", "\u2100.com"),
        *("::1", "2001:db8::1", "[::1", "::1]", "[zz]", "[v1.x]", "[1.2.3.4]", "[::1]x", "x[::1]"),
        *("nats://u:se/cret@a", "nats://u:12/w@a:1", "ws://u:12/w@a:1", "nats://u:se?c@a"),
        *("nats://u:se#c@a", "nats://u:s[c@a", "nats://u:s]c@a", "nats://u:se,cret@a"),
        *("nats://a:1/path", "a/:1", "nats://a?x=1", "nats://a#x", "ws://a#x"),
        *("nats://a\nb", "nats://a\tb", "nats://u:p\nq@a", "nats://u:p\x00q@a", "nats://\udcff"),
        *("ws://a,nats://b", "ws://a", "wss://u:p@a:443/path?x=1", "ws://a,wss://b"),
    ],
    ids=repr,
)
def test_what_cannot_work_is_refused(url: str) -> None:
    """What nats-py refuses, what it takes for another host, and what it would silently drop."""
    assert fault_of(url) is not None


@pytest.mark.parametrize(
    "url",
    [
        *("a", "a:1", "token@a", "u:p@a:1", "nats://u:p@a", "tls://a:4443", "[::1]", "[::1]:4222"),
        *("nats://u:p@[::1]:1", "[fe80::1%eth0]:1"),
        *("a:1/", "nats://a:", "a.", "a_b", "m\u00fcnchen", "1.2.3.4", " a , tls://b "),
        *("nats://u:p@ss@a:1", "nats://u:p:q@a", "nats://u:p q@a", "nats://:@a"),
    ],
)
def test_what_nats_py_can_use_is_taken(url: str) -> None:
    """Every scheme, none, credentials and addresses of every kind, lists, odd passwords."""
    assert fault_of(url) is None
    taken_by_nats(url)


@given(
    before=st.text("@:/,#?%[] .a\n", max_size=6),
    after=st.text("@:/,#?%[] .a\n", max_size=6),
    scheme=st.sampled_from([*SCHEMES, "ws://", "http://", "NATS://"]),
)
def test_no_fault_tells_a_secret(before: str, after: str, scheme: str) -> None:
    """Wherever it stands in whatever broken URL."""
    fault = fault_of(f"{scheme}SECRETUSER:{before}SECRET{after}@SECRETHOST:4222:x")

    assert fault is not None
    assert "SECRET" not in fault


def test_the_server_at_fault_is_counted_out() -> None:
    """In a list, a person looks at the right one."""
    fault = fault_of("nats://a:1, tls://b:2, c:d")

    assert fault is not None
    assert fault.startswith("server 3 of 3 ")
