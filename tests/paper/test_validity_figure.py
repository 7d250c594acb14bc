"""The figure and table of validity by length."""

import json
import shutil
from pathlib import Path

import pytest

from stackattn.cli import main
from stackattn.files import write_json
from stackattn.paper import validity

RESULTS = Path(__file__).parents[2] / "experiments/results/figure-2"
RUN = RESULTS / "dyck/tf-sup/00"


def test_the_best_run_is_measured_once(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(validity, "LENGTHS", (4, 100))
    monkeypatch.setattr(validity, "STRINGS", 2)
    run = tmp_path / "dyck/tf-sup/00"
    shutil.copytree(RUN, run)
    command = ["reproduce", "validity", "--budget", "0", "--out", str(tmp_path)]
    assert main(command) == 0
    stored = json.loads((run / "validity.json").read_text())
    assert [row["length"] for row in stored["lengths"]] == [4, 64]
    table = (tmp_path / "validity.md").read_text()
    assert table.startswith("| task | model | finished | 4 | 64 | restarts at 64 |")
    assert "| dyck | Tf+Sup | 0 of 1 |" in table
    assert (tmp_path / "validity.png").exists()
    monkeypatch.setattr(validity, "evaluate_run", None)
    assert main(command) == 0  # not measured again
    capsys.readouterr()
    write_json(run / "validity.json", {**stored, "model": "another model"})
    monkeypatch.setattr(validity, "evaluate_run", lambda *arguments, **options: {**stored, "lengths": []})
    assert main(command) == 1
    assert "no run has been evaluated yet" in capsys.readouterr().err


def test_strings_of_odd_length(tmp_path, monkeypatch):
    """Strings of marked reversal have odd lengths, so each column, including the last, shows the next longer length."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(validity, "LENGTHS", (10, 70))
    monkeypatch.setattr(validity, "STRINGS", 2)
    for task in ("dyck", "marked-reversal"):
        shutil.copytree(RESULTS / task / "tf-sup/00", tmp_path / task / "tf-sup/00")
    assert main(["reproduce", "validity", "--budget", "0", "--out", str(tmp_path)]) == 0
    stored = json.loads((tmp_path / "marked-reversal/tf-sup/00/validity.json").read_text())
    assert [row["length"] for row in stored["lengths"]] == [11, 71]
    rows = (tmp_path / "validity.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["task", "marked-reversal", "dyck"]
