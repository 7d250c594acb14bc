"""End-to-end tests of `stackattn cfl` and `stackattn reproduce figure-2` on short strings."""

import json
import sys

import pytest
import torch

from stackattn.cli import main
from stackattn.training import TrainingRun

TINY = {
    "language": {"name": "marked-reversal", "lengths": [5, 9], "train_batches": 4, "validation_batches": 2},
    "model": {"layers": "1", "d_model": 8, "heads": 2},
    "training": {"max_epochs": 2},
}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(TINY))
    return str(path)


def test_train_and_evaluate(config, tmp_path, capsys):
    out = str(tmp_path / "run")
    changes = ["--set", "training.learning_rate=0.02", "--set", "model.layers='2'", "training.clip=1"]
    assert main(["cfl", "train", config, "--out", out, *changes]) == 0
    printed = capsys.readouterr().out
    assert "run  epoch   2  loss" in printed
    assert "reached max_epochs after 2 evaluations" in printed
    stored = TrainingRun(out).config()
    assert (stored["training"]["learning_rate"], stored["training"]["clip"], stored["model"]["layers"]) == (
        0.02,
        1,
        "2",
    )
    assert main(["cfl", "evaluate", out, "--lengths", "12", "5"]) == 2
    assert "--lengths: expected shortest <= longest, got 12 and 5" in capsys.readouterr().err
    assert main(["cfl", "evaluate", out, "--lengths", "5", "12", "--per-length", "3"]) == 0
    test = json.loads((tmp_path / "run/test.json").read_text())
    assert [row["length"] for row in test["lengths"]] == [5, 7, 9, 11]
    assert test["lengths"][-1]["difference_from_floor"] is None
    printed = capsys.readouterr().out
    assert "test.json" in printed
    assert "cross-entropy" in printed
    assert "…" not in printed  # no heading is cut off at 80 columns


