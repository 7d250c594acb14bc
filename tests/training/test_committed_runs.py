"""All runs in experiments/results, including those of earlier versions, can be read: options, metrics and results."""

import json
from pathlib import Path

import pytest

from stackattn.compatibility import upgrade_run_config
from stackattn.config import from_values, to_values
from stackattn.models import LSTMArchitecture
from stackattn.training import TrainingRun
from stackattn.training.cfl import CFLConfig
from stackattn.training.lm import LMConfig
from stackattn.training.mt import MTConfig
from stackattn.training.run import config_of

RESULTS = Path(__file__).parents[2] / "experiments/results"
RUNS = sorted(path.parent for path in RESULTS.rglob("metrics.jsonl"))
OLD = [
    folder
    for folder in RUNS
    if "published" in json.loads((folder / "config.json").read_text())["training"]  # an option of earlier versions
]


def name(folder):
    return folder.relative_to(RESULTS).as_posix()


def without_crc(text):
    """The values of a line or file, without the CRC, which earlier versions did not write."""
    return {key: value for key, value in json.loads(text).items() if key != "crc32"}


def config_class(stored):
    if "language" in stored:
        return CFLConfig
    return MTConfig if "label_smoothing" in stored["data"] else LMConfig


def test_all_runs_are_found():
    assert len(OLD) == 49
    assert len(RUNS) >= 106


@pytest.mark.parametrize("folder", RUNS, ids=name)
def test_files_of_a_run(folder):
    run = TrainingRun(folder)
    stored = json.loads((folder / "config.json").read_text())
    config = config_of(config_class(stored), folder)
    assert from_values(type(config), to_values(config)) == config
    assert run.differs(config) is None
    rows = [without_crc(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert run.metrics() == rows
    assert rows
    assert run.finished == (folder / "result.json").exists()
    if run.finished:
        assert run.result() == without_crc((folder / "result.json").read_text())
    if (folder / "test.json").exists():
        read = without_crc((folder / "test.json").read_text())
        known = run.model_checksum()
        assert run.test() == (read if known is None or read.get("model") == known else None)
    assert "torch" in json.loads((folder / "environment.json").read_text())
    assert (run.state() is None) == (not (folder / "last").exists())


@pytest.mark.parametrize("folder", OLD, ids=name)
def test_old_options_are_converted(folder):
    stored = json.loads((folder / "config.json").read_text())
    config = config_of(config_class(stored), folder)
    assert config.training.plateau == ("pytorch" if stored["training"]["published"] else "paper")
    if isinstance(config.model, LSTMArchitecture):
        assert config.model.stack_init == ("uniform" if stored["model"]["published"] else "xavier")
    else:
        assert config.model.push_activation == ("published" if stored["model"]["published"] else "sigmoid")
    if isinstance(config, LMConfig):
        assert config.data.count_bos != stored["data"]["published"]
        assert config.data.fingerprint == stored["data"]["checksum"]
    if isinstance(config, MTConfig):
        assert config.data.fingerprint == stored["data"]["digest"]
    for section, options in stored.items():  # all other options are unchanged
        current = to_values(config)[section]
        for key, value in options.items():
            derived = (section, key, value) == ("model", "hidden_size", None)
            if key not in ("published", "checksum", "digest") and not derived:
                assert current[key] == value


def test_the_old_name_of_row_tokens_is_converted():
    assert upgrade_run_config({"data": {"piece_tokens": 512}}) == {"data": {"row_tokens": 512}}


def test_upgrade_changes_neither_its_argument_nor_current_options():
    stored = {"training": {"published": True}, "data": 3, "model": {"published": False, "kind": "lstm"}}
    before = json.dumps(stored)
    expected = {"training": {"plateau": "pytorch"}, "data": 3, "model": {"kind": "lstm", "stack_init": "xavier"}}
    assert upgrade_run_config(stored) == expected
    assert json.dumps(stored) == before
    assert upgrade_run_config(expected) == expected
