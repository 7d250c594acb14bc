"""The superposition stack, computed with its vectors: limited depth, and states that return readings."""

from itertools import product

import pytest
import torch
from oracles import with_gradients
from stacks import BACKENDS, FAST, assert_close, seeded
from torch.utils.checkpoint import checkpoint

from stackattn import SuperpositionReadingState, superposition_readings, superposition_weights

DEPTHS = (1, 2, 3, 5, None)
both = pytest.mark.parametrize("backend", FAST)
all_backends = pytest.mark.parametrize("backend", BACKENDS)
all_depths = pytest.mark.parametrize("depth", DEPTHS)


def arguments(B, T, m=3, seed=0, sharp=1.0):
    """Actions, then values of both signs."""
    logits = sharp * torch.randn(B, T, 3, generator=seeded(seed), dtype=torch.float64)
    return [logits.softmax(-1), torch.randn(B, T, m, generator=seeded(seed + 1), dtype=torch.float64)]


def reading(depth, backend, lengths=None):
    return lambda actions, values: superposition_readings(actions, values, lengths, depth=depth, backend=backend)


def in_chunks(depth, backend, sizes, lengths=None):
    """Readings computed with a state, in chunks of the given sizes; `lengths` has one tensor per chunk."""

    def run(actions, values):
        state = SuperpositionReadingState.empty(
            len(actions), values.shape[2], depth=depth, dtype=torch.float64, backend=backend
        )
        rows, at = [], 0
        for n, size in enumerate(sizes):
            chunk = slice(at, at + size)
            row, state = state.extend(actions[:, chunk], values[:, chunk], None if lengths is None else lengths[n])
            rows.append(row)
            at += size
        assert state.length == at == actions.shape[1]
        return torch.cat(rows, 1)

    return run


def expected_top(actions, values, depth):
    """The mean of the top after the last step, over all sequences of hard actions.

    Each sequence acts on a Python list that keeps its last `depth` elements.
    """
    total = torch.zeros(values.shape[1], dtype=torch.float64)
    for choice in product(range(3), repeat=len(actions)):
        stack, share = [], 1.0
        for t, action in enumerate(choice):
            share *= actions[t, action]
            if action == 0:
                stack.append(values[t])
            elif action == 2 and stack:
                stack.pop()
            if depth is not None:
                stack = stack[-depth:]
        if stack:
            total += share * stack[-1]
    return total


@all_backends
@all_depths
def test_readings_are_a_mean_over_hard_stacks(depth, backend):
    actions, values = arguments(1, 6, 2)
    found = superposition_readings(actions, values, depth=depth, backend=backend)
    for t in range(1, 7):
        torch.testing.assert_close(found[0, t - 1], expected_top(actions[0, :t], values[0, :t], depth))


@both
@all_depths
@pytest.mark.parametrize(
    ("T", "m"), [(T, 3) for T in (0, 1, 2, 5, 9, 40)] + [(6, m) for m in (1, 7, 8, 9, 16, 17, 33, 512)]
)
def test_backends_agree_with_the_reference(T, m, depth, backend):
    inputs = arguments(2, T, m)
    expected = with_gradients(reading(depth, "reference"), inputs)
    assert_close(with_gradients(reading(depth, backend), inputs), expected, 1e-11)


@all_backends
@pytest.mark.parametrize("depth", [9, 10, 10**6])
def test_a_depth_of_at_least_the_length_is_exact(depth, backend):
    inputs = arguments(2, 9)
    expected = with_gradients(reading(None, backend), inputs)
    assert_close(with_gradients(reading(depth, backend), inputs), expected, 1e-13)


@both
@all_depths
def test_weights_times_values_are_the_readings(depth, backend):
    inputs = arguments(2, 8)
    expected = with_gradients(reading(depth, backend), inputs)
    product = lambda a, v: superposition_weights(a, depth=depth, backend=backend) @ v  # noqa: E731
    assert_close(with_gradients(product, inputs), expected, 1e-11)


