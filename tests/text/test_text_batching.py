"""Batches by tokens: each example once, within the budget; as full as possible, or shuffled by a generator."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stackattn.text.batching import pad, token_batches

EXAMPLES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=40)


@given(EXAMPLES, st.integers(1, 100), st.none() | st.integers(0, 5))
def test_each_example_is_in_one_batch_within_the_budget(examples, budget, seed):
    lengths, costs = [a for a, _ in examples], [b for _, b in examples]
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    batches = token_batches(lengths, costs, budget, generator)
    assert sorted(i for batch in batches for i in batch) == list(range(len(examples)))
    in_order = sorted(batches, key=lambda batch: lengths[batch[0]])
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(costs[i] for i in batch) <= budget
        assert [lengths[i] for i in batch] == sorted(lengths[i] for i in batch)
    if generator is None:
        assert batches == in_order
        for batch, following in pairwise(batches):  # as large as possible
            assert (len(batch) + 1) * max(costs[i] for i in [*batch, following[0]]) > budget


def test_a_generator_shuffles_batches_and_examples_of_the_same_length():
    lengths = [n for n in range(1, 11) for _ in range(20)]
    made = [token_batches(lengths, lengths, 40, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
    first = [lengths[batch[0]] for batch in made[0]]
    assert first != sorted(first)
    assert sorted(map(sorted, made[0])) != sorted(map(sorted, made[2]))  # the batches contain different examples


def test_invalid_budget():
    with pytest.raises(ValueError, match="budget: expected at least 1 token, got 0"):
        token_batches([1], [1], 0)


def test_padding():
    tokens, lengths = pad([[3, 4, 5], [], [6]], value=9)
    assert tokens.tolist() == [[3, 4, 5], [9, 9, 9], [6, 9, 9]]
    assert lengths.tolist() == [3, 0, 1]
    assert pad([])[0].shape == (0, 0)
