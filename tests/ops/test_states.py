"""States: the same stacks step by step, as values that can be branched, reordered and differentiated."""

import random

import pytest
import torch
from oracles import random_transitions, with_gradients
from stacks import (
    FAST,
    HARD_STACKS,
    STACKS,
    Nondeterministic,
    Superposition,
    assert_close,
    in_chunks,
    operator,
    pieces,
    seeded,
)
from torch.utils._python_dispatch import TorchDispatchMode

from stackattn import NondeterministicState, SuperpositionState

ALL = [*STACKS, *HARD_STACKS]
both = pytest.mark.parametrize("backend", FAST)
all_stacks = pytest.mark.parametrize("stack", ALL)


@both
@all_stacks
@pytest.mark.parametrize("sizes", [[1] * 7, [7], [2, 0, 4, 1], [0, 6, 0, 1, 0], [3, 4]], ids=str)
def test_full_pass_equals_any_chunking(stack, sizes, backend):
    inputs = stack.inputs(2, 7)
    expected = with_gradients(operator(stack, backend), inputs)
    assert_close(with_gradients(in_chunks(stack, backend, sizes), inputs), expected, 1e-10, floor=1e-3)


@both
@pytest.mark.parametrize("stack", [Superposition(), Nondeterministic(2, 2), Nondeterministic(5, 1)])
@pytest.mark.parametrize("sizes", [[1] * 30, [15, 1, 1, 10, 3]], ids=["steps", "chunks"])
def test_long_states(stack, sizes, backend):
    """Thirty steps, one at a time and in chunks."""
    inputs = stack.inputs(1, 30)
    expected = with_gradients(operator(stack, "cpp"), inputs)
    assert_close(with_gradients(in_chunks(stack, backend, sizes), inputs), expected, 1e-10)


@both
@all_stacks
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_dtypes(stack, dtype, backend):
    inputs = stack.inputs(2, 6, dtype=dtype)
    results = with_gradients(in_chunks(stack, backend, [1, 3, 2]), inputs)
    assert {x.dtype for x in results} == {dtype}
    expected = with_gradients(operator(stack, backend), [x.double() for x in inputs])
    assert_close(results, expected, 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps, floor=1e-3)


@both
@all_stacks
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_any_tree_of_states(stack, seed, backend):
    """Extend, branch, reorder and detach at random, with a loss on some of the rows.

    The expected rows of a state are those of the operator on all inputs that led to the state.
    """
    choose = random.Random(seed)
    leaves = []

    def more(B, c):
        inputs = [x.requires_grad_() for x in stack.inputs(B, c, seed=1000 * seed + len(leaves))]
        leaves.extend(inputs)
        return inputs

    start = more(2, 3)
    rows, state = stack.state(2, backend).extend(*start)
    states, found, expected = [(state, start)], [rows], [stack.operator(*start, backend="cpp")]
    for _ in range(20):
        state, past = choose.choice(states)
        if choose.random() < 0.2 and state.batch_size > 0:
            index = torch.tensor([choose.randrange(state.batch_size) for _ in range(choose.randrange(1, 4))])
            states.append((state.reorder(index), [x[index] for x in past]))
        elif choose.random() < 0.2:
            states.append((state.detach(), [x.detach() for x in past]))
        else:
            inputs = more(state.batch_size, choose.choice([0, 1, 1, 1, 2]))
            rows, state = state.extend(*inputs)
            past = [torch.cat(x, 1) for x in zip(past, inputs, strict=True)]
            states.append((state, past))
            found.append(rows)
            expected.append(stack.operator(*past, backend="cpp")[:, past[0].shape[1] - inputs[0].shape[1] :])
    assert_close(found, expected, 1e-10)
    upstream = [torch.randn(x.shape, generator=seeded(), dtype=x.dtype) * choose.choice([0, 1]) for x in found]

    def gradients(results):
        loss = sum((x * g).sum() for x, g in zip(results, upstream, strict=True) if g.any())
        found = torch.autograd.grad(loss, leaves, retain_graph=True, materialize_grads=True)
        again = torch.autograd.grad(loss, leaves, materialize_grads=True)
        assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
        return torch.cat([x.flatten() for x in found])

    assert_close([gradients(found)], [gradients(expected)], 1e-9, floor=1e-3)


