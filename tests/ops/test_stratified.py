"""The stratified stack: the closed form against the literal recurrence, and its states."""

import pytest
import torch
from oracles import with_gradients
from stacks import assert_close, in_chunks, seeded
from torch.utils.checkpoint import checkpoint

from stackattn import StratifiedState, stratified_readings, stratified_weights


class Stratified:
    """The part of the interface of `stacks.Stack` that `in_chunks` uses."""

    def state(self, B, backend):
        return StratifiedState.empty(B)


def arguments(B, T, seed=0):
    return list(torch.rand(2, B, T, generator=seeded(seed), dtype=torch.float64))


def weights(backend, lengths=None):
    return lambda push, pop: stratified_weights(push, pop, lengths, backend=backend)


def slices(push, pop):
    """The last row of weights, computed with a Python list of slices of strength 1/1000."""
    stack = []
    for t, (a, b) in enumerate(
        zip((1000 * push).round().int().tolist(), (1000 * pop).round().int().tolist(), strict=True)
    ):
        del stack[max(0, len(stack) - b) :]
        stack += [t] * a
    return [stack[-1000:].count(t) / 1000 for t in range(len(push))]


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_a_stack_of_thin_slices(backend):
    push, pop = (x.mul(1000).round() / 1000 for x in arguments(3, 12))
    found = stratified_weights(push, pop, backend=backend)
    for b in range(3):
        for t in range(12):
            expected = torch.tensor(slices(push[b, : t + 1], pop[b, : t + 1]), dtype=torch.float64)
            torch.testing.assert_close(found[b, t, : t + 1], expected, atol=1e-9, rtol=0)
            assert (found[b, t, t + 1 :] == 0).all()


@pytest.mark.parametrize("T", [0, 2, 7, 30])
def test_closed_form_equals_the_recurrence(T):
    inputs = arguments(3, T)
    assert_close(with_gradients(weights("auto"), inputs), with_gradients(weights("reference"), inputs), 1e-12)


def test_hard_strengths_equal_a_hard_stack():
    """Push a, push b, pop b, replace a with c."""
    push = torch.tensor([[1.0, 1.0, 0.0, 1.0]], dtype=torch.float64)
    pop = torch.tensor([[0.0, 0.0, 1.0, 1.0]], dtype=torch.float64)
    expected = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]], dtype=torch.float64)
    assert torch.equal(stratified_weights(push, pop)[0], expected)


def test_rows_sum_to_at_most_one():
    found = stratified_weights(*arguments(4, 40))
    assert (found >= 0).all()
    assert (found.sum(-1) <= 1 + 1e-12).all()


@pytest.mark.parametrize("sizes", [[1] * 8, [3, 0, 1, 4], [8]])
def test_full_pass_equals_any_chunks(sizes):
    inputs = arguments(2, 8)
    expected = with_gradients(weights("torch"), inputs)
    assert_close(with_gradients(in_chunks(Stratified(), "auto", sizes), inputs), expected, 1e-12)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_lengths(backend):
    T, lengths = 7, torch.tensor([7, 3, 0])
    inputs = arguments(3, T)
    spoilt = [x.masked_fill(torch.arange(T) >= lengths[:, None], torch.nan) for x in inputs]
    found = with_gradients(weights(backend, lengths), spoilt)
    upstream = torch.randn(found[0].shape, generator=seeded(1), dtype=torch.float64)
    for b, n in enumerate(lengths.tolist()):
        expected = with_gradients(weights("reference"), [x[b : b + 1, :n] for x in inputs], upstream[b : b + 1, :n, :n])
        assert_close([found[0][b : b + 1, :n, :n]], expected[:1], 1e-12)
        assert_close([x[b : b + 1, :n] for x in found[1:]], expected[1:], 1e-12)
        assert all((x[b, n:] == 0).all() for x in found)


def test_states_branch_reorder_and_keep_strengths():
    push, pop = arguments(3, 6)
    _, state = StratifiedState.empty(3).extend(push[:, :3], pop[:, :3])
    index = torch.tensor([2, 0, 2])
    found, _ = state.reorder(index).extend(push[index, 3:], pop[index, 3:])
    torch.testing.assert_close(found, stratified_weights(push, pop)[index, 3:])
    _, state = state.extend(push[:, 3:], pop[:, 3:], torch.tensor([3, 0, 1]))
    strengths = state.strengths
    assert (strengths >= 0).all()
    assert (strengths[1, 3:] == 0).all()
    torch.testing.assert_close(state.detach().strengths, strengths)


