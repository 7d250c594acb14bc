"""Logits of any size: the results are correct, or zero if no run is left."""

from functools import cache

import pytest
import torch
from oracles import decoy, log_space_weights, random_transitions, with_gradients
from stacks import BACKENDS, FAST, Nondeterministic, assert_close, in_chunks, operator, seeded, widened

STACK = Nondeterministic(2, 3)


@cache
def random_case(*arguments, tied=False):
    """Inputs, and the results of the log-space oracle."""
    inputs = random_transitions(*arguments[:6], seeded(), *arguments[6:], tied=tied)
    return inputs, with_gradients(log_space_weights, [x.double() for x in inputs])


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("scale", [1, 10, 100, 1000])
@pytest.mark.parametrize("forbidden", [0, 0.5])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("T", "Q", "S"), [(12, 2, 3), pytest.param(40, 3, 3, marks=pytest.mark.slow)])
def test_logits_of_any_scale(T, Q, S, scale, forbidden, tied, backend):
    inputs, expected = random_case(1, T, Q, S, scale, forbidden, tied=tied)
    # Where one run has nearly all the weight, gradients are differences of nearly equal numbers.
    assert_close(results(inputs, backend), expected, 1e-7, floor=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("T", "Q", "S", "backend"),
    [(100, 2, 3, "torch"), (100, 2, 3, "cpp")]
    + [pytest.param(*case, marks=pytest.mark.full) for case in [(300, 1, 2, "torch"), (300, 2, 1, "cpp")]],
)
@pytest.mark.parametrize("scale", [1, 1000])
def test_long_sequences(T, Q, S, scale, backend):
    inputs, expected = random_case(1, T, Q, S, scale, 0.2, tied=True)
    assert_close(results(inputs, backend), expected, 1e-7)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("scale", [30, 1000])
def test_float32_logits_of_any_scale(scale, backend):
    inputs, expected = random_case(2, 12, 2, 2, scale, 0.3, torch.float32, tied=True)
    assert_close(results(inputs, backend), expected, 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1e30, -1e30, 1e300])
def test_a_large_constant_in_all_logits_of_a_step_cancels(size, backend):
    inputs = [torch.zeros_like(x) for x in random_transitions(2, 6, 2, 2, 1, 0, seeded())]
    expected = with_gradients(log_space_weights, inputs)
    for x in inputs:
        x[:, 1::2] += size
    assert_close(results(inputs, backend), expected, 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1e15, 1e30])
def test_rows_sum_to_one_for_large_logits(size, backend):
    inputs = random_transitions(2, 6, 2, 3, size, 0, seeded(), tied=True)
    assert (results(inputs, backend)[0].sum((2, 3, 4)) - 1).abs().max() < 1e-9


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("deeper", [1e12, 1e30])
def test_logits_far_below_the_largest_of_their_step_are_zero(deeper, backend):
    """The log weights of all runs are far below those of the transitions from a state that no run reaches."""
    inputs = [torch.zeros_like(x) for x in STACK.inputs(1, 5)]
    for x in inputs[:2]:
        x[:, :, :, :, 1] = -torch.inf
    inputs[2][..., 1] = -torch.inf
    for x in inputs:
        x[:, 2, 0] -= deeper
    weights = results(inputs, backend)[0]
    assert_close([weights.sum((2, 3, 4))[0]], [torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0])], 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("deeper", [-200.0, 0.0, 35.0, 5000.0])
@pytest.mark.parametrize(("T", "Q"), [(2, 1), (5, 2), (12, 1)])
def test_decoy(T, Q, deeper, backend):
    """A run of weight 1 ends at the last step; of the other two, float64 holds both, only the heavier one, or none."""
    inputs, weights = decoy(T, deeper, Q)
    found = results(inputs, backend)
    assert_close(found[:1], [weights], 1e-7)
    assert_close(found, with_gradients(log_space_weights, inputs), 1e-7)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("deeper", [1e6, 1e9])
def test_decoy_with_very_small_weights(deeper, backend):
    """Exponents are exact; a logit of 1e9 itself has only seven decimal places in float64."""
    inputs, weights = decoy(9, deeper)
    assert_close(results(inputs, backend)[:1], [weights], deeper * 1e-15)


