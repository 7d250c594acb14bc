"""The plan of the whole protocol: the queue against schedules found by hand, and the paper's numbers of runs."""

import pytest

from benchmarks.plan import EPOCHS, cells, kind, makespan, plan


@pytest.mark.parametrize(
    ("seconds", "cores", "expected"),
    [([3, 3, 2, 2, 2], 1, 12), ([3, 3, 2, 2, 2], 2, 7), ([5, 1, 1], 2, 5), ([4, 2], 1000, 4), ([], 3, 0)],
)
def test_the_queue(seconds, cores, expected):
    assert makespan(seconds, cores) == expected


def test_all_runs_of_the_paper_are_planned():
    rows = [{"task": task, "model": model, "seconds_per_epoch": 3600} for task, model in cells()]
    assert len(rows) == 42
    planned = {row["experiment"]: row for row in plan(rows)}
    assert {name: row["runs"] for name, row in planned.items()} == {"cfl": 300, "ptb": 60, "mt": 45, "all": 405}
    assert planned["ptb"]["core_hours"] == 60 * EPOCHS["ptb"]
    assert planned["ptb"]["hours"]["2"] == 30 * EPOCHS["ptb"]
    assert planned["ptb"]["hours"]["1000"] == EPOCHS["ptb"]
    assert {kind(task) for task, _ in cells()} == {"cfl", "ptb", "mt"}
