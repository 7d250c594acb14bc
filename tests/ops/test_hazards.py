"""What callers may do to their tensors: views, threads, reused buffers, masks of any size."""

import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest
import torch
from oracles import random_transitions, relative_error
from stacks import BACKENDS, FAST, STACKS, seeded
from torch.utils.checkpoint import checkpoint

from stackattn import NondeterministicState, SuperpositionState, nondeterministic_weights, ops, superposition_weights


def actions(B, T):
    return torch.randn(B, T, 3, generator=seeded(), dtype=torch.float64).softmax(-1)


@pytest.mark.parametrize("function", [lambda x: x[1:2], lambda x: x[1:2].expand(50, -1), lambda x: x[[1, 0, 1]]])
def test_a_state_mapped_to_a_view_continues_correctly(function):
    a = actions(2, 12)
    _, state = SuperpositionState.empty(2).extend(a[:, :6])
    rows, _ = state.map(function).extend(function(a.flatten(1)).unflatten(1, (12, 3))[:, 6:])
    full = superposition_weights(function(a.flatten(1)).unflatten(1, (12, 3)))
    assert relative_error(rows, full[:, 6:]) < 1e-12
    rows, _ = state.extend(a[:, 6:])
    assert relative_error(rows, superposition_weights(a)[:, 6:]) < 1e-12


def test_threads_that_extend_the_same_state():
    a = actions(4, 40)
    _, state = SuperpositionState.empty(4).extend(a[:, :10])
    found = {}

    def extend_to_the_end(name):
        mine, rows = state, []
        steps = a if name % 2 else a.flip(2)
        for t in range(10, 40):
            row, mine = mine.extend(steps[:, t : t + 1])
            rows.append(row[:, :, :10])
        found[name] = torch.cat(rows, dim=1)

    threads = [threading.Thread(target=extend_to_the_end, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, rows in found.items():
        steps = torch.cat([a[:, :10], (a if name % 2 else a.flip(2))[:, 10:]], dim=1)
        assert relative_error(rows, superposition_weights(steps)[:, 10:, :10]) < 1e-12


def test_a_buffer_that_the_caller_reuses():
    inputs = random_transitions(1, 12, 2, 2, scale=400.0, generator=seeded())  # beyond the range of float64
    buffer = [torch.empty_like(x[:, :1]) for x in inputs]
    state, rows = NondeterministicState.empty(1, 2, 2), []
    for t in range(12):
        for mine, x in zip(buffer, inputs, strict=True):
            mine.copy_(x[:, t : t + 1])
        row, state = state.extend(*buffer)
        rows.append(row)
    assert relative_error(rows[-1], nondeterministic_weights(*inputs)[:, -1:]) < 1e-9


def test_lengths_that_change_before_the_backward_pass():
    gradients = []
    for change in (False, True):
        a, lengths = actions(2, 5).requires_grad_(), torch.tensor([5, 3])
        rows, _ = SuperpositionState.empty(2).extend(a, lengths)
        if change:
            lengths.fill_(1)
        gradients.append(torch.autograd.grad(rows.square().sum(), a)[0])
    assert torch.equal(*gradients)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("later", [[20, 18], [1, 0], [-5, 4]])
def test_lengths_overwritten_through_numpy_before_the_backward_pass(stack, backend, later):
    """Autograd does not see the change, and lengths beyond T would address memory outside the tensors."""
    gradients = []
    for change in (False, True):
        inputs = [x.requires_grad_() for x in stack.inputs(2, 4)]
        buffer = np.array([4, 3])
        weights = stack.operator(*inputs, torch.from_numpy(buffer), backend=backend)
        if change:
            buffer[:] = later
        gradients.append(torch.autograd.grad(weights.square().sum(), inputs))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def _calls_with_lengths():
    """Yield a function of inputs and lengths, and its inputs, for each operator that the test above does not cover."""
    steps, values = (
        random_transitions(2, 4, 2, 2, generator=seeded()),
        torch.randn(2, 5, 3, generator=seeded()).double(),
    )
    a, packed, strengths = actions(2, 4), torch.randn(2, 4, 18, generator=seeded()), actions(2, 4)[..., 0]
    for backend in FAST:
        options = {"backend": backend}
        yield partial(ops.nondeterministic_readings, **options), (*steps, values)
        yield partial(ops.nondeterministic_readings, window=2, **options), (*steps, values)
        yield partial(nondeterministic_weights, window=2, **options), steps
        yield partial(ops.superposition_readings, **options), (a, values[:, 1:])
        yield partial(ops.superposition_readings, depth=2, **options), (a, values[:, 1:])
        yield lambda x, lengths, options=options: ops.causal_attention(x, 2, lengths, **options), (packed,)
        state = ops.SuperpositionReadingState.empty(2, 3, dtype=torch.float64, **options)
        yield lambda *x, state=state: state.extend(*x)[0], (a, values[:, 1:])
        state = ops.NondeterministicReadingState.empty(values[:, 0], 2, 2, window=3, **options)
        yield lambda *x, state=state: state.extend(*x)[0], (*steps, values[:, 1:])
        state = NondeterministicState.empty(2, 2, 2, **options)
        yield lambda *x, state=state: state.extend(*x)[0], steps
    yield ops.stratified_weights, (strengths, strengths.flip(1))


@pytest.mark.parametrize("later", [[20, 18], [1, 0]])
def test_no_operator_reads_lengths_again(later):
    for function, inputs in _calls_with_lengths():
        gradients = []
        for change in (False, True):
            leaves = [x.detach().clone().requires_grad_() for x in inputs]
            buffer = np.array([4, 3])
            y = function(*leaves, torch.from_numpy(buffer))
            if change:
                buffer[:] = later
            gradients.append(torch.autograd.grad(y.square().sum(), leaves))
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True)), function


