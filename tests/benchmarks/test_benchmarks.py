"""The benchmark harness on tiny shapes: contenders, reports, targets, the table of a GPU, and profiles."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from gpu_with_values import gpu_with_values

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import __main__ as command
from benchmarks import gpu, measure, profile, report, targets
from benchmarks.registry import CASES

TINY = ["--shapes", "B=2,T=3,Q=2,S=2,m=2", "--budget", "0", "--without", targets.RATE]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(measure, "TURN", 0.0)
    return tmp_path


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_a_case_measures_all_its_contenders(name, folder, monkeypatch):
    monkeypatch.setattr(command, "_verify", lambda cases: True)
    assert command.main([*TINY, "--cases", name, "--output", "tiny"]) == 0
    rows = json.loads((folder / "tiny.json").read_text())["rows"]
    assert {row["contender"] for row in rows} == set(CASES[name].contenders) - {targets.RATE}
    assert all(row["case"] == name and 0 < row["forward"] <= row["total"] for row in rows)
    assert all(("peak" in row) == (row["threads"] == 2) for row in rows if sys.platform == "linux")
    text = (folder / "tiny.md").read_text()
    assert "python -m benchmarks" in text
    assert text.count("not measured") == len(targets.TARGETS)
    assert sorted(x.name for x in folder.iterdir()) == ["tiny.json", "tiny.md"]


def test_no_speed_is_reported_if_a_test_fails(folder, monkeypatch, capsys):
    (folder / "test_red.py").write_text("def test_red():\n    assert False\n")
    monkeypatch.setitem(CASES, "red", CASES["superposition"].__class__("", "B", (), {}, tests=("test_red.py",)))
    assert command.main(["--cases", "red", "--output", "red"]) == 1
    assert "no speed is reported" in " ".join(capsys.readouterr().out.split())
    assert not list(folder.glob("red.*"))


def test_without_verification_nothing_is_written(folder, capsys):
    assert command.main([*TINY, "--cases", "superposition", "--threads", "1", "--no-verify"]) == 0
    assert "| vectors |" in capsys.readouterr().out
    assert not list(folder.iterdir())


def _row(contender, threads=2, total=1.0, T=60, **more):
    shape = {"B": 10, "T": T, "Q": 3, "S": 3, "m": 32}
    return {
        "case": "nondeterministic",
        "contender": contender,
        "threads": threads,
        "shape": shape,
        "total": total,
        **more,
    }


def test_a_whole_run_measures_every_target():
    results = {"total": 1.0, "multiply_adds": 1.0, "peak": 1.0, "process_peak": 1.0}
    rows = [
        {"case": name, "contender": contender, "threads": threads, "shape": shape._asdict(), **results}
        for name, case in CASES.items()
        for shape in case.shapes
        for contender in case.contenders
        for threads in (1, 2)
    ]
    missing = [target.text for target in targets.TARGETS if "not measured" in target.line(targets.Results(rows))]
    assert missing == []


def test_targets_are_computed_from_the_rows():
    rows = [
        _row("cpp", total=0.009, peak=1.0),
        _row("cpp", threads=1, total=7.0),
        _row("transformer training step", total=0.02),
        _row("cpp", T=200, total=2.0, peak=1e8, multiply_adds=4e9),
        _row("cpp", T=400, total=16.0, peak=5e8, multiply_adds=32e9),
        _row(targets.RATE, T=200, total=1.0, multiply_adds=8e9),
    ]
    lines = {line[0]: line[2:] for line in (target.line(targets.Results(rows)) for target in targets.TARGETS)}
    assert lines["cpp, T=60"] == ("9 ms", "met")
    assert lines["cpp, T=60, over a transformer's training step"] == ("0.45", "NOT MET")
    assert lines["cpp, T=200, share of the float64 rate"] == ("25 %", "met")
    assert lines["cpp, T=400, share of the float64 rate"] == ("", "not measured")
    assert lines["cpp, time(T=400) / time(T=200)"] == ("8", "met")
    assert lines["cpp, memory(T=400) / memory(T=200): as T^2"] == ("5", "NOT MET")
    assert lines["cpp, T=400, memory above inputs and outputs"] == ("0.5 GB", "met")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu(capsys):
    assert command.main(["--device", "cuda"]) == 2
    found = capsys.readouterr()
    assert "nothing was measured; --device: 'cuda' is not available: PyTorch finds no device of this type" in found.err
    assert found.out == ""


def test_table_of_a_gpu(monkeypatch, capsys):
    """The GPU is simulated, and sequences have two steps. Triton is not available, so its rows contain the error."""
    monkeypatch.setattr(gpu, "table", partial(gpu.table, lengths=(2,), B=1, seconds=0.05))
    with gpu_with_values():
        assert command.main(["--device", "cuda"]) == 0
    found = capsys.readouterr().out
    assert "GPU: simulated" in found
    rows = [line.split(" | ") for line in found.splitlines() if line.startswith("|")][2:]
    assert len(rows) == 3 * 3
    assert {len(row) for row in rows} == {len(gpu.COLUMNS)}
    assert rows[3][:4] == ["| nondeterministic, window 64", "1", "2", "torch"]
    for row in rows:
        if row[3] == "triton":
            assert row[4].startswith("RuntimeError: backend 'triton' is not available: Triton is not installed")
        else:
            assert all(float(time) > 0 for time in row[4:6])


def percentages(text):
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: [float(x.replace(",", "")) for x in row[1:]] for row in rows[2:]}


def test_profile_of_a_step(capsys):
    profile.main(["step", "dyck", "--repeats", "1"])
    rows = percentages(capsys.readouterr().out)
    assert {"embedding", "layer norm", "attention", "feed-forward", "output layer and loss"} < set(rows)
    assert rows["stack attention"][0] == 0
    assert min(rows["stack attention"][1:]) > 0
    *parts, whole = rows.values()
    assert [sum(column) for column in zip(*parts, strict=True)] == pytest.approx([100] * 3, abs=1)
    assert min(whole) > 0


def test_profile_of_an_epoch(capsys):
    data = ["language.train_batches=3", "language.validation_batches=2", "language.lengths=[4, 6]"]
    profile.main(["epoch", "cfl", "demo/tf", "--set", "training.max_epochs=1", *data])
    rows = percentages(capsys.readouterr().out)
    assert rows["evaluation"][0] > 0
    assert rows["checkpoints and best model"][0] > 0
    assert rows["rest"][0] > 0
