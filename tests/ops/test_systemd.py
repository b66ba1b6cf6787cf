"""The unit file: systemd has nothing to say against it, and it restarts what it should."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from actor.bus.connection import CLOSE_TIMEOUT_S
from actor.service import GPU_STOP_S, Exit
from actor.serving import LAST_REPLIES_S
from actor.settings import Settings

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "ops" / "semif-actor.service"
README = ROOT / "ops" / "README.md"

EXPOSURE_MAX = 2.0
"""systemd's score, 0 to 10. systemd 252 gives 1.7; other versions weigh a little differently."""

RESTARTED = {0: False, 1: True, 2: False, 3: True, 4: True, 5: True, 6: True}
"""Section 5 of the design, and 1, with which Python ends on an exception."""

BREAKS_CUDA = {
    "MemoryDenyWriteExecute": {"", "no"},
    "PrivateDevices": {"", "no"},
    "ProcSubset": {"", "all"},
}
"""Settings that hide from CUDA what it needs, and the values that do not."""


def directives(section: str) -> dict[str, list[str]]:
    """Give the values of each directive of one section of the unit, in order."""
    found: dict[str, list[str]] = {}
    current = ""
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif line and not line.startswith("#") and current == section:
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


SERVICE = directives("Service")


def installed(tmp_path: Path, change: Callable[[str], str] = str) -> Path:
    """Write the unit as a host would have it: its program exists."""
    program = shutil.which("true")
    assert program
    text, count = re.subn(
        r"^ExecStart=\S+",
        f"ExecStart={program}",
        UNIT.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    assert count == 1
    copy = tmp_path / UNIT.name
    copy.write_text(change(text), encoding="utf-8")
    return copy


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``systemd-analyze``, which the test needs; a machine without it is not checked."""
    program = shutil.which("systemd-analyze")
    assert program, "systemd-analyze is missing: install the package `systemd`"
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_systemd_accepts_the_unit_in_silence(tmp_path: Path) -> None:
    """No unknown key, no bad value, no missing program: not even a warning."""
    result = analyze("verify", "--man=no", str(installed(tmp_path)))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("Restart=on-failure", "Restart=on-failures"),
        ("NoNewPrivileges=yes", "NoNewPrivilege=yes"),
        ("SystemCallFilter=@system-service", "SystemCallFilter=@system-servic"),
    ],
)
def test_a_mistake_in_the_unit_is_noticed(tmp_path: Path, good: str, bad: str) -> None:
    """The silence above means something: each kind of slip breaks it."""
    copy = installed(tmp_path, lambda text: text.replace(good, bad))
    assert bad in copy.read_text(encoding="utf-8")
    result = analyze("verify", "--man=no", str(copy))
    assert result.stdout + result.stderr


def test_exposure_stays_low(tmp_path: Path) -> None:
    """The review by systemd finds no more exposed than CUDA and the network need."""
    threshold = f"--threshold={EXPOSURE_MAX * 10:.0f}"  # systemd counts it in tenths
    copy = str(installed(tmp_path))
    result = analyze("security", "--offline=yes", "--no-pager", threshold, copy)
    print(result.stdout.splitlines()[-1])  # noqa: T201 - the score, for whoever changes the unit
    assert result.returncode == 0, result.stdout
    # Zero is below any score: the threshold is one that this systemd honours.
    assert analyze("security", "--offline=yes", "--no-pager", "--threshold=0", copy).returncode


@pytest.mark.parametrize(("code", "restarted"), RESTARTED.items())
def test_restarts_on_all_but_a_clean_end_and_bad_settings(code: int, *, restarted: bool) -> None:
    """``on-failure`` restarts on every code but 0, and on signals; the list takes 2 out."""
    assert SERVICE["Restart"] == ["on-failure"]
    for changes in ("SuccessExitStatus", "RestartForceExitStatus"):
        assert changes not in SERVICE
    [prevented] = SERVICE["RestartPreventExitStatus"]
    assert prevented.split() == ["2"]
    assert (code != 0 and str(code) not in prevented.split()) is restarted


def test_never_stops_restarting() -> None:
    """A bus that is away for an hour does not leave the actor down for good."""
    assert directives("Unit")["StartLimitIntervalSec"] == ["0"]
    [pause_s] = SERVICE["RestartSec"]
    assert int(pause_s) >= 1


def test_a_drain_ends_before_systemd_kills() -> None:
    """SIGTERM reaches the actor, and every bounded step of its end fits before SIGKILL."""
    assert SERVICE["KillSignal"] == ["SIGTERM"]
    assert SERVICE["KillMode"] == ["mixed"]
    [stop_s] = SERVICE["TimeoutStopSec"]
    ending_s = Settings().drain_s + LAST_REPLIES_S + CLOSE_TIMEOUT_S + GPU_STOP_S
    assert int(stop_s) > ending_s


@pytest.mark.parametrize(("name", "harmless"), BREAKS_CUDA.items())
def test_nothing_that_breaks_cuda_is_on(name: str, harmless: set[str]) -> None:
    """Hardening that forbids what CUDA does stays off."""
    assert set(SERVICE.get(name, [""])) <= harmless


def test_the_card_can_be_reached() -> None:
    """Devices are closed but for NVIDIA's, whose module is loaded before the list is read."""
    assert SERVICE["DevicePolicy"] == ["closed"]
    assert SERVICE["DeviceAllow"] == ["char-nvidia* rw"]
    unit = directives("Unit")
    for order in ("Wants", "After"):
        assert "modprobe@nvidia_uvm.service" in unit[order][0].split()


def test_a_missing_secret_does_not_stop_the_start() -> None:
    """Sources are names in the credential store, which may be missing; paths may not."""
    sources = [value.partition(":")[2] for value in SERVICE["LoadCredential"]]
    assert sources
    assert not [source for source in sources if "/" in source]


def test_secrets_named_in_the_example_are_loaded_by_the_unit() -> None:
    """What actor.env.example reads under the unit's credentials is there to be read."""
    example = (ROOT / "ops" / "actor.env.example").read_text(encoding="utf-8")
    named = set(re.findall(r"/run/credentials/semif-actor\.service/(\S+)", example))
    assert named == {value.partition(":")[0] for value in SERVICE["LoadCredential"]}


def test_every_exit_code_is_explained() -> None:
    """The table for three in the morning has a row for each code, and agrees with the unit."""
    rows = re.findall(r"^\| (\d) \| .*$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(map(int, rows)) == sorted(RESTARTED)
    assert {int(code) for code in Exit} <= RESTARTED.keys()
