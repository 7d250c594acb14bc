"""`stackattn analyse`: its output, drawings and errors."""

from pathlib import Path

import pytest

import stackattn.analysis
from stackattn.cli import main
from stackattn.files import locked
from stackattn.training import TrainingRun

EXAMPLE_FOLDER = Path(stackattn.analysis.__file__).parent / "example"


def test_command(make_run, tmp_path, capsys):
    folder = make_run("tf-sup")
    assert main(["analyse", str(folder), "--string", "(())", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert f"report: {tmp_path / 'out/report.html'}" in printed
    assert "share of steps at which the token with the most weight" in printed
    made = sorted(path.name for path in (tmp_path / "out").iterdir())
    figures = [
        f"string-1-layer-1-{kind}.{end}" for kind in ("actions", "attention", "height") for end in ("png", "svg")
    ]
    assert made == ["report.html", *figures, "string-1-layer-1-runs.txt"]
    runs = (tmp_path / "out/string-1-layer-1-runs.txt").read_text()
    assert runs.startswith("best run\nBOS")
    assert runs.count("sampled run") == 3


def test_stale_drawings_are_removed_and_nothing_else(make_run, tmp_path):
    folder, out = make_run("tf-sup"), tmp_path / "out"
    out.mkdir()
    drawings = ["string-7-layer-1-actions.svg", "string-2-layer-3-head-1-split.png", "string-2-LSTM-stack-runs.txt"]
    others = ["string-1-notes.txt", "string-1-layer-1-actions.pdf", "my-string-1-layer-1-height.svg"]
    for name in drawings + others:
        (out / name).touch()
    assert main(["analyse", str(folder), "--string", "(x)", "--out", str(out)]) == 2
    assert len(list(out.iterdir())) == 6  # an error removes nothing
    assert main(["analyse", str(folder), "--string", "()", "--no-figures", "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == sorted(["report.html", *others])


def test_command_without_stacks_models_or_matplotlib(make_run, tmp_path, capsys, monkeypatch):
    assert main(["analyse", str(make_run("tf", folder="plain"))]) == 0
    assert "none" in capsys.readouterr().out
    assert (tmp_path / "plain/analysis/report.html").exists()
    assert main(["analyse", str(make_run(folder="new", best=False))]) == 0
    assert "no evaluation yet" in capsys.readouterr().out
    import sys

    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["analyse", str(make_run(folder="other")), "--samples", "1"]) == 0
    printed = capsys.readouterr()
    assert "no figures: drawing figures needs matplotlib, which is not installed; run pip install" in printed.err
    assert "report:" in printed.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such folder; expected a run, or a folder with runs below it"),
        (["."], "expected a run (with config.json and metrics.jsonl or test.json)"),
        (["run/best"], "expected the folder of a run, got a saved model; pass its run, "),
        (["run", "--string", "(x)"], "--string: expected the symbols ( ) [ ], got 'x' as symbol 2 of the string"),
        (["run", "--samples", "0"], "--samples: expected at least 1, got 0"),
        (["run", "--seed", "-1"], "--seed: expected at least 0, got -1"),
        (["run", "--string", ""], "--string: expected at least one symbol, got the empty string"),
        (["nowhere", "--out", "run/config.json"], "--out: expected a folder, got the file run/config.json"),
        (["run", "--stack", "2"], "--stack: expected 1 (layer 2), got 2"),
        (["run", "--stack", "0"], "--stack: expected 1 (layer 2), got 0"),
        (["run/config.json"], "run/config.json: expected the folder of a run, got a file; pass its folder, run"),
    ],
)
def test_errors_of_the_command(make_run, tmp_path, capsys, monkeypatch, arguments, message):
    if arguments != ["."]:
        make_run()
    monkeypatch.chdir(tmp_path)
    try:
        code = main(["analyse", *arguments])
    except SystemExit as error:  # from argparse
        code = error.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_drawings_stay_until_new_ones_exist(make_run, tmp_path, monkeypatch, capsys):
    import stackattn.analysis.drawings as drawings

    folder, out = make_run("tf-sup"), tmp_path / "run/analysis"
    assert main(["analyse", str(folder), "--string", "()"]) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def fail(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(drawings, "height_chart", fail)
    assert main(["analyse", str(folder), "--string", "(())"]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_another_process_is_writing(make_run, tmp_path, capsys):
    folder, out = make_run("tf-sup"), tmp_path / "run/analysis"
    out.mkdir()
    with locked(out, out / ".lock", temporary=True):
        assert main(["analyse", str(folder), "--string", "()", "--no-figures"]) == 2
        assert f"{out}: another process is writing to this folder" in capsys.readouterr().err
        assert [path.name for path in out.iterdir()] == [".lock"]


def test_the_shipped_example(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["analyse", "--no-figures", "--samples", "1"]) == 0
    printed = capsys.readouterr().out
    assert "report: out/example/report.html" in printed
    assert "100.0%" in printed  # agreement with a real stack
    assert "example" in (tmp_path / "out/example/report.html").read_text()
    assert sum(path.stat().st_size for path in EXAMPLE_FOLDER.rglob("*") if path.is_file()) < 200_000
    assert not (EXAMPLE_FOLDER / "analysis").exists()


def test_the_shipped_example_has_the_configuration_of_the_demo():
    from stackattn.paper.configurations import load_configuration

    assert TrainingRun(EXAMPLE_FOLDER).differs(load_configuration("cfl", "demo/nd")) is None