@both
@all_stacks
def test_two_branches_one_loss(stack, backend):
    """Branches without a loss are extended last; one of them shares the buffer of the branch that has a loss."""
    trunk, branch, other = (stack.inputs(2, c, seed) for seed, c in enumerate((5, 3, 3)))

    def by_states(*inputs):
        n = len(stack.names)
        _, state = stack.state(2, backend).extend(*inputs[:n])
        rows, branch = state.extend(*inputs[n:])
        for growing in (state, branch, state):
            for _ in range(3):
                _, growing = growing.extend(*other)
        return rows

    def by_operator(*inputs):
        n = len(stack.names)
        return operator(stack, backend)(*(torch.cat([a, b], 1) for a, b in zip(inputs[:n], inputs[n:], strict=True)))[
            :, 5:
        ]

    found, expected = (with_gradients(function, [*trunk, *branch]) for function in (by_states, by_operator))
    assert_close(found, expected, 1e-10, floor=1e-3)


@both
@all_stacks
def test_loss_on_a_prefix(stack, backend):
    """The state is extended between the forward and the backward pass of its first steps."""
    inputs, later = stack.inputs(2, 5), stack.inputs(2, 20, seed=1)

    def prefix(*inputs):
        rows, state = stack.state(2, backend).extend(*inputs)
        for piece in pieces(later, [1] * 20):
            _, state = state.extend(*piece)
        return rows

    assert_close(with_gradients(prefix, inputs), with_gradients(operator(stack, backend), inputs), 1e-10, floor=1e-3)


@both
@all_stacks
def test_later_operations_change_nothing(stack, backend):
    """Later operations change neither inputs nor weights nor states."""
    inputs, step, other = stack.inputs(2, 6), stack.inputs(2, 1, seed=1), stack.inputs(2, 1, seed=2)
    kept = [x.clone() for x in (*inputs, *step)]
    rows, state = stack.state(2, backend).extend(*inputs)
    kept_rows = rows.clone()
    first, longer = state.extend(*step)
    kept_first = first.clone()
    state.extend(*other)
    state.reorder(torch.tensor([1, 0])).extend(*other)
    state.detach().extend(*other)
    continued, _ = longer.extend(*other)
    again, _ = state.extend(*step)
    assert all(torch.equal(a, b) for a, b in zip((*inputs, *step), kept, strict=True))
    assert torch.equal(rows, kept_rows)
    assert torch.equal(first, kept_first)
    assert torch.equal(again, first)
    whole = [torch.cat(x, 1) for x in zip(inputs, step, other, strict=True)]
    assert_close([continued], [operator(stack, backend)(*whole)[:, -1:]], 1e-10)
    assert (state.length, longer.length) == (6, 7)


@both
@all_stacks
def test_a_failed_extension_does_not_change_the_state(stack, backend):
    inputs, step = stack.inputs(2, 6), stack.inputs(2, 3, seed=1)
    _, state = stack.state(2, backend).extend(*inputs)
    bad = [x.clone() for x in step]
    bad[0][1, 2] = torch.nan
    with pytest.raises(ValueError, match="sequence 1 at step 2"):
        state.extend(*bad)
    whole = [torch.cat(x, 1) for x in zip(inputs, step, strict=True)]
    assert_close([state.extend(*step)[0]], [operator(stack, backend)(*whole)[:, 6:]], 1e-10)