@pytest.mark.parametrize("change", ["starts", "lengths"])
def test_documents_overwritten_before_the_backward_pass(change):
    gradients = []
    for changed in (False, True):
        a, values = actions(2, 6).requires_grad_(), torch.randn(2, 6, 3, generator=seeded()).double()
        starts, lengths = np.array([[0, 0, 0, 1, 0, 0]] * 2, dtype=bool), np.array([6, 4])
        views = torch.from_numpy(starts), torch.from_numpy(lengths)
        y = ops.by_documents(ops.superposition_readings, views[0], a, values, lengths=views[1])
        assert starts.sum() == 2  # the caller's array is not changed
        if changed:
            starts[:], lengths[:] = (True, [60, 0]) if change == "starts" else (starts, [60, 0])
        gradients.append(torch.autograd.grad(y.square().sum(), a)[0])
    assert torch.equal(*gradients)


@pytest.mark.parametrize("backend", FAST)
def test_backward_operators_check_lengths(backend):
    grad, a = torch.ones(2, 4, 4, dtype=torch.float64), actions(2, 4)
    with pytest.raises(ValueError, match="lengths: expected values from 0 to T = 4, got 20 for sequence 1"):
        torch.ops.stackattn.superposition_weights_backward(grad, a, torch.tensor([4, 20]), backend)
    inputs = random_transitions(2, 4, 2, 2, generator=seeded())
    grad, memory = torch.ones(2, 4, 5, 2, 2, dtype=torch.float64), torch.empty(0, dtype=torch.float64)
    with pytest.raises(ValueError, match="lengths: expected values from 0 to T = 4, got -1 for sequence 0"):
        torch.ops.stackattn.nondeterministic_weights_backward(grad, *inputs, torch.tensor([-1, 4]), memory, backend)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("stepwise", [False, True])
