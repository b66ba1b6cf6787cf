"""Jobs end exactly once, whatever is killed when: the short form of what ``make soak`` runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from harness.exactly_once import FAULTS, Report, run


async def test_each_job_has_one_end(tmp_path: Path) -> None:
    """An actor and the server killed, the connections cut: one result or one dead letter each."""
    report = await run(jobs=200, seed=7, faults=3, folder=tmp_path)

    assert report.good, str(report)
    assert report.faults == Counter(FAULTS)
    assert len(report.ends) == 200


@pytest.mark.parametrize(
    "spoil",
    [
        lambda report: report.ends.pop("1"),
        lambda report: report.ends["1"].update(["results"]),
        lambda report: report.ends["1"].update(["dead"]),
        lambda report: report.ends.update({"1": Counter(["dead"])}),
        lambda report: setattr(report, "deaths", 1),
        lambda report: setattr(report, "left", 1),
    ],
    ids=["lost", "doubled", "both", "wrong", "died", "left"],
)
def test_the_count_sees_what_is_wrong(spoil: object) -> None:
    """One job lost, doubled or ended otherwise is enough for a failure."""
    report = Report(jobs=9, seed=0)
    report.ends = {str(number): Counter(["results"]) for number in range(9)}
    assert report.good

    spoil(report)  # type: ignore[operator]

    assert not report.good
