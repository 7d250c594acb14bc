"""The shipped configurations: each one loads, and those of the paper have its sizes and settings."""

from dataclasses import replace

import pytest
import torch

from stackattn.config import ConfigError, from_values
from stackattn.models import TransformerArchitecture
from stackattn.paper.configurations import configuration_names, find_configuration, load_configuration
from stackattn.paper.experiments import TARGETS
from stackattn.paper.models import MT_TYPES, PTB_TYPES, count_parameters, paper_models
from stackattn.paper.names import LABELS, SLUGS
from stackattn.text.vocabulary import Vocabulary
from stackattn.training import lm

COMMANDS = {"demo": "cfl", **{name: target.command for name, target in TARGETS.items() if target.trains}}
LANGUAGES = [(task, SLUGS[label], count) for table, task, label, count in paper_models() if table == "Table 5"]
PTB = [(SLUGS[label], count) for _, task, label, count in paper_models() if task == "ptb"]
MT = [(task[3:], SLUGS[label], count) for table, task, label, count in paper_models() if table == "Table 3"]


def load(name, preset=None):
    return load_configuration(COMMANDS[name.split("/")[0]], name, preset=preset)


def test_every_cell_has_a_configuration():
    cells = {
        f"{target.configs}/{task}/{model}"
        for target in TARGETS.values()
        for task in target.tasks + target.other_tasks
        for model in target.models
    }
    assert set(configuration_names()) == cells | {"demo/tf", "demo/tf-nd", "demo/nd"}
    assert len(cells) == 30 + 10 + 6 + 12 + 18 + 3 + 8


@pytest.mark.parametrize("name", configuration_names())
def test_every_configuration_loads(name):
    load(name)


@pytest.mark.parametrize(("task", "model", "count"), LANGUAGES)
def test_figure_2(task, model, count):
    config = load(f"figure-2/{task}/{model}")
    assert config.language.name == task
    assert (config.language.lengths, config.language.batch_size) == ((40, 80), 10)
    assert (config.language.train_batches, config.language.validation_batches) == (1000, 100)
    training = config.training
    assert (training.lr_factor, training.lr_patience, training.stop_patience) == (0.9, 5, 10)
    assert (training.clip, training.max_epochs, training.evaluate_every) == (5.0, 200, None)
    assert training.plateau == "pytorch"
    if isinstance(config.model, TransformerArchitecture):
        assert config.model.dropout == 0.1
        assert config.model.push_activation == "published"
    else:
        assert config.model.stack_init == "uniform"
    built = config.build_model(len(config.language.make().symbols))
    assert sum(x.numel() for x in built.parameters()) == count


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize(("model", "count"), PTB)
def test_table_2(model, count, published):
    config = load(f"table-2/ptb/{model}", None if published else "paper")
    vocabulary = Vocabulary(tuple(map(str, range(PTB_TYPES))))
    with torch.device("meta"):
        assert sum(x.numel() for x in config.build_model(vocabulary).parameters()) == count
    assert vocabulary.output_size == 23833
    assert config.data.batch_tokens_range == (128, 512)
    training = config.training
    assert (training.learning_rates, training.evaluate_every, training.max_epochs) == ((1e-6, 1e-4), 20_000, 10_000)
    assert (training.lr_factor, training.lr_patience, training.stop_patience, training.clip) == (0.5, 2, 4, 5.0)
    assert (config.model.heads, config.model.dropout, config.model.init_range) == (8, 0.1, 0.01)
    assert config.data.count_bos != published
    assert config.model.push_activation == ("published" if published else "sigmoid")
    assert config.training.plateau == ("pytorch" if published else "paper")
    if not published:  # the defaults are the paper's
        values = {"data": {"folder": "data/ptb"}, "model": {"layers": config.model.layers}}
        assert from_values(lm.LMConfig, values) == config


@pytest.mark.parametrize(("tier", "model", "count"), MT)
def test_table_3(tier, model, count):
    class Tokenizer:
        input_size, output_size = MT_TYPES + 3, MT_TYPES + 1

    config = load(f"table-3/{tier}/{model}")
    with torch.device("meta"):
        built = config.build_model(Tokenizer())
    assert count_parameters(built.config) == count
    training = config.training
    assert (training.learning_rates, training.evaluate_every) == ((1e-5, 1e-3), 50_000)
    assert (training.lr_factor, training.lr_patience, training.stop_patience) == (0.5, 2, 4)
    assert training.plateau == "pytorch"
    assert config.model.push_activation == "published"
    assert config.model.init_range == 0.01
    assert (config.data.batch_tokens, config.data.label_smoothing) == (2048, 0.1)


@pytest.mark.parametrize(
    "task", ["table-2/wikitext-2", "table-3/small", "sentences/wikitext-2", "sentences/ptb-sample"]
)
def test_models_of_the_small_tasks_differ_only_in_their_layers(task):
    configs = [load(f"{task}/{model}") for model in ("tf", "tf-sup", "tf-nd")]
    assert len({replace(x, model=replace(x.model, layers="1")) for x in configs}) == 1
    assert len({x.model.layers for x in configs}) == 3


@pytest.mark.parametrize("task", ["wikitext-2", "ptb-sample"])
def test_the_control_differs_from_tf_only_in_the_initialisation_of_its_middle_layer(task):
    control = load(f"sentences/{task}/tf-xavier")
    assert control.model.xavier_layer == 2
    assert replace(control, model=replace(control.model, xavier_layer=None)) == load(f"sentences/{task}/tf")


def test_configurations_are_found_by_path_and_by_name(tmp_path):
    path = tmp_path / "own.yaml"
    path.touch()
    assert find_configuration(str(path)) == path
    assert find_configuration("figure-2/dyck/tf").name == "tf.yaml"
    with pytest.raises(FileNotFoundError, match="did you mean 'figure-2/dyck/tf-nd'"):
        find_configuration("figure-2/dick/tf-nd")
    with pytest.raises(FileNotFoundError, match=r"got 'nowhere\.yaml'; `stackattn config list`"):
        find_configuration("nowhere.yaml")
    assert set(LABELS) == set(TARGETS["figure-2"].models)


def test_a_shipped_configuration_of_another_command():
    with pytest.raises(ConfigError, match=r"unknown key 'data'.*belongs to a command other than cfl"):
        load_configuration("cfl", "table-2/ptb/tf-nd")


def test_a_key_below_a_number_is_located_at_its_option():
    with pytest.raises(
        ConfigError, match=r"^overrides: 'training.learning_rate.x=3': training.learning_rate: expected float"
    ):
        load_configuration("cfl", "figure-2/dyck/tf-nd", ["training.learning_rate.x=3"])
