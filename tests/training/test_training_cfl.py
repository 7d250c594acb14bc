"""The task of modelling context-free languages: loss, cross-entropy differences, validity, and reproducibility."""

import math

import numpy as np
import pytest
import torch
from runs import MODELS, tiny
from torch import nn

from stackattn.languages import evaluation_set, get_language
from stackattn.training import cfl
from stackattn.training.cfl import CFLTask, evaluate_by_length


class Fixed(nn.Module):
    """A model without parameters, whose logits depend on the position and the input."""

    def __init__(self, size):
        super().__init__()
        self.table = torch.randn(20, size, size, generator=torch.Generator().manual_seed(3))

    def forward(self, tokens):
        return self.table[torch.arange(tokens.shape[1]), tokens]


class Perfect(nn.Module):
    """A model with the true distribution, from an enumeration of all strings; all valid lengths are equally likely."""

    def __init__(self, name, lengths):
        super().__init__()
        made = get_language(name)
        self.size = len(made.symbols) + 1
        self.mass = {}
        valid = made.valid_lengths(*lengths)
        for length in valid:
            strings = torch.cartesian_prod(*[torch.arange(self.size - 1)] * length).numpy()
            for string, score in zip(strings, made.log_prob_given_length(list(strings)), strict=True):
                p = math.exp(score) / len(valid)
                path = (*map(int, string), self.size - 1)
                for end in range(len(path) + 1):
                    self.mass[path[:end]] = self.mass.get(path[:end], 0.0) + p

    def forward(self, tokens):
        rows = [
            [
                [
                    self.mass.get((*row[1 : t + 1], symbol), 0.0) / self.mass.get(tuple(row[1 : t + 1]), 1.0)
                    for symbol in range(self.size)
                ]
                for t in range(len(row))
            ]
            for row in tokens.tolist()
        ]
        return torch.tensor(rows, dtype=torch.float64).log()


def test_loss_is_summed_over_symbols_and_eos_and_averaged_over_strings():
    task = CFLTask(tiny())
    model = Fixed(3)
    batch = task.epoch(torch.Generator())[0]
    total = 0.0
    for string in batch.tolist():
        inputs, targets = [2, *string], [*string, 2]  # the id of BOS and EOS follows those of the symbols
        for t, (given, target) in enumerate(zip(inputs, targets, strict=True)):
            total -= model.table[t, given].log_softmax(-1)[target].item()
    assert len(batch) == 4
    assert task.loss(model, batch).item() == pytest.approx(total / 4)


def test_validation_metrics():
    task, model = CFLTask(tiny()), Fixed(3)
    nats = sum(task.loss(model, torch.from_numpy(batch)).item() * len(batch) for batch in task.validation.batches)
    symbols = sum(len(string) + 1 for string in task.validation.strings)
    found = task.evaluate(model)
    # lengths 4, 6 and 8 are equally likely, and the symbols of the first half are uniform and determine the second
    bound = sum(len(string) / 2 * math.log(2) + math.log(3) for string in task.validation.strings) / symbols
    assert found["cross_entropy"] == found["score"] == pytest.approx(nats / symbols)
    assert task.lower_bound == pytest.approx(bound)
    assert found["cross_entropy_difference"] == pytest.approx(nats / symbols - bound)
    published = CFLTask(tiny(plateau="pytorch")).evaluate(model)
    assert published["score"] == pytest.approx(math.exp(nats / symbols))
    assert published["cross_entropy"] == found["cross_entropy"]


@pytest.mark.parametrize("name", ["unmarked-reversal", "marked-reversal"])
def test_a_perfect_model_has_no_difference(name):
    config = tiny(language={"name": name})
    found = CFLTask(config).evaluate(Perfect(name, config.language.lengths))
    assert found["cross_entropy_difference"] == pytest.approx(0, abs=1e-9)
    assert CFLTask(config).evaluate(Fixed(4))["cross_entropy_difference"] > 0.1


