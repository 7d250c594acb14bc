"""The figure and table of agreement with real stacks."""

import json
import shutil
from pathlib import Path

import pytest

from stackattn.analysis import labelled_strings
from stackattn.cli import main

RUNS = Path(__file__).parents[2] / "experiments/results/figure-2"


def test_agreement_of_all_runs_with_stacks(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(labelled_strings, "BATCHES", 1)
    monkeypatch.setattr(labelled_strings, "DERIVED_STRINGS", 1)
    for name in ("dyck/tf-sup/00", "dyck/tf/00"):
        shutil.copytree(RUNS / name, tmp_path / name)
    command = ["reproduce", "agreement", "--out", str(tmp_path)]
    assert main(command) == 0
    rows = [line.split(" | ") for line in (tmp_path / "agreement.md").read_text().splitlines() if "Tf" in line]
    assert len(rows) == 1  # Tf has no stack
    assert rows[0][:4] == ["| dyck", "Tf+Sup", "00", "not finished"]
    stored = json.loads((tmp_path / "dyck/tf-sup/00/agreement.json").read_text())["real top"]
    assert stored["correct"] == stored["steps"]  # as docs/gallery.md says of this run
    assert not (tmp_path / "dyck/tf/00/agreement.json").exists()
    assert rows[0][5] == "1.000"
    assert float(rows[0][6]) < 1
    assert (tmp_path / "agreement.svg").exists()
    monkeypatch.setattr("stackattn.paper.agreement.label_strings", None)
    assert main(command) == 0  # not measured again
    capsys.readouterr()
    shutil.rmtree(tmp_path / "dyck/tf-sup")
    assert main(command) == 1
    assert "no run has been evaluated yet" in capsys.readouterr().err