@pytest.mark.parametrize(("T", "depth"), [(150, None), (200, 30), (140, 139)])
def test_stacks_that_are_computed_again(T, depth):
    """The kernel stores only some stacks of a long sequence for its backward pass. The vectors fill several blocks."""
    inputs, lengths = arguments(3, T, 19), torch.tensor([T, T // 2, 1])
    expected = with_gradients(reading(depth, "torch", lengths), inputs)
    assert_close(with_gradients(reading(depth, "cpp", lengths), inputs), expected, 1e-11)
    chunks = [T // 2, T - T // 2]
    expected = with_gradients(reading(depth, "torch"), inputs)
    assert_close(with_gradients(in_chunks(depth, "cpp", chunks), inputs), expected, 1e-11)


@pytest.mark.parametrize(("T", "depth"), [(150, None), (10_000, 5)])
def test_any_number_of_threads(T, depth, threads):
    inputs, results = [x.float() for x in arguments(2, T, 40)], []
    for count in (1, 2, 3):
        threads(count)
        results.append(with_gradients(reading(depth, "cpp"), inputs))
    assert all(x.isfinite().all() for x in results[0])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@both
def test_nesting_deeper_than_the_depth(backend):
    """Four hard pushes and four pops with depth 2: the two lower elements are lost."""
    actions = torch.zeros(1, 8, 3)
    actions[:, :4, 0] = actions[:, 4:, 2] = 1
    values = torch.arange(1.0, 9.0).reshape(1, 8, 1)
    found = superposition_readings(actions, values, depth=2, backend=backend)
    assert found.flatten().tolist() == [1, 2, 3, 4, 3, 0, 0, 0]


@all_backends
@all_depths
def test_causal(depth, backend):
    actions, values = arguments(2, 8)
    found = superposition_readings(actions, values, depth=depth, backend=backend)
    for t in range(8):
        prefix = superposition_readings(actions[:, :t], values[:, :t], depth=depth, backend=backend)
        torch.testing.assert_close(prefix, found[:, :t], rtol=1e-13, atol=1e-15)


@all_backends
@pytest.mark.parametrize("depth", [2, None])
def test_hard_and_extreme_actions(depth, backend):
    inputs = arguments(3, 12, sharp=1e4)
    assert inputs[0].amin() == 0  # the softmax underflows
    expected = with_gradients(reading(depth, "reference"), inputs)
    assert_close(with_gradients(reading(depth, backend), inputs), expected, 1e-12)


@all_backends
@pytest.mark.parametrize("depth", [2, None])
def test_lengths(depth, backend):
    T, lengths = 9, torch.tensor([9, 4, 0, 1])
    inputs = arguments(4, T)
    found = with_gradients(reading(depth, backend, lengths), inputs)
    upstream = torch.randn(found[0].shape, generator=seeded(1), dtype=torch.float64)
    for b, n in enumerate(lengths.tolist()):
        short = [x[b : b + 1, :n] for x in inputs]
        expected = with_gradients(reading(depth, "reference"), short, upstream[b : b + 1, :n])
        assert_close([x[b : b + 1, :n] for x in found], expected, 1e-12, 1e-12)
        assert all((x[b, n:] == 0).all() for x in found)
    spoilt = [x.clone() for x in inputs]
    for x in spoilt:
        x[torch.arange(T) >= lengths[:, None]] = torch.nan
    again = with_gradients(reading(depth, backend, lengths), spoilt)
    assert all(torch.equal(a, b) for a, b in zip(again, found, strict=True))


@both
@all_depths
@pytest.mark.parametrize("sizes", [[1] * 8, [3, 0, 1, 4], [8], [7, 1]])
def test_full_pass_equals_any_chunks(sizes, depth, backend):
    inputs = arguments(2, 8)
    expected = with_gradients(reading(depth, backend), inputs)
    assert_close(with_gradients(in_chunks(depth, backend, sizes), inputs), expected, 1e-12)


@both
@all_depths
def test_chunks_with_lengths(depth, backend):
    """Each sequence takes its own number of steps in each chunk."""
    inputs, sizes = arguments(3, 9), [4, 2, 3]
    lengths = [torch.tensor(x) for x in ([4, 1, 0], [0, 2, 1], [3, 3, 1])]
    spoilt = [x.clone() for x in inputs]
    taken = torch.cat([torch.arange(size) < n[:, None] for size, n in zip(sizes, lengths, strict=True)], 1)
    for x in spoilt:
        x[~taken] = torch.nan
    readings, *grads = with_gradients(in_chunks(depth, backend, sizes, lengths), spoilt)
    assert (readings[~taken] == 0).all()
    upstream = torch.randn(readings.shape, generator=seeded(1), dtype=torch.float64)
    for b in range(3):
        alone = [x[b : b + 1, taken[b]] for x in inputs]
        expected = with_gradients(reading(depth, "reference"), alone, upstream[b : b + 1, taken[b]])
        assert_close([x[b : b + 1, taken[b]] for x in (readings, *grads)], expected, 1e-12)
        assert all((x[b, ~taken[b]] == 0).all() for x in grads)


@both
def test_states_branch_and_reorder(backend):
    actions, values = arguments(3, 6)
    state = SuperpositionReadingState.empty(3, 3, depth=2, dtype=torch.float64, backend=backend)
    _, state = state.extend(actions[:, :3], values[:, :3])
    index = torch.tensor([2, 0, 2, 1])
    for chosen in (index, torch.tensor([], dtype=torch.int32)):
        found, moved = state.reorder(chosen).extend(actions[chosen.long(), 3:], values[chosen.long(), 3:])
        assert moved.length == 6
        expected = superposition_readings(actions, values, depth=2)[chosen.long(), 3:]
        torch.testing.assert_close(found, expected)
    assert not state.detach().elements.requires_grad


@both
def test_the_size_of_a_state_is_constant(backend):
    state = SuperpositionReadingState.empty(2, 3, depth=4, backend=backend)
    for _ in range(3):
        _, state = state.extend(*(x.float() for x in arguments(2, 10)))
        assert state.elements.shape == (2, 4, 3)
    assert repr(state) == "SuperpositionReadingState(batch_size=2, length=30, depth=4, device=cpu)"


@both
@pytest.mark.parametrize("depth", [2, None])
def test_gradcheck(depth, backend):
    inputs = [x.requires_grad_() for x in arguments(2, 5, 2)]
    assert torch.autograd.gradcheck(reading(depth, backend), inputs)
    assert torch.autograd.gradcheck(in_chunks(depth, backend, [2, 3]), inputs)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype, backend):
    inputs = [x.to(dtype) for x in arguments(2, 9)]
    found = with_gradients(reading(3, backend), inputs)
    assert all(x.dtype == dtype for x in found)
    expected = with_gradients(reading(3, "reference"), [x.double() for x in inputs])
    assert_close([x.double() for x in found], expected, 2e-6 if dtype == torch.float32 else 2e-2)
    state = SuperpositionReadingState.empty(2, 3, depth=3, dtype=dtype, backend=backend)
    readings, state = state.extend(*inputs)
    assert readings.dtype == dtype
    assert state.elements.dtype == torch.float32


@both
@pytest.mark.parametrize("depth", [2, None])
def test_functional_transforms_and_checkpointing(depth, backend):
    run = reading(depth, backend)
    inputs = [x.unflatten(0, (2, 3)) for x in arguments(6, 5)]
    gradients = torch.func.vmap(torch.func.grad(lambda *x: run(*x).tanh().sum(), (0, 1)))(*inputs)
    leaves = [x.flatten(0, 1).requires_grad_() for x in inputs]
    expected = torch.autograd.grad(run(*leaves).tanh().sum(), leaves)
    assert_close([x.flatten(0, 1) for x in gradients], list(expected), 1e-12)
    saved = checkpoint(run, *leaves, use_reentrant=False)
    assert_close(list(torch.autograd.grad(saved.tanh().sum(), leaves)), list(expected), 1e-13)


@pytest.mark.slow
@both
@pytest.mark.parametrize("lengths", [None, torch.tensor([5, 3])], ids=["full", "lengths"])
def test_opcheck_and_compile(lengths, backend):
    inputs, stack = arguments(2, 5), torch.randn(2, 2, 3, generator=seeded(), dtype=torch.float64)
    forward = torch.ops.stackattn.superposition_readings.default
    backward = torch.ops.stackattn.superposition_readings_backward.default
    grad = torch.randn(2, 5 + 4, 3, generator=seeded(), dtype=torch.float64)
    torch.library.opcheck(backward, (grad, *inputs, stack, lengths, 4, backend))
    leaves = [x.clone().requires_grad_() for x in (*inputs, stack)]
    torch.library.opcheck(forward, (*leaves, lengths, 4, True, backend))
    torch._dynamo.reset()
    run = lambda *x: reading(2, backend, lengths)(*x).tanh()  # noqa: E731
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert_close(with_gradients(compiled, inputs), with_gradients(run, inputs), 1e-12)


@pytest.mark.parametrize("depth", [0, -1, 2.0, True, "3"])
def test_a_wrong_depth(depth):
    actions, values = arguments(2, 4)
    message = "depth: expected a positive integer, or None for no limit, got "
    for call in (
        lambda: superposition_readings(actions, values, depth=depth),
        lambda: superposition_weights(actions, depth=depth),
        lambda: SuperpositionReadingState.empty(2, 3, depth=depth),
    ):
        with pytest.raises(ValueError, match=message + repr(depth).replace(".", r"\.")):
            call()


@pytest.mark.parametrize(
    ("error", "change", "message"),
    [
        (ValueError, lambda a, v: (a, v[:, 1:]), r"values: expected shape \(2, 4, m\) with m >= 1, got \(2, 3, 3\)"),
        (ValueError, lambda a, v: (a, v[..., :2]), "values: expected size 3 like the state, got 2"),
        (ValueError, lambda a, v: (a[:1], v[:1]), "actions: expected batch size 2 like the state, got 1"),
        (TypeError, lambda a, v: (a, v.long()), "values: expected one of float32"),
        (ValueError, lambda a, v: (a * torch.nan, v), "actions: expected finite numbers, .* in sequence 0 at step 0"),
        (ValueError, lambda a, v: (a, v, torch.tensor([5, 0])), "lengths: expected values from 0 to T = 4, got 5"),
    ],
)
@both
def test_a_state_refuses_wrong_arguments(error, change, message, backend):
    state = SuperpositionReadingState.empty(2, 3, depth=3, backend=backend)
    with pytest.raises(error, match=message):
        state.extend(*change(*arguments(2, 4)))


def test_wrong_sizes_of_a_state():
    for sizes, message in (
        ((-1, 3), "batch_size: expected a non-negative"),
        ((2, 0), "value_size: expected a positive"),
    ):
        with pytest.raises(ValueError, match=message):
            SuperpositionReadingState.empty(*sizes)
    with pytest.raises(TypeError, match=r"dtype: expected one of float32.*, got torch.int64"):
        SuperpositionReadingState.empty(2, 3, dtype=torch.int64)