def test_gradients_transforms_and_checkpointing():
    inputs = [x.requires_grad_() for x in arguments(2, 5)]
    assert torch.autograd.gradcheck(weights("auto"), inputs)
    y = checkpoint(weights("auto"), *inputs, use_reentrant=False)
    expected = torch.autograd.grad(weights("auto")(*inputs).square().sum(), inputs)
    assert_close(list(torch.autograd.grad(y.square().sum(), inputs)), list(expected), 1e-14)
    grads = torch.func.vmap(torch.func.grad(lambda *x: weights("auto")(*x).square().sum(), (0, 1)))(
        *(x.detach()[:, None] for x in inputs)
    )
    assert_close([x[:, 0] for x in grads], list(expected), 1e-12)


@pytest.mark.slow
def test_compile():
    torch._dynamo.reset()
    inputs, lengths = arguments(2, 5), torch.tensor([5, 3])
    compiled = torch.compile(weights("auto", lengths), fullgraph=True, backend="aot_eager")
    assert_close(with_gradients(compiled, inputs), with_gradients(weights("auto", lengths), inputs), 1e-12)


def test_long_sequences_in_low_precision():
    """Sums of many strengths are computed in float64."""
    inputs = [x.float() for x in arguments(1, 2000)]
    found = stratified_weights(*inputs)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, stratified_weights(*(x.double() for x in inputs)).float(), atol=1e-6, rtol=0)
    assert stratified_weights(*(x.bfloat16() for x in inputs)).dtype == torch.bfloat16


def test_ten_thousand_steps_for_any_number_of_threads(threads):
    """Results are finite and bitwise equal.

    Steps are processed in chunks, because the weights of all steps take O(T^2) memory.
    """
    push, pop = (x.float().requires_grad_() for x in arguments(1, 10_000))
    results = []
    for count in (1, 2, 3):
        threads(count)
        state = StratifiedState.empty(1)
        for steps in torch.arange(10_000).split(500):
            state = state.detach()
            rows, state = state.extend(push[:, steps], pop[:, steps])
        results.append([rows, *torch.autograd.grad(rows.square().sum(), (push, pop))])
    assert all(x.isfinite().all() and (x != 0).any() for x in results[0])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_bfloat16_strengths():
    inputs = [x.bfloat16() for x in arguments(2, 9)]
    found = with_gradients(weights("auto"), inputs)
    assert all(x.dtype == torch.bfloat16 for x in found)
    expected = with_gradients(weights("reference"), [x.double() for x in inputs])
    assert_close([x.double() for x in found], expected, 2e-2)


def test_readings_are_weights_times_values():
    push, pop = arguments(2, 6)
    values, lengths = torch.randn(2, 6, 3, dtype=torch.float64), torch.tensor([6, 2])
    values[1, 2:] = torch.nan
    found = stratified_readings(push, pop, values, lengths)
    torch.testing.assert_close(found, stratified_weights(push, pop, lengths) @ values.nan_to_num())


PUSH = torch.full((2, 4), 0.5)


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [
        (ValueError, lambda: stratified_weights(PUSH[0], PUSH[0]), r"push: expected shape \(B, T\), got \(4,\)"),
        (ValueError, lambda: stratified_weights(PUSH, PUSH[:, 1:]), r"pop: .* \(2, 4\) like push, got \(2, 3\)"),
        (TypeError, lambda: stratified_weights(PUSH.long(), PUSH), "push: expected one of float32"),
        (
            ValueError,
            lambda: stratified_weights(PUSH * 3, PUSH),
            "push: expected strengths from 0 to 1, got 1.5 in sequ",
        ),
        (ValueError, lambda: stratified_weights(PUSH, -PUSH), "pop: .* got -0.5 in sequence 0 at step 0"),
        (ValueError, lambda: stratified_weights(PUSH, PUSH * torch.nan), "pop: expected strengths .*, got nan"),
        (ValueError, lambda: stratified_weights(PUSH, PUSH, backend="cpp"), "backend: expected .* got 'cpp'"),
        (ValueError, lambda: stratified_weights(PUSH, PUSH, torch.tensor([5, 0])), "lengths: expected values from 0"),
        (ValueError, lambda: stratified_readings(PUSH, PUSH, PUSH), r"values: expected shape \(2, 4, m\)"),
        (ValueError, lambda: StratifiedState.empty(3).extend(PUSH, PUSH), "push: expected batch size 3 like the state"),
        (ValueError, lambda: StratifiedState.empty(-1), "batch_size: expected a non-negative integer"),
    ],
)
def test_errors_name_the_argument(error, call, message):
    with pytest.raises(error, match=message):
        call()
