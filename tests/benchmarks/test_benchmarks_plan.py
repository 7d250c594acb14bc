"""Planning the paper's protocol: the queue, compared with schedules worked out by hand, and the number of runs."""

import json

import pytest

import benchmarks.plan as plan_module
from benchmarks import compare
from benchmarks.plan import EPOCHS, cells, finished_epochs, kind, main, makespan, plan, with_epochs


@pytest.mark.parametrize(
    ("seconds", "cores", "expected"),
    [([3, 3, 2, 2, 2], 1, 12), ([3, 3, 2, 2, 2], 2, 7), ([1, 1, 5], 2, 6), ([4, 2], 1000, 4), ([], 3, 0)],
)
def test_the_queue(seconds, cores, expected):
    assert makespan(seconds, cores) == expected


def test_all_runs_of_the_paper_are_planned():
    rows = [{"task": task, "model": model, "seconds_per_epoch": 3600} for task, model in cells()]
    assert len(rows) == 42
    planned = {row["experiment"]: row for row in plan(with_epochs(rows, {}))}
    assert {name: row["runs"] for name, row in planned.items()} == {"cfl": 300, "ptb": 60, "mt": 45, "all": 405}
    assert planned["ptb"]["core_hours"] == 60 * EPOCHS["ptb"]
    assert planned["ptb"]["hours"]["2"] == 30 * EPOCHS["ptb"]
    assert planned["ptb"]["hours"]["1000"] == EPOCHS["ptb"]
    assert {kind(task) for task, _ in cells()} == {"cfl", "ptb", "mt"}


def test_runs_are_queued_as_reproduce_trains_them():
    """Restarts alternate between a cell of one hour and a cell of ten hours, ten times each, on ten cores.

    Five runs of each cell start at hour 0, three short and two long ones at 1, two long ones and a short one at 2, the
    last short one at 3 and the last long one at 4.
    """
    cell = {"task": "dyck", "epochs": 1}
    rows = [{**cell, "model": "Tf", "seconds_per_epoch": 3600}, {**cell, "model": "Tf+Nd", "seconds_per_epoch": 36000}]
    cfl = plan(rows, cores=[10])[0]
    assert (cfl["runs"], cfl["hours"]["10"]) == (20, 14)


def write_run(folder, epochs, finished=True):
    folder.mkdir(parents=True)
    figures = dict.fromkeys(["examples", "train_loss", "score", "learning_rate", "seconds"], 1)
    lines = [json.dumps({"evaluation": i, "epoch": i, **figures}) for i in range(1, epochs + 1)]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if finished:
        result = {"stopped": "max_epochs", "evaluations": epochs, "best": None, "seconds": 1}
        (folder / "result.json").write_text(json.dumps(result))


def test_epochs_come_from_finished_runs(tmp_path):
    write_run(tmp_path / "figure-2/dyck/tf-nd/00", 70)
    write_run(tmp_path / "figure-2/dyck/tf-nd/01", 81)
    write_run(tmp_path / "figure-2/dyck/tf-nd/02", 10, finished=False)
    write_run(tmp_path / "table-3/160/tf/00", 9)
    write_run(tmp_path / "figure-2/own-language/tf/00", 5)
    found = finished_epochs(tmp_path)
    assert found == {("dyck", "Tf+Nd"): [70, 81], ("mt-160", "Tf"): [9]}
    rows = with_epochs([{"task": task, "model": model} for task, model in cells()], found)
    epochs = {(row["task"], row["model"]): (row["epochs"], row["finished_runs"]) for row in rows}
    assert epochs["dyck", "Tf+Nd"] == (75.5, 2)
    assert epochs["mt-160", "Tf"] == (9, 1)
    assert epochs["dyck", "Tf"] == (EPOCHS["cfl"], 0)


@pytest.mark.slow
def test_a_plan_of_one_cell(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plan_module, "cells", lambda: [("dyck", "Tf")])
    monkeypatch.setattr(plan_module, "RESULTS", tmp_path)
    main(["--runs", str(tmp_path / "runs")])
    found = json.loads((tmp_path / "plan.json").read_text())
    (cell,) = found["cells"]
    assert cell["seconds_per_epoch"] > 0
    assert 1e8 < cell["memory"] < 1e9  # bytes, for torch and a small model
    assert found["plan"][0]["core_hours"] == pytest.approx(10 * EPOCHS["cfl"] * cell["seconds_per_epoch"] / 3600)
    page = (tmp_path / "plan.md").read_text()
    assert capsys.readouterr().out.strip().endswith(page.strip())
    assert f" | {EPOCHS['cfl']} | assumed | " in page
    write_run(tmp_path / "runs/dyck/tf/00", 30)
    main(["--runs", str(tmp_path / "runs"), "--simulate"])  # reuses the measurements with the new runs
    assert json.loads((tmp_path / "plan.json").read_text())["cells"] == [{**cell, "epochs": 30, "finished_runs": 1}]
    assert " | 30 | 1 finished run | " in (tmp_path / "plan.md").read_text()


def test_two_commits_are_compared(tmp_path, monkeypatch, capsys):
    """The best of the rounds counts; core hours are those of 10 restarts of each cell with 60 epochs."""
    times = {tmp_path: iter([12.0, 10.0]), compare.ROOT: iter([2.5, 3.0])}
    monkeypatch.setattr(compare, "measured", lambda folder, chosen, repeats: dict.fromkeys(chosen, next(times[folder])))
    monkeypatch.setattr(compare, "commit", lambda folder: "abc1234")
    monkeypatch.setattr(compare, "RESULTS", tmp_path)
    compare.main([str(tmp_path), "--tasks", "dyck", "--output", "found"])
    text = (tmp_path / "found.md").read_text()
    assert capsys.readouterr().out == text + "\n"
    assert "| cfl, core hours | 10.0 | 2.5 | 0.25 |" in text
    assert "| dyck | Tf+Nd | 10.0 | 2.5 | 0.25 |" in text
    assert len(json.loads((tmp_path / "found.json").read_text())["cells"]) == 6


def test_a_cell_is_measured_with_more_repetitions(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compare, "commit", lambda folder: "abc1234")
    monkeypatch.setattr(compare, "RESULTS", tmp_path)
    calls = []
    monkeypatch.setattr(
        compare, "measured", lambda folder, chosen, repeats: calls.append(repeats) or dict.fromkeys(chosen, 1.0)
    )
    compare.main([str(tmp_path), "--tasks", "dyck", "--models", "LSTM", "--repeats", "50", "--output", "found"])
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(row["task"], row["model"]) for row in found["cells"]] == [("dyck", "LSTM")]
    assert (found["repeats"], calls) == (50, [50] * 4)
    assert "with 50 repetitions of each cell" in capsys.readouterr().out
