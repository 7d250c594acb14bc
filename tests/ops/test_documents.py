"""Packed documents: each document has the same results and gradients as when it is computed alone."""

from itertools import pairwise

import pytest
import torch
from oracles import with_gradients
from stacks import Nondeterministic, assert_close, seeded

from stackattn import (
    NondeterministicReadingState,
    NondeterministicState,
    SuperpositionReadingState,
    SuperpositionState,
    by_documents,
    nondeterministic_readings,
    nondeterministic_weights,
    stratified_readings,
    superposition_readings,
)

STARTS = torch.tensor([[1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [1] + [0] * 10]).bool()
LENGTHS = torch.tensor([9, 11, 4])


def inputs(B=3, T=11, m=2):
    logits = torch.randn(B, T, 3, generator=seeded(), dtype=torch.float64)
    return [logits.softmax(-1), torch.randn(B, T, m, generator=seeded(1), dtype=torch.float64)]


def documents(starts, lengths, T):
    """The row and the steps of each document."""
    for b, n in enumerate([T] * len(starts) if lengths is None else lengths.tolist()):
        begins = [t for t in range(n) if t == 0 or starts[b, t]]
        yield from ((b, slice(first, last)) for first, last in pairwise([*begins, n]))


def one_by_one(function, starts, lengths, size=2):
    def run(*tensors):
        result = tensors[1].new_zeros(*tensors[0].shape[:2], size)
        for b, steps in documents(starts, lengths, starts.shape[1]):
            result[b, steps] = function(*(x[b : b + 1, steps] for x in tensors))[0]
        return result

    return run


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "lengths"])
def test_packed_documents_equal_the_documents_one_by_one(lengths):
    packed = lambda *x: by_documents(superposition_readings, STARTS, *x, lengths=lengths)  # noqa: E731
    expected = with_gradients(one_by_one(superposition_readings, STARTS, lengths), inputs())
    assert_close(with_gradients(packed, inputs()), expected, 1e-12)


def test_padding_is_ignored():
    tensors = inputs()
    for x in tensors:
        x[torch.arange(11) >= LENGTHS[:, None]] = torch.nan
    found = by_documents(superposition_readings, STARTS, *tensors, lengths=LENGTHS)
    assert found.isfinite().all()
    assert (found[torch.arange(11) >= LENGTHS[:, None]] == 0).all()
    assert (by_documents(superposition_readings, STARTS, *tensors, lengths=0 * LENGTHS) == 0).all()


def test_results_of_padding_are_zero_if_each_row_is_one_document():
    found = by_documents(lambda x, lengths: x + 1.0, torch.zeros(3, 11).bool(), torch.ones(3, 11), lengths=LENGTHS)
    assert torch.equal(found, 2.0 * (torch.arange(11) < LENGTHS[:, None]))


def test_one_document_in_each_row_is_one_call():
    calls = []

    def count(actions, values, lengths):
        calls.append(lengths)
        return superposition_readings(actions, values, lengths)

    starts = torch.zeros(3, 11, dtype=torch.bool)
    by_documents(count, starts, *inputs())
    assert calls == [None]
    by_documents(count, STARTS, *inputs())
    assert len(calls) == 1 + 4  # documents of 1 step, of 3, of 7, and of 10 or 11 steps


def test_batches_have_at_most_twice_the_steps_of_their_documents():
    starts, sizes = torch.rand(8, 100, generator=seeded()) < 0.1, []

    def measure(x, lengths):
        sizes.append((x.shape[0] * x.shape[1], int(lengths.sum())))
        return x

    x = torch.randn(8, 100, 3)
    assert torch.equal(by_documents(measure, starts, x), x)
    assert sum(used for _, used in sizes) == 800
    assert all(padded <= 2 * used for padded, used in sizes)


def test_other_operators():
    push, pop, values = torch.rand(3, 11), torch.rand(3, 11), torch.randn(3, 11, 2)
    found = by_documents(stratified_readings, STARTS, push, pop, values)
    for b, steps in documents(STARTS, None, 11):
        alone = stratified_readings(*(x[b : b + 1, steps] for x in (push, pop, values)))
        torch.testing.assert_close(found[b : b + 1, steps], alone)