@pytest.mark.parametrize("backend", FAST)
def test_decoy_does_not_change_other_sequences(backend):
    """The sequences of a batch are computed with different arithmetic."""
    hidden, easy = decoy(9)[0], random_transitions(2, 9, 1, 3, generator=seeded())
    together = results([torch.cat([a[:1], b, a[1:]]) for a, b in zip(easy, hidden, strict=True)], backend)
    for index, alone in [(0, [x[:1] for x in easy]), (1, hidden), (2, [x[1:] for x in easy])]:
        upstream = default_upstream(together[0])[index : index + 1]
        assert_close([x[index : index + 1] for x in together], results(alone, backend, upstream), 1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("end", [0, 3, 6])
def test_rows_that_no_run_reaches_are_zero(end, backend):
    inputs = STACK.inputs(2, 7)
    for x in inputs:
        x[1, end] = -torch.inf
    found = results(inputs, backend)
    assert not found[0][1, end:].any()
    assert not any(x[1, end:].any() for x in found[1:])
    assert_close(found, with_gradients(log_space_weights, inputs), 1e-9)
    assert_close([found[0].sum((2, 3, 4))[1, :end]], [torch.ones(end)], 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_popping_the_bottom_ends_a_run(backend):
    """Only pops are left, and there is one element to pop besides the bottom."""
    log_push, log_replace, log_pop = STACK.inputs(1, 3)
    log_push[:, 1:] = log_replace[:, 1:] = -torch.inf
    found = results([log_push, log_replace, log_pop], backend)
    assert found[0][0, 1].sum() == pytest.approx(1)
    assert not found[0][0, 2].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("size", "tolerance"), [(1.0, 1e-12), (1e4, 1e-9), (1e8, 1e-5)])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_a_constant_per_step_changes_nothing(scale, size, tolerance, backend):
    """Only the rounding of the logits themselves changes."""
    inputs = Nondeterministic(2, 3, scale).inputs(2, 6)
    constants = size * torch.randn(2, 6, generator=seeded(1), dtype=torch.float64)
    moved = [x + constants[(...,) + (None,) * (x.dim() - 2)] for x in inputs]
    assert_close(results(moved, backend), results(inputs, backend), tolerance, floor=1e-3)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1e5, 1e30, "largest"])
def test_a_mask_of_large_numbers_is_as_good_as_infinity(size, dtype, backend):
    size = torch.finfo(dtype).max if size == "largest" else size
    inputs = random_transitions(2, 12, 2, 2, 1.0, 0.4, seeded(), dtype)
    masked = [x.clamp(min=-size) for x in inputs]
    assert_close(results(masked, backend), results(inputs, backend), 1e-12)


def results(inputs, backend, upstream=None):
    return with_gradients(operator(STACK, backend), inputs, upstream)


def default_upstream(weights):
    return torch.randn(weights.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("sizes", [[1] * 12, [4, 3, 5], [12]], ids=str)
@pytest.mark.parametrize("trouble", ["scale", "decoy", "end"])
def test_trouble_in_the_middle_of_a_state(trouble, sizes, backend):
    """One sequence of the batch leaves the range of float64 at its sixth step, or has no transitions from there on."""
    stack = Nondeterministic(1, 3)
    inputs = stack.inputs(3, 12)
    for x, hidden in zip(inputs, decoy(3)[0], strict=True):
        if trouble == "scale":
            x[1, 5:8] *= 2000.0
        elif trouble == "decoy":
            x[1, 5:8] = hidden[0]
        else:
            x[1, 5:] = -torch.inf
    expected = with_gradients(operator(stack, backend), inputs)
    assert_close(with_gradients(in_chunks(stack, backend, sizes), inputs), expected, 1e-9)
    assert expected[0][1, 5:].any() == (trouble != "end")


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("index", [[0, 1, 2], [1, 1, 0, 2], [0]], ids=str)
def test_states_out_of_range_are_values(index, backend):
    """After a sequence has left the range of float64, states can be reordered, detached, moved and branched."""
    stack, index = Nondeterministic(1, 3), torch.tensor(index)
    inputs, later = stack.inputs(3, 8), stack.inputs(len(index), 3, seed=1)
    for x, hidden in zip(inputs, decoy(3)[0], strict=True):
        x[1, 5:] = hidden[0]

    def by_state(*inputs):
        _, state = stack.state(3, backend).extend(*(x[:, :5] for x in inputs))
        _, state = state.extend(*(x[:, 5:] for x in inputs))
        rows, state = state.to("cpu").reorder(index).extend(*later)
        again, _ = state.detach().extend(*later)
        return torch.cat([widened(rows, again.shape[2]), again], 1)

    def by_operator(*inputs):
        whole = [torch.cat([x[index], y, y], 1) for x, y in zip(inputs, later, strict=True)]
        rows = operator(stack, backend)(*whole)
        return torch.cat([rows[:, 8:11], rows[:, 11:].detach()], 1)

    assert_close(with_gradients(by_state, inputs), with_gradients(by_operator, inputs), 1e-9)


@pytest.mark.parametrize("backend", FAST)
def test_bfloat16_gradients_of_a_state_out_of_range_are_rounded_once(backend):
    """Rows out of range are computed from the first step, so a step gets a gradient from each of the later calls."""
    stack = Nondeterministic(1, 3)
    inputs = stack.inputs(2, 12, dtype=torch.bfloat16)
    for x, hidden in zip(inputs, decoy(3)[0], strict=True):
        x[1, 5:8] = hidden[0]
    upstream = default_upstream(operator(stack, backend)(*inputs)).bfloat16()
    found = with_gradients(in_chunks(stack, backend, [1] * 12), inputs, upstream)
    expected = with_gradients(operator(stack, backend), [x.double() for x in inputs], upstream)
    for a, b in zip(found, expected, strict=True):
        assert ((a.double() - b).abs() <= 0.51 * torch.finfo(torch.bfloat16).eps * b.abs() + 1e-6).all()
