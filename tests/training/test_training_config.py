"""Configurations: what is refused, with file, line and the key that was meant; and all that are shipped."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from stackattn.config import from_values, to_values
from stackattn.paper.models import ARCHITECTURES, COUNTS
from stackattn.training import ConfigError, load_config
from stackattn.training.architectures import LSTMOptions, TransformerOptions
from stackattn.training.cfl import CFLConfig, LanguageOptions, build_model
from stackattn.training.lm import LMConfig
from stackattn.training.mt import MTConfig

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
CELLS = [
    (task, architecture, count)
    for task, counts in COUNTS.items()
    if (EXPERIMENTS / "cfl" / task).exists()
    for architecture, count in zip(ARCHITECTURES, counts, strict=True)
]
GOOD = "language:\n  name: dyck\n  lengths: [10, 20]\nmodel:\n  kind: lstm\n  hidden_size: 7\ntraining:\n  clip: 1e-1\n"


def read(tmp_path, text, overrides=()):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return load_config(CFLConfig, path, list(overrides))


def test_reads_all_that_is_there_and_fills_in_the_rest(tmp_path):
    config = read(tmp_path, GOOD)
    assert config.language.name == "dyck"
    assert config.language.lengths == (10, 20)
    assert config.language.batch_size == 10
    assert config.model == LSTMOptions(hidden_size=7)
    assert config.training.clip == 0.1
    assert config.training.max_epochs == 200
    assert from_values(CFLConfig, to_values(config)) == config


def test_a_transformer_unless_told_otherwise(tmp_path):
    assert read(tmp_path, "language: {name: dyck}").model == TransformerOptions()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("language:\n  name: dyck\ntrainin: {}\n", "line 3: unknown key 'trainin'; did you mean 'training'?"),
        (
            GOOD + "  learning_rat: 1\n",
            "line 9: unknown key 'training.learning_rat'; did you mean 'training.learning_rate'?",
        ),
        (GOOD.replace("hidden_size", "heads"), "line 6: unknown key 'model.heads'; expected one of kind, hidden_size"),
        (GOOD.replace("7", "seven"), "line 6: model.hidden_size: expected int, got 'seven'"),
        (GOOD.replace("7", "true"), "line 6: model.hidden_size: expected int, got True"),
        (GOOD.replace("1e-1", "much"), "line 8: training.clip: expected float, got 'much'"),
        (GOOD.replace("1e-1", "-1"), "line 8: training.clip: expected a positive number, got -1.0"),
        (GOOD.replace("1e-1", "nan"), "line 8: training.clip: expected a positive number, got nan"),
        (GOOD.replace("[10, 20]", "10"), "line 3: language.lengths: expected tuple[int, int], got 10"),
        (
            GOOD.replace("[10, 20]", "[10, 20, 30]"),
            "line 3: language.lengths: expected tuple[int, int], got [10, 20, 30]",
        ),
        (GOOD.replace("[10, 20]", "[20, 10]"), "line 3: language.lengths: expected the smallest and the largest one"),
        (GOOD.replace("kind: lstm", "kind: gru"), "line 5: model.kind: expected one of transformer, lstm, got 'gru'"),
        (GOOD.replace("name: dyck", "seed: 1"), "line 1: missing key 'language.name'"),
        ("model: {}\n", "config.yaml: missing key 'language'"),
        ("language: dyck\n", "line 1: language: expected keys and values, got 'dyck'"),
        ("- 1\n", "config.yaml: all of it: expected keys and values, got [1]"),
        (GOOD + "language:\n  name: dyck\n", "line 9: 'language' is there twice"),
        ("language:\n  name: [dyck\nmodel: {}\n", "line 3: not YAML"),
    ],
)
def test_says_what_is_wrong_and_where(tmp_path, text, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        read(tmp_path, text)
    assert str(tmp_path / "config.yaml") in str(error.value)


def test_overrides(tmp_path):
    overrides = ["training.max_epochs=3", "language.lengths=[4, 6]", "language.parameters.variant=published"]
    config = read(tmp_path, GOOD, [*overrides, "training.learning_rate=1e-3", "model.stack=superposition-3"])
    assert (config.training.max_epochs, config.language.lengths) == (3, (4, 6))
    assert config.language.parameters == {"variant": "published"}
    assert config.training.learning_rate == 0.001
    assert config.training.clip == 0.1
    assert config.model == LSTMOptions(hidden_size=7, stack="superposition-3")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("max_epochs", "override: expected KEY=VALUE, got 'max_epochs'"),
        ("training.epochs=3", "override 'training.epochs=3': unknown key 'training.epochs'; did you mean"),
        ("model.hidden_size=many", "override 'model.hidden_size=many': model.hidden_size: expected int, got 'many'"),
        ("training.clip=-1", "override 'training.clip=-1': training.clip: expected a positive number"),
        ("language.name.x=3", "override 'language.name.x=3': language.name has no keys"),
        ("language.lengths=[1", "override 'language.lengths=[1': not YAML"),
    ],
)
def test_overrides_say_what_is_wrong(tmp_path, override, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        read(tmp_path, GOOD, [override])


def test_every_cell_of_the_paper_is_there():
    assert len(CELLS) == 30


@pytest.mark.parametrize(("task", "architecture", "count"), CELLS)
def test_shipped_configs_are_the_papers(task, architecture, count):
    config = load_config(CFLConfig, EXPERIMENTS / f"cfl/{task}/{architecture.lower().replace('+', '-')}.yaml")
    assert config.language.name == task
    assert (config.language.lengths, config.language.batch_size) == ((40, 80), 10)
    assert (config.language.train_batches, config.language.validation_batches) == (1000, 100)
    training = config.training
    assert (training.lr_factor, training.lr_patience, training.stop_patience) == (0.9, 5, 10)
    assert (training.clip, training.max_epochs, training.evaluate_every) == (5.0, 200, None)
    assert training.published
    assert config.model.published
    if isinstance(config.model, TransformerOptions):
        assert config.model.dropout == 0.1
    model = build_model(config, len(config.language.make().symbols))
    assert sum(x.numel() for x in model.parameters()) == count


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.rglob("*.yaml")), ids=lambda path: "-".join(path.parts[-2:]))
def test_every_shipped_config_loads(path):
    task = path.relative_to(EXPERIMENTS).parts[0]
    kinds = {"ptb": LMConfig, "wikitext-2": LMConfig, "mt": MTConfig}
    load_config(kinds.get(task, CFLConfig), path)


def test_the_grammar_of_a_file_is_part_of_the_configuration(tmp_path):
    path = tmp_path / "pairs.grammar"
    path.write_text("S -> 'a' S 'b' [0.5] | 'a' 'b' [0.5]\n")
    options = LanguageOptions(str(path))
    assert options.grammar == path.read_text()
    path.unlink()
    assert from_values(LanguageOptions, to_values(options)).make().log_prob("a b") == pytest.approx(math.log(0.5))
    with pytest.raises(FileNotFoundError):
        LanguageOptions(str(path))
    with pytest.raises(ValueError, match="a grammar file has none"):
        replace(options, parameters={"k": 3}).make()