def test_gradient_checkpointing(stack, backend, stepwise):
    """`use_reentrant=False` is the default in Hugging Face Transformers; saved tensors can then be read only once."""
    lengths = torch.tensor([4, 3])

    def readings(*inputs):
        if not stepwise:
            return stack.operator(*inputs, lengths, backend=backend)
        first, state = stack.state(2, backend).extend(*(x[:, :2] for x in inputs))
        rows, _ = state.extend(*(x[:, 2:] for x in inputs), lengths - 2)
        return rows + first.sum()

    inputs = [x.requires_grad_() for x in stack.inputs(2, 4)]
    expected = torch.autograd.grad(readings(*inputs).square().sum(), inputs)
    found = torch.autograd.grad(checkpoint(readings, *inputs, use_reentrant=False).square().sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_the_gradient_of_a_state_may_be_a_slice():
    a = actions(1, 6).requires_grad_()

    def shifted(grad):
        return grad if grad is None else torch.cat([grad.new_zeros(1), grad.flatten()])[1:].view_as(grad)

    gradients = []
    for hook in (None, shifted):
        state = SuperpositionState.empty(1)
        for t in range(6):
            rows, state = state.extend(a[:, t : t + 1])
            if hook:
                state._tensor.register_hook(hook)
        gradients.append(torch.autograd.grad(rows.square().sum(), a)[0])
    assert torch.equal(*gradients)


@pytest.mark.parametrize("backend", ["cpp", "torch"])
@pytest.mark.parametrize("mask", [-1e12, -1e20, -1e30, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mask_is_as_good_as_minus_infinity(backend, mask, dtype):
    """This holds even if every run of a sequence takes a masked transition, so that no run is left."""
    forbidden = random_transitions(3, 9, 2, 2, forbidden_share=0.5, generator=seeded(), dtype=dtype)
    forbidden[0][0, 4], forbidden[1][0, 4], forbidden[2][0, 4] = (-torch.inf,) * 3
    forbidden[2][0, 4, 1, 1, 0] = 0.0  # step 4 can only pop, and no push comes before it
    forbidden[1][0, :4], forbidden[0][0, :4] = forbidden[1][0, :4].clamp(min=-2), -torch.inf
    masked = [x.clamp(min=mask) for x in forbidden]
    results = []
    for inputs in (forbidden, masked):
        leaves = [x.clone().requires_grad_() for x in inputs]
        weights = nondeterministic_weights(*leaves, backend=backend)
        gradients = torch.autograd.grad(weights.square().sum(), leaves)
        assert all(x.isfinite().all() for x in (weights, *gradients))
        results.append([weights, *gradients])
    for a, b in zip(*results, strict=True):
        assert (a - b).abs().max() < 1e-6


def test_operators_called_without_the_wrapper_check_their_arguments():
    a = actions(2, 4)
    op = torch.ops.stackattn.superposition_weights
    expected = superposition_weights(a, torch.tensor([3, 2]))
    assert torch.equal(op(a, torch.tensor([3, 2], dtype=torch.int32), "cpp"), expected)
    with pytest.raises(ValueError, match="actions"):
        op(a[0], None, "cpp")
    push, replace, pop = random_transitions(1, 4, 2, 2, generator=seeded())
    with pytest.raises(ValueError, match="log_replace"):
        torch.ops.stackattn.nondeterministic_weights(push, replace[:, :3], pop, None, "cpp")


FORKED = """
import os, signal, torch
from stackattn import nondeterministic_weights

torch.set_num_threads(2)
inputs = [torch.zeros(16, 20, 2, 2, 2, 2), torch.zeros(16, 20, 2, 2, 2, 2), torch.zeros(16, 20, 2, 2, 2)]
expected = nondeterministic_weights(*inputs, backend="cpp")  # starts the threads of OpenMP
child = os.fork()
if child == 0:
    signal.alarm(60)
    os._exit(0 if torch.equal(nondeterministic_weights(*inputs, backend="cpp"), expected) else 1)
raise SystemExit(os.waitpid(child, 0)[1])
"""


def test_a_forked_process_does_not_wait_for_threads_of_its_parent():
    found = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("limit", [None, 2])
@pytest.mark.parametrize("B", [0, 2])
def test_sequences_without_steps_can_be_differentiated(B, limit, backend):
    steps, values = random_transitions(B, 0, 2, 2, generator=seeded()), torch.zeros(B, 1, 3, dtype=torch.float64)
    lengths = torch.zeros(B, dtype=torch.int64)
    options = {"backend": backend}
    for function, inputs in (
        (partial(ops.nondeterministic_readings, window=limit, **options), (*steps, values)),
        (partial(ops.superposition_readings, depth=limit, **options), (actions(B, 0), values[:, 1:])),
        (partial(superposition_weights, **options), (actions(B, 0),)),
        (partial(ops.stratified_weights, backend="reference"), (actions(B, 0)[..., 0], actions(B, 0)[..., 1])),
    ):
        leaves = [x.detach().requires_grad_() for x in inputs]
        y = function(*leaves, lengths)
        assert y.shape[:2] == (B, 0)
        grads = torch.autograd.grad(y.sum(), leaves)
        assert not any(grad.any() for grad in grads)
        if B:
            with pytest.raises(ValueError, match="lengths: expected values from 0 to T = 0, got 1"):
                function(*leaves, lengths + 1)
