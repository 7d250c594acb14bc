"""The runs in experiments/results can be loaded, and give the tables that are committed beside them."""

from pathlib import Path

import pytest

from stackattn.config import to_values
from stackattn.paper.experiments import TARGETS
from stackattn.training.run import config_of
from stackattn.training.sweep import restart

RESULTS = Path(__file__).parents[2] / "experiments/results"
RUNS = sorted(
    path.parent
    for configs in {target.configs for target in TARGETS.values()}
    for path in (RESULTS / configs).rglob("metrics.jsonl")
)


TABLES = sorted(path for name in TARGETS for path in RESULTS.glob(f"*/{name}.md"))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: "-".join(path.parts[-2:]))
def test_the_committed_runs_give_the_committed_tables(path, tmp_path, capsys):
    target = TARGETS[path.stem]
    assert target.show(target.cells(path.parent), tmp_path) == 0
    assert (tmp_path / path.name).read_text() == path.read_text()
    assert capsys.readouterr().err == ""  # nothing had to be measured again


def test_there_are_tables():
    assert len(TABLES) >= 6


def test_there_are_runs():
    assert len(RUNS) == 62


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: "-".join(folder.parts[-4:]))
def test_a_committed_run_has_the_shipped_configuration(folder):
    """Options, learning rate and seeds are equal. In older runs, restart K has the same draws in every cell."""
    name, task, model, number = folder.parts[-4:]
    ((_, config),) = TARGETS[name].jobs(folder, [task], [model], [int(number)])
    if not TARGETS[name].same_draws:
        config = restart(config, int(number))
    assert options(config_of(type(config), folder)) == options(config)


FULL_RUNS = sorted(path.parent for path in (RESULTS / "figure-2-full").rglob("metrics.jsonl"))


@pytest.mark.parametrize("folder", FULL_RUNS, ids=lambda folder: "-".join(folder.parts[-3:]))
def test_a_run_to_early_stopping_is_a_restart_of_figure_2(folder):
    """The run has the options of the published code, and the learning rate and the seeds of its cell and number."""
    task, model, number = folder.parts[-3:]
    ((_, config),) = TARGETS["figure-2"].jobs(folder, [task], [model], [int(number)])
    assert options(config_of(type(config), folder)) == options(config)


def options(config):
    values = to_values(config)
    for corpus in ("checksum", "digest", "fingerprint"):  # of data that is not in the repository
        values.get("data", {}).pop(corpus, None)
    return values