@both
@all_stacks
def test_recurrent_controller(stack, backend):
    """The actions of step t depend on the reading of step t-1. The operator, called again for each step, agrees."""
    B, T, m = 2, 6, 3
    values = torch.randn(B, T + 1, m, generator=seeded(), dtype=torch.float64)
    shapes = [x.shape[2:] for x in stack.inputs(1, 1)]
    maps = [torch.randn(m, *shape, generator=seeded(), dtype=torch.float64) for shape in shapes]

    def control(reading, step, maps):
        """The controller's next action, from the input and the reading."""
        logits = [x + torch.tensordot(reading, w, 1)[:, None] for x, w in zip(step, maps, strict=True)]
        return [logits[0].softmax(-1)] if isinstance(stack, Superposition) else logits

    def read(row):
        row = row if isinstance(stack, Superposition) else row.sum((3, 4))
        return (row @ values[:, : row.shape[2]])[:, 0]

    def by_state(*maps):
        state, readings = stack.state(B, backend), [values[:, 0]]
        for step in pieces(stack.inputs(B, T), [1] * T):
            row, state = state.extend(*control(readings[-1], step, maps))
            readings.append(read(row))
        return torch.stack(readings[1:], 1)

    def by_operator(*maps):
        past, readings = [x[:, :0] for x in stack.inputs(B, T)], [values[:, 0]]
        for step in pieces(stack.inputs(B, T), [1] * T):
            past = [torch.cat(x, 1) for x in zip(past, control(readings[-1], step, maps), strict=True)]
            readings.append(read(operator(stack, backend)(*past)[:, -1:]))
        return torch.stack(readings[1:], 1)

    assert_close(with_gradients(by_state, maps), with_gradients(by_operator, maps), 1e-9, floor=1e-3)


@both
@all_stacks
@pytest.mark.parametrize("garbage", [torch.nan, torch.inf])
def test_padded_batches(stack, garbage, backend):
    """A step that a sequence does not take changes nothing.

    Its row and gradients are 0, and later rows give no weight to its column.
    """
    sizes, lengths = [4, 0, 3, 2], torch.tensor([[4, 2, 0, 3], [0, 0, 0, 0], [1, 3, 3, 0], [2, 0, 2, 1]])
    inputs = stack.inputs(4, 9)
    taken = torch.cat([torch.arange(c)[None] < n[:, None] for c, n in zip(sizes, lengths, strict=True)], 1)  # (B, 9)
    padded = [torch.where(taken[(...,) + (None,) * (x.dim() - 2)], x, garbage) for x in inputs]
    found = with_gradients(in_chunks(stack, backend, sizes, lengths), padded)
    assert not any(x[~taken].any() for x in found)
    bottom = int(isinstance(stack, Nondeterministic))
    for b in range(4):
        steps = taken[b].nonzero()[:, 0]
        columns = torch.cat([torch.zeros(bottom, dtype=torch.long), steps + bottom])
        rows = found[0][b : b + 1, steps]
        upstream = torch.randn(found[0].shape, generator=seeded(1), dtype=torch.float64)[b : b + 1, steps]
        alone = [x[b : b + 1, steps] for x in inputs]
        expected = with_gradients(operator(stack, backend), alone, upstream[:, :, columns])
        assert_close([rows[:, :, columns], *(x[b : b + 1, steps] for x in found[1:])], expected, 1e-10, floor=1e-3)
        assert rows.sum() == pytest.approx(rows[:, :, columns].sum().item())  # no weight in the other columns


@both
@all_stacks
def test_the_state_of_a_padded_batch_is_the_state_at_its_lengths(stack, backend):
    inputs, step = stack.inputs(2, 6), stack.inputs(2, 1, seed=1)
    _, state = stack.state(2, backend).extend(*inputs, torch.tensor([6, 4]))
    rows, _ = state.extend(*step)
    alone = [torch.cat([x[1:, :4], y[1:]], 1) for x, y in zip(inputs, step, strict=True)]
    expected = operator(stack, backend)(*alone)[:, -1:]
    assert_close([torch.cat([rows[1:, :, : expected.shape[2] - 1], rows[1:, :, -1:]], 2)], [expected], 1e-11)


@both
@all_stacks
def test_without_gradients(stack, backend):
    """States work under no_grad and inference_mode. A state created under no_grad is a constant for later gradients."""
    inputs, later = stack.inputs(2, 4), [x.requires_grad_() for x in stack.inputs(2, 2, seed=1)]
    whole = operator(stack, backend)(*(torch.cat(x, 1) for x in zip(inputs, later, strict=True)))
    with torch.inference_mode():
        rows = in_chunks(stack, backend, [1] * 4)(*inputs)
    assert_close([rows.clone()], [operator(stack, backend)(*inputs)], 1e-11)
    with torch.no_grad():
        _, state = stack.state(2, backend).extend(*inputs)
    rows, _ = state.extend(*later)
    assert_close([rows], [whole[:, 4:]], 1e-10)
    found, expected = (torch.autograd.grad(x.square().sum(), later) for x in (rows, whole[:, 4:]))
    assert_close(found, expected, 1e-9, floor=1e-3)


