"""`stackattn config`: keys, shipped configurations and the reference page; training by the name of a configuration."""

from pathlib import Path

import pytest

from stackattn.cli import main
from stackattn.config import to_values
from stackattn.config_keys import describe
from stackattn.paper.configurations import CONFIGS, configuration_names, load_configuration
from stackattn.training import TrainingRun
from stackattn.training.experiment import config_class

PAGE = Path(__file__).parents[2] / "docs/configuration.md"


def test_the_reference_page_is_up_to_date(capsys):
    assert main(["config", "--markdown"]) == 0
    assert capsys.readouterr().out == PAGE.read_text(), "run: stackattn config --markdown > docs/configuration.md"


def test_the_tables_of_the_reference_page_have_all_cells():
    """A `|` in a cell, as in `str | int`, would start another cell."""
    tables = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len(tables) > 60
    assert all(line.count("|") == 5 for line in tables)


@pytest.mark.parametrize("command", ["cfl", "lm", "mt"])
def test_lists_every_key_with_type_default_and_meaning(command, capsys):
    assert main(["config", command]) == 0
    lines = capsys.readouterr().out.splitlines()
    keys = describe(config_class(command))
    heads = [line for line in lines if not line.startswith(" ")]
    assert [line.split(":")[0].split()[0] for line in heads] == [key.key for key in keys]
    assert all(line.endswith(", required") or ", default " in line for line in heads)
    meanings = " ".join(line.strip() for line in lines if line.startswith(" "))
    assert all(key.doc in meanings for key in keys)


def test_lists_and_shows_configurations(capsys):
    assert main(["config", "list"]) == 0
    assert capsys.readouterr().out.splitlines() == configuration_names()
    assert main(["config", "show", "figure-2/dyck/tf-nd"]) == 0
    assert capsys.readouterr().out == (CONFIGS / "figure-2/dyck/tf-nd.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "stackattn config: expected an action (cfl, lm, mt, list, show) or --markdown, got neither\n"),
        (["show", "figure-2/dyck/tf-n"], "stackattn config show: CONFIG: expected an existing YAML file or the name"),
    ],
)
def test_errors(arguments, message, capsys):
    assert main(["config", *arguments]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_train_by_name_and_preset(tmp_path):
    """The run folder stores the options of the preset, not its name."""
    small = ["language.lengths=[5,9]", "language.train_batches=2", "language.validation_batches=1", "model.d_model=8"]
    for preset in ("published", "paper"):
        out = tmp_path / preset
        command = ["cfl", "train", "figure-2/marked-reversal/tf-sup", "--out", str(out), "--set", *small]
        command += ["training.max_epochs=1", "model.layers=superposition-4"]
        assert main([*command, *(["--preset", "paper"] if preset == "paper" else [])]) == 0
        changes = [*small, "training.max_epochs=1", "model.layers=superposition-4"]
        config = load_configuration("cfl", "figure-2/marked-reversal/tf-sup", changes, preset)
        assert TrainingRun(out).config() == to_values(config)
        assert TrainingRun(out).config()["language"]["parameters"] == (
            {"variant": "published"} if preset == "published" else {}
        )