def test_an_empty_row_beside_two_documents():
    starts, lengths = torch.tensor([[1, 0, 0, 0, 0], [1, 0, 0, 1, 0]]).bool(), torch.tensor([0, 5])
    tensors = inputs(2, 5)
    found = by_documents(superposition_readings, starts, *tensors, lengths=lengths)
    assert_close([found], [one_by_one(superposition_readings, starts, lengths)(*tensors)], 1e-12)


@pytest.mark.parametrize(
    ("error", "starts", "message"),
    [
        (TypeError, STARTS.long(), "starts: expected a bool tensor, got torch.int64"),
        (TypeError, [True], "starts: expected a bool tensor, got list"),
        (ValueError, STARTS[:, 1:], r"starts: expected shape \(3, 11\), got \(3, 10\)"),
        (ValueError, STARTS.to("meta"), "starts: expected device cpu like the other arguments, got meta"),
    ],
)
def test_wrong_starts(error, starts, message):
    with pytest.raises(error, match=message):
        by_documents(superposition_readings, starts, *inputs())


@pytest.mark.parametrize("backend", ["torch", "cpp"])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "lengths"])
@pytest.mark.parametrize("window", [None, 3])
def test_starts_in_states_equal_the_documents_one_by_one(window, lengths, backend):
    """`window` is None for a superposition stack with depth 4."""
    if window is None:
        tensors = inputs()
        state = SuperpositionReadingState.empty(3, 2, depth=4, dtype=torch.float64, backend=backend)
        alone = lambda *x: superposition_readings(*x, depth=4)  # noqa: E731
    else:
        bottom = torch.randn(1, 2, generator=seeded(2), dtype=torch.float64)
        tensors = [*Nondeterministic(2, 2).inputs(3, 11), inputs()[1]]
        state = NondeterministicReadingState.empty(bottom.expand(3, 2), 2, 2, window=window, backend=backend)

        def alone(*x):
            return nondeterministic_readings(*x[:3], torch.cat([bottom[None], x[3]], 1), window=window).flatten(2)

    def packed(*tensors):
        _, after = state.extend(*(x[:, :4] for x in tensors))  # these steps belong to other documents
        after = after.restart(torch.tensor([False, True, True]))
        return after.extend(*tensors, lengths, starts=STARTS)[0].flatten(2)

    expected = with_gradients(one_by_one(alone, STARTS, lengths, 2 if window is None else 8), tensors)
    assert_close(with_gradients(packed, tensors), expected, 1e-12)


@pytest.mark.parametrize("backend", ["torch", "cpp"])
@pytest.mark.parametrize("hidden", [False, True], ids=["plain", "computed from the history"])
def test_restarted_states_that_return_weights(backend, hidden):
    """Weights of a restarted stack refer only to new elements and to the bottom."""
    transitions = Nondeterministic(2, 3, hidden=hidden).inputs(2, 6)
    first, second = [x[:, :4] for x in transitions], [x[:, 4:] for x in transitions]
    empty = NondeterministicState.empty(2, 2, 3, backend=backend)
    _, state = empty.extend(*first)
    weights, _ = state.restart(torch.tensor([True, False])).extend(*second)
    expected = nondeterministic_weights(*transitions)[1, 4:]
    torch.testing.assert_close(weights[1], expected)
    alone = nondeterministic_weights(*second)[0]
    torch.testing.assert_close(weights[0, :, [0, 5, 6]], alone)
    assert weights[0, :, 1:5].count_nonzero() == 0
    _, state = SuperpositionState.empty(2, backend=backend).extend(inputs(2, 4)[0])
    weights, _ = state.restart(torch.tensor([True, False])).extend(inputs(2, 2)[0])
    assert weights[0, :, :4].count_nonzero() == 0
    assert weights[1, :, :4].count_nonzero() > 0


def test_wrong_rows_to_restart():
    state = SuperpositionState.empty(2)
    wrong = ((torch.tensor([True]), ValueError), (torch.tensor([0, 1]), TypeError), ([True, False], TypeError))
    for rows, error in wrong:
        with pytest.raises(error, match=r"rows: expected a bool tensor of shape \(2,\), got "):
            state.restart(rows)