def test_differences_by_length():
    """`difference` includes the ln(3) nats that a perfect model needs to predict one of three lengths."""
    language = get_language("unmarked-reversal")
    found = evaluate_by_length(Perfect("unmarked-reversal", (4, 8)), language, (4, 8), (4, 8), per_length=5, seed=1)
    assert [row["length"] for row in found["lengths"]] == [4, 6, 8]
    for row in found["lengths"]:
        length = row["length"]
        assert row["lower_bound"] == pytest.approx(length / 2 * math.log(2) / (length + 1))
        assert row["difference"] == pytest.approx(math.log(3) / (length + 1))
        assert row["difference_from_floor"] == pytest.approx(0, abs=1e-9)
        assert row["validity"] == pytest.approx(1, abs=1e-12)
        assert row["flawless"] == 1


def test_the_size_of_validation_batches_is_limited_and_does_not_change_the_score(monkeypatch):
    config = tiny(language={"lengths": (6, 6), "validation_batches": 4})
    expected = CFLTask(config).evaluate(config.build_model(4).eval())
    monkeypatch.setattr(cfl, "VALIDATED_AT_A_TIME", 3)
    model, sizes = config.build_model(4).eval(), []
    model.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    found = CFLTask(config).evaluate(model)
    assert max(sizes) == 3
    assert sum(sizes) == 4 * config.language.batch_size > 3
    assert found["cross_entropy"] == pytest.approx(expected["cross_entropy"], rel=1e-6)


def test_validity_is_the_probability_of_the_possible_symbols():
    """A model that always gives symbol 1 of (0, 1, #, EOS) probability 0.7 and the others 0.1 each."""

    class Constant(nn.Module):
        def forward(self, tokens):
            return torch.tensor([0.1, 0.7, 0.1, 0.1]).log().expand(*tokens.shape, 4)

    language = get_language("marked-reversal")
    found = evaluate_by_length(Constant(), language, (3, 9), (3, 9), per_length=40, step=3)
    assert [row["length"] for row in found["lengths"]] == [3, 7, 9]
    for row, strings in zip(found["lengths"], evaluation_set(language, 0, (3, 9), 40, 3).batches, strict=True):
        half = row["length"] // 2
        second_half = np.where(strings[:, half + 1 :] == 1, 0.7, 0.1).sum(1)
        expected = ((half + 1) * 0.9 + second_half + 0.1) / (row["length"] + 1)
        assert row["validity"] == pytest.approx(expected.mean())
        assert row["flawless"] == 0  # after the last symbol, only EOS is possible


def test_lengths_not_seen_in_training_have_no_floor():
    found = evaluate_by_length(Fixed(3), get_language("unmarked-reversal"), (6, 8), (4, 10), per_length=5)
    floors = {row["length"]: row["difference_from_floor"] for row in found["lengths"]}
    assert [floors[4], floors[10]] == [None, None]
    assert None not in (floors[6], floors[8])


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_seeds_determine_data_and_order():
    def order(config, epoch_seed=7):
        return list(CFLTask(config).epoch(torch.Generator().manual_seed(epoch_seed)))

    lengths = {"lengths": [8, 8]}  # one length, so that strings of different sets can be compared
    assert same(order(tiny(language=lengths)), order(tiny(language=lengths)))
    assert not same(order(tiny(language=lengths)), order(tiny(language={**lengths, "seed": 1})))
    assert not same(order(tiny(language=lengths)), order(tiny(language=lengths), 8))
    task = CFLTask(tiny(language=lengths))
    assert not same(task._batches, [torch.from_numpy(x) for x in task.validation.batches] + task._batches[4:])


@pytest.mark.parametrize("model", MODELS)
def test_seeds_determine_the_initial_parameters(model):
    first, again, other = (tiny(model, init_seed=seed).build_model(2).state_dict() for seed in (1, 1, 2))
    assert same(first.values(), again.values())
    assert not same(first.values(), other.values())