@both
@all_stacks
def test_detached_states_keep_their_contents_but_pass_no_gradients(stack, backend):
    inputs, later = ([x.requires_grad_() for x in stack.inputs(2, 3, seed)] for seed in range(2))
    _, state = stack.state(2, backend).extend(*inputs)
    rows, _ = state.detach().extend(*later)
    attached, _ = state.extend(*later)
    assert torch.equal(rows, attached)
    rows.square().sum().backward()
    assert all(x.grad is None for x in inputs)
    assert any(x.grad.any() for x in later)


@both
@all_stacks
def test_second_derivatives_are_refused(stack, backend):
    inputs = [x.requires_grad_() for x in stack.inputs(1, 3)]
    rows, _ = stack.state(1, backend).extend(*inputs)
    gradient, *_ = torch.autograd.grad(rows.square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate"):
        gradient.sum().backward()


class CountCalls(TorchDispatchMode):
    """Counts the calls of PyTorch operators."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


@both
@pytest.mark.parametrize("stack", STACKS)
def test_a_step_takes_a_constant_number_of_calls(stack, backend):
    counts = []
    for T in (20, 30):
        _, state = stack.state(1, backend).extend(*stack.inputs(1, T))
        _, state = state.extend(*stack.inputs(1, 1))  # the buffer has room for 32 steps
        step = [x.requires_grad_() for x in stack.inputs(1, 1)]
        with CountCalls() as count:
            rows, _ = state.extend(*step)
            rows.sum().backward()
        counts.append(count.calls)
    assert counts[0] == counts[1] > 0


@both
def test_attributes_and_repr_of_a_state(backend):
    state = NondeterministicState.empty(2, 3, 4, backend=backend)
    assert (state.length, state.batch_size, state.device) == (0, 2, torch.device("cpu"))
    assert repr(state) == "NondeterministicState(batch_size=2, length=0, device=cpu)"
    _, state = SuperpositionState.empty(2, backend=backend).extend(torch.rand(2, 5, 3, generator=seeded()))
    assert repr(state.to("cpu")) == "SuperpositionState(batch_size=2, length=5, device=cpu)"
    assert state.reorder(torch.tensor([0, 1, 1])).batch_size == 3


@both
def test_empty_states_can_be_reordered(backend):
    inputs = random_transitions(3, 4, 2, 2, generator=seeded())
    state = NondeterministicState.empty(2, 2, 2, backend=backend).reorder(torch.tensor([1, 0, 1]))
    assert_close([state.extend(*inputs)[0]], [operator(Nondeterministic(2, 2), backend)(*inputs)], 1e-12)


@both
@pytest.mark.parametrize("stack", STACKS)
def test_a_reordered_state_is_copied_once(stack, backend):
    _, state = stack.state(2, backend).extend(*stack.inputs(2, 5))
    moved = state.reorder(torch.tensor([1, 1, 0]))
    later = moved
    for _ in range(3):
        _, later = later.extend(*stack.inputs(3, 1))
    assert later._tensor.data_ptr() == moved._tensor.data_ptr() != state._tensor.data_ptr()


@pytest.mark.parametrize("stack", STACKS)
def test_gradients_can_be_computed_twice(stack):
    """The backward pass overwrites gradients of states; this must not affect a second pass or a second branch."""
    steps = [[x.requires_grad_() for x in stack.inputs(2, 1, seed)] for seed in range(5)]
    state, rows = stack.state(2, "cpp"), []
    for step in steps:
        row, state = state.extend(*step)
        rows.append(row)
    inputs = [x for step in steps for x in step]
    loss = sum(row.square().sum() for row in rows)
    once = torch.autograd.grad(loss, inputs, retain_graph=True)
    parts = [torch.autograd.grad(row.square().sum(), inputs, retain_graph=True, allow_unused=True) for row in rows]
    again = torch.autograd.grad(loss, inputs)
    for i, (one, other) in enumerate(zip(once, again, strict=True)):
        assert torch.equal(one, other)
        summed = sum(part[i] for part in parts if part[i] is not None)
        torch.testing.assert_close(summed, one, rtol=1e-10, atol=1e-14)
