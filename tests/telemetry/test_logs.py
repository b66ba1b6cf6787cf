"""Log lines that a machine can read."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

FOREIGN = {"from a library", "library failed"}
SCRIPT = """
import logging, warnings
import structlog
from actor.settings import Settings
from actor.telemetry import logs
logs.set_up(Settings(log_level={level!r}, log_format={format!r}))
log = structlog.get_logger()
log.debug("fine"); log.info("ready", proof="abc"); log.warning("hm")
try:
    raise KeyError("gone")
except KeyError:
    log.exception("failed")
logging.getLogger("library").info("chatter")
logging.getLogger("library").warning("from a library")
warnings.warn("old name", FutureWarning)
def work():
    payload = "pay" + "load"
    return payload / 0
try:
    work()
except TypeError:
    logging.getLogger("library").exception("library failed")
"""


def lines_of(level: str, form: str = "json") -> list[str]:
    """Give what a process logs, which is on standard error alone."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(level=level, format=form)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_json_lines_are_one_object_each() -> None:
    """Also a traceback, and what a library logs; deprecations are kept out."""
    records = [json.loads(line) for line in lines_of("info")]

    assert [r["event"] for r in records] == [
        *("ready", "hm", "failed", "from a library", "library failed")
    ]
    assert records[0]["proof"] == "abc"
    assert records[2]["exception"].startswith("KeyError\n  __main__:")
    assert records[4]["exception"].startswith("TypeError\n  __main__:")
    assert all(r["timestamp"].endswith("Z") and r["level"] for r in records)


@pytest.mark.parametrize(
    ("level", "events"),
    [("debug", {"fine", "ready", "hm", "failed"}), ("error", {"failed"})],
)
def test_the_level_filters(level: str, events: set[str]) -> None:
    """What is less severe than the level is not written."""
    found = {json.loads(line)["event"] for line in lines_of(level)} - FOREIGN

    assert found == events


def test_console_lines_are_for_people() -> None:
    """No JSON: an event and its facts in columns."""
    assert any("ready" in line and "proof=abc" in line for line in lines_of("info", "console"))


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_shows_no_text_and_no_local_variable(form: str) -> None:
    """They may hold payloads; the name of a frame and its line number do not."""
    text = "\n".join(lines_of("info", form))

    assert re.search(r"__main__:\d+ work", text)
    assert "payload" not in text
    assert "gone" not in text
