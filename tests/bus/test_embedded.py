"""The server of the demo and the tests: loopback only, a free port, gone afterwards."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path

import psutil
import pytest

from actor.bus.embedded import ServerFailed, embedded_server, find_binary


def test_it_listens_on_loopback_alone(tmp_path: Path) -> None:
    """Every socket it listens on is bound to 127.0.0.1, and its version is the package's."""
    with embedded_server(tmp_path) as server:
        sockets = psutil.Process(server.process.pid).net_connections(kind="inet")
        with urllib.request.urlopen(f"{server.monitor_url}/varz") as answer:  # noqa: S310 - loopback
            version = json.load(answer)["version"]

    listening = {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}
    done = subprocess.run([find_binary(), "--version"], capture_output=True, text=True, check=True)
    assert version in done.stdout


def test_it_is_gone_after_the_block(tmp_path: Path) -> None:
    """An exception in the block leaves no server behind."""

    def use_and_fail() -> None:
        with embedded_server(tmp_path) as server:
            processes.append(server.process)
            raise KeyError

    processes: list[subprocess.Popen[bytes]] = []
    with pytest.raises(KeyError):
        use_and_fail()

    assert processes[0].returncode is not None


def test_a_configuration_cannot_open_it_to_the_network(tmp_path: Path) -> None:
    """An address in the file does not win: there is no server without authentication outside."""
    config = tmp_path / "nats.conf"
    config.write_text('host: "0.0.0.0"', encoding="utf-8")

    with embedded_server(tmp_path, config=config) as server:
        sockets = psutil.Process(server.process.pid).net_connections(kind="inet")

    assert {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


def test_a_bad_configuration_is_explained(tmp_path: Path) -> None:
    """A server that does not start is an error with the server's own words."""
    config = tmp_path / "nats.conf"
    config.write_text("nonsense: {", encoding="utf-8")

    with (
        pytest.raises(ServerFailed, match="Parse error on line 1"),
        embedded_server(tmp_path, config=config),
    ):
        pass


def test_a_port_that_is_taken_is_explained(tmp_path: Path) -> None:
    """What goes wrong after the configuration was read is in the log, and told as well."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()

    with embedded_server(first) as running:
        port = int(running.url.rpartition(":")[2])
        with (
            pytest.raises(ServerFailed, match="address already in use"),
            embedded_server(second, port=port),
        ):
            pass