def test_train_on_a_grammar_file(tmp_path, config, capsys):
    grammar = tmp_path / "own.grammar"
    grammar.write_text("S -> 'a' S 'b' [0.9] | 'c' [0.1]\n")
    command = ["cfl", "train", config, "--out", str(tmp_path / "run"), "--set", f"language.name={grammar}"]
    assert main(command) == 0
    assert main(["cfl", "evaluate", str(tmp_path / "run"), "--lengths", "5", "5", "--per-length", "1"]) == 0
    (row,) = json.loads((tmp_path / "run/test.json").read_text())["lengths"]
    assert row["lower_bound"] == pytest.approx(0)  # the language has one string of each length
    capsys.readouterr()
    grammar.write_text("S -> 'a' S 'b\n")
    assert main([*command[:3], "--out", str(tmp_path / "other"), *command[5:]]) == 2
    assert "own.grammar, line 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--set", "training.epochs=1"],
            "--set: 'training.epochs=1': unknown key 'training.epochs'; did you mean 'training.max_epochs'?",
        ),
        (["--set", "model.layers=2.stack"], "model.layers: "),
        (["--set", "language.name=nowhere.cfg"], "nowhere.cfg"),
    ],
)
def test_errors_are_one_line(arguments, message, config, tmp_path, capsys):
    assert main(["cfl", "train", config, "--out", str(tmp_path / "run"), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("stackattn cfl train: ")
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["cfl", "lm"])
def test_training_needs_a_configuration(command, tmp_path, capsys):
    assert main([command, "train", "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert "expected a configuration: a YAML file, the name of a shipped configuration (`stackattn config list`)" in err
    assert f"`stackattn config {command}`" in err


def test_evaluate_without_a_run(tmp_path, capsys):
    assert main(["cfl", "evaluate", str(tmp_path)]) == 2
    assert f"check that {tmp_path} is the folder of a run" in capsys.readouterr().err


def test_bars_on_a_terminal(config, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["cfl", "train", config, "--out", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert "run  epoch   1  loss" in printed
    assert "epoch 2" in printed


@pytest.mark.slow
def test_sweep(config, tmp_path, capsys):
    command = ["cfl", "sweep", config, "--restarts", "2", "--out", str(tmp_path / "runs"), "--processes", "2"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    differences = {
        name: TrainingRun(tmp_path / "runs" / name).result()["best"]["cross_entropy_difference"]
        for name in ("00", "01")
    }
    for value in differences.values():
        assert f"{value:.4f}" in printed
    best = min(differences, key=differences.__getitem__)
    assert f"the best run is in {tmp_path / 'runs' / best}" in printed
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "epoch   1" not in printed  # finished runs are not trained again
    assert "not finished" not in printed
    # runs of another seed are neither shown nor chosen as the best
    assert main([*command, "--seed", "5"]) == 1
    printed = capsys.readouterr().out
    assert "the best run" not in printed
    assert not any(f"{value:.4f}" in printed for value in differences.values())
    away = [*command[:5], "--out", str(tmp_path / "none"), "--budget", "0"]
    assert main(away) == 0
    assert "2 of 2 runs are not finished; run the same command again to continue them" in capsys.readouterr().out
    assert main([*away[:-2], "--minutes-each", "0"]) == 0
    printed = capsys.readouterr().out
    assert "2 of 2 runs used up their 0 minutes; raise --minutes-each to continue them" in printed
    assert "not finished" not in printed


def test_resume_with_the_stored_configuration(config, tmp_path, capsys):
    out = str(tmp_path / "run")
    command = ["cfl", "train", config, "--minutes", "0", "--out"]
    assert main([*command, out, "--set", "training.evaluate_every=100"]) == 0
    printed = capsys.readouterr().out
    assert "stopped after 0 minutes; pass --resume to continue" in printed
    assert "best: epoch 1, difference " in printed
    assert main(["cfl", "evaluate", out, "--per-length", "1"]) == 0
    assert main(["cfl", "train", "--out", out, "--resume"]) == 0
    assert TrainingRun(out).result()["stopped"] == "max_epochs"
    assert TrainingRun(out).config()["training"]["evaluate_every"] == 100
    capsys.readouterr()
    new = tmp_path / "new"
    assert main(["cfl", "train", "--out", str(new), "--resume"]) == 2
    message = f"--resume: expected a run in {new}, found none; pass CONFIG or --set to start one\n"
    assert capsys.readouterr().err == f"stackattn cfl train: {message}"


def test_errors_name_the_file(config, tmp_path, capsys):
    latin, grammar, taken = tmp_path / "latin.yaml", tmp_path / "latin.grammar", tmp_path / "taken"
    latin.write_bytes(b"model:\n  layers: \xe9\n")
    grammar.write_bytes(b"S -> '\xe9'\n")
    taken.touch()
    for arguments, message in (
        ([str(latin), "--out", str(tmp_path / "run")], f"{latin}, line 2: not UTF-8: byte 0xe9 at column 11"),
        (
            [config, "--out", str(tmp_path / "run"), "--set", f"language.name={grammar}"],
            f"{grammar}, line 1: not UTF-8",
        ),
        ([config, "--out", str(taken)], f"{taken}: expected a folder, found a file; choose another folder\n"),
    ):
        assert main(["cfl", "train", *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_reproduce_figure_2(tmp_path, capsys):
    configs = tmp_path / "configs/marked-reversal"
    configs.mkdir(parents=True)
    (configs / "tf.yaml").write_text(json.dumps(TINY))
    out = tmp_path / "out"
    command = ["reproduce", "figure-2", "--tasks", "marked-reversal", "--models", "tf"]
    command += ["--configs", str(tmp_path / "configs"), "--out", str(out), "--processes", "2"]
    assert main([*command, "--restarts", "2", "--budget", "0"]) == 1
    printed = capsys.readouterr().err
    assert printed == (
        f"stackattn reproduce figure-2: expected runs in {out}, found none; train some with a larger --budget, or "
        "choose another folder with --out\n"
    )
    assert main([*command, "--restarts", "2"]) == 0
    printed = capsys.readouterr().out
    assert "0 of 2 runs are finished; training the others\n" in printed
    assert (out / "figure-2.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "figure-2.svg").read_text()
    (test,) = out.rglob("test.json")
    lengths = [row["length"] for row in json.loads(test.read_text())["lengths"]]
    assert lengths == list(range(41, 101, 2))
    test_set = json.loads(test.read_text())["lengths"]
    longest = TINY["language"]["lengths"][1]
    longer = [row["difference"] for row in test_set if row["length"] > longest]
    best = min(
        TrainingRun(run).result()["best"]["cross_entropy_difference"] for run in (out / "marked-reversal/tf").iterdir()
    )
    written = (out / "figure-2.md").read_text()
    row = next(line for line in written.splitlines() if line.startswith("| marked-reversal"))
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[:4] == ["marked-reversal", "Tf", "2 of 2", f"{best:.4f}"]
    assert cells[5] == f"{sum(longer) / len(longer):.4f}"
    assert cells[3] in printed
    before = test.stat().st_mtime_ns
    assert main([*command, "--restarts", "2"]) == 0
    assert "2 of 2 runs are finished\n" in capsys.readouterr().out
    assert test.stat().st_mtime_ns == before
    folder = test.parent
    assert main(["cfl", "evaluate", str(folder), "--lengths", "41", "43", "--per-length", "100"]) == 0
    assert main([*command, "--budget", "0"]) == 0
    assert [
        row["length"] for row in TrainingRun(folder).test()["lengths"]
    ] == lengths  # stored results for other lengths are replaced
    # all existing runs are shown, whatever is requested
    assert (
        main(["reproduce", "figure-2", "--tasks", "dyck", "--restarts", "1", "--budget", "0", "--out", str(out)]) == 0
    )
    assert (out / "figure-2.md").read_text() == written
    assert main(["reproduce", "figure-2", "--configs", str(tmp_path / "none"), "--out", str(out)]) == 2
    assert f"--configs: expected a folder, got {tmp_path / 'none'}" in capsys.readouterr().err


def test_reproduce_names_the_option_with_a_wrong_folder(tmp_path, capsys):
    missing = tmp_path / "marked-reversal/lstm.yaml"
    assert main(["reproduce", "figure-2", "--configs", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    expected = f"--configs: expected a folder with TASK/MODEL.yaml for all runs, found no {missing}"
    assert expected in capsys.readouterr().err
    assert main(["reproduce", "figure-2", "--out", str(tmp_path / "out"), "--set", "clip"]) == 2
    assert "figure-2: --set: expected KEY=VALUE, got 'clip'" in capsys.readouterr().err
    (tmp_path / "file").touch()
    for command in (["reproduce", "figure-2"], ["cfl", "sweep", "figure-2/dyck/tf"]):
        assert main([*command, "--out", str(tmp_path / "file")]) == 2
        assert f"--out: expected a folder, got the file {tmp_path / 'file'}" in capsys.readouterr().err


@pytest.mark.slow
def test_each_array_job_trains_one_run(tmp_path, capsys):
    """A loop takes the place of a cluster, and one job is repeated."""
    for task in ("dyck", "marked-reversal"):
        (tmp_path / "configs" / task).mkdir(parents=True)
        (tmp_path / "configs" / task / "tf.yaml").write_text(json.dumps(TINY))
    arguments = ["reproduce", "figure-2", "--tasks", "dyck", "marked-reversal", "--models", "tf", "--restarts", "2"]
    arguments += ["--configs", str(tmp_path / "configs"), "--out", str(tmp_path / "out")]
    for job in ("3", "0", "0"):
        assert main([*arguments, "--job", job]) == 0
    printed = capsys.readouterr().out
    assert [path.parent for path in sorted(tmp_path.rglob("result.json"))] == [
        tmp_path / "out/dyck/tf/00",
        tmp_path / "out/marked-reversal/tf/01",
    ]
    assert printed.count("max_epochs") == 2
    assert main([*arguments, "--job", "4"]) == 2
    assert "--job: expected a number from 0 to 3, got 4" in capsys.readouterr().err
    assert main([*arguments, "--budget", "0"]) == 0
    assert "marked-reversal" in capsys.readouterr().out


@pytest.mark.slow
def test_reproduce_fails_if_a_run_fails(tmp_path, capsys, monkeypatch):
    """The exit code is 1, and the other runs are still shown."""
    for task, training in (("dyck", {}), ("marked-reversal", {"learning_rates": [1e30, 1e30]})):
        (tmp_path / "configs" / task).mkdir(parents=True)
        language = {**TINY["language"], "name": task, "lengths": [5, 10]}
        values = {**TINY, "language": language, "training": {**TINY["training"], **training}}
        (tmp_path / "configs" / task / "tf.yaml").write_text(json.dumps(values))
    command = ["reproduce", "figure-2", "--tasks", "dyck", "marked-reversal", "--models", "tf", "--restarts", "1"]
    command += ["--configs", str(tmp_path / "configs"), "--out", str(tmp_path / "out"), "--processes", "1"]
    assert main(command) == 1
    printed = capsys.readouterr().out
    assert "marked-reversal/tf/00: failed: " in printed
    assert "dyck" in (tmp_path / "out/figure-2.md").read_text()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(command) == 2
    assert "start sweeps without it" in capsys.readouterr().err


def test_figure_2_checks_for_matplotlib_before_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    command = ["reproduce", "figure-2", "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "needs matplotlib, which is not installed; run pip install 'stackattn[plot]'" in capsys.readouterr().err
    assert main([*command, "--job", "1000"]) == 2  # a single job draws no figure, so matplotlib is not needed
    assert "--job: expected a number from 0 to" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_threads(config, tmp_path):
    before = torch.get_num_threads()
    try:
        assert main(["cfl", "train", config, "--out", str(tmp_path / "run"), "--threads", "2"]) == 0
        assert json.loads((tmp_path / "run/environment.json").read_text())["threads"] == 2
    finally:
        torch.set_num_threads(before)
