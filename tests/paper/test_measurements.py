"""Stored measurements of runs: a damaged file is reported and read as empty, so that tables can still be written."""

import shutil
from pathlib import Path

import pytest

from stackattn.paper.measurements import measured_once, results_of_test
from stackattn.training import TrainingRun

RUN = Path(__file__).parents[2] / "experiments/results/figure-2/dyck/tf-sup/00"


@pytest.mark.parametrize("content", ["{", "{}", '{"lengths": 3}'])
def test_damaged_results_of_a_test(content, tmp_path, capsys):
    run = Path(shutil.copytree(RUN, tmp_path / "run"))
    stored = TrainingRun(run).test()
    assert results_of_test(run, lambda folder: None) == stored
    (run / "test.json").write_text(content)
    assert results_of_test(run, lambda folder: None) == {}
    assert capsys.readouterr().err.startswith(f"no results for {run}: {run / 'test.json'}")


def test_damaged_measurements(tmp_path, capsys):
    run = Path(shutil.copytree(RUN, tmp_path / "run"))
    (run / "validity.json").write_text("[]")
    assert measured_once(run, "validity.json", lambda folder: {}) == {}
    assert f"no results for {run}: {run / 'validity.json'}: expected a JSON object" in capsys.readouterr().err
    (run / "validity.json").unlink()
    assert measured_once(run, "validity.json", lambda folder: {"lengths": []})["lengths"] == []
