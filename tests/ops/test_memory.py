"""Memory safety where tensors cross into C++: sizes of states, reused memory, wrong arrays, unusual views."""

import itertools
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from oracles import relative_error
from stacks import FAST, STACKS, Superposition, seeded
from torch.utils.dlpack import to_dlpack

from stackattn.ops.cpp import native
from stackattn.ops.dispatch import kernel
from stackattn.ops.pytorch.columns import Layout, size_in_python
from stackattn.ops.transitions import join_transitions

B, T, Q, S = 2, 4, 2, 3
BEFORE = 3  # steps that the states already contain
ROOM = Layout(Q, S).size(BEFORE + T)


@pytest.mark.parametrize(("Q", "S"), [*itertools.product(range(1, 10), repeat=2), (1, 17), (17, 1), (16, 16)])
def test_python_and_kernel_agree_on_the_size_of_a_state(Q, S):
    sizes = [kernel.state_size(Q, S, T) for T in range(70)]
    assert sizes == [size_in_python(Q, S, T) for T in range(70)]
    assert sizes == [Layout(Q, S).size(T) for T in range(70)]


@pytest.mark.parametrize(("Q", "S", "T"), [(1, 1, 9), (2, 3, 12), (3, 3, 17), (9, 1, 3)])
def test_all_entries_of_a_dense_state_have_places_within_its_size(Q, S, T):
    places = torch.cat([at[there] for at, there in Layout(Q, S).positions(T, torch.device("cpu"))])
    assert places.min() >= 0
    assert places.max() < kernel.state_size(Q, S, T)
    assert len(places.unique()) == len(places)


def test_large_memory_is_reused_once_nothing_refers_to_it():
    limit = 64 << 20  # bytes that are kept
    size = native.HUGE // 8
    first = native.empty_states(1, size)
    first.fill_(1.0)
    other = native.empty_states(1, size)
    assert other.data_ptr() != first.data_ptr()  # `first` is in use
    address, view = first.data_ptr(), first[0, :5]
    del first
    assert native.empty_states(1, size).data_ptr() != address  # a view uses the memory too
    assert view.tolist() == [1.0] * 5
    del view, other
    before = kernel.pooled_bytes()
    assert native.empty_states(1, size - 8).shape == (1, size - 8)
    assert 0 < kernel.pooled_bytes() == before <= limit
    large = [native.empty_states(20, size) for _ in range(2)]  # 80 MiB each
    del large
    assert kernel.pooled_bytes() <= limit


ARRAYS = {
    "nondeterministic": {
        "log_push": (B, T, Q, S, Q, S),
        "log_replace": (B, T, Q, S, Q, S),
        "log_pop": (B, T, Q, S, Q),
        "weights": (B, T, T + 1, Q, S),
    },
    "nondeterministic_backward": {
        "log_push": (B, T, Q, S, Q, S),
        "log_replace": (B, T, Q, S, Q, S),
        "log_pop": (B, T, Q, S, Q),
        "grad_weights": (B, T, T + 1, Q, S),
        "grad_push": (B, T, Q, S, Q, S),
        "grad_replace": (B, T, Q, S, Q, S),
        "grad_pop": (B, T, Q, S, Q),
    },
    "superposition": {"actions": (B, T, 3), "weights": (B, T, T)},
    "superposition_backward": {"actions": (B, T, 3), "grad_weights": (B, T, T), "grad_actions": (B, T, 3)},
    "extend": {
        "data": (B, ROOM),
        "steps": (B, T, Q, S, 2 * Q * S + Q),
        "weights": (B, T, BEFORE + T + 1, Q, S),
    },
    "retract": {
        "data": (B, ROOM),
        "steps": (B, T, Q, S, 2 * Q * S + Q),
        "grad_weights": (B, T, BEFORE + T + 1, Q, S),
        "grad_after": (B, ROOM),
        "grad_before": (B, Layout(Q, S).size(BEFORE)),
        "grad_steps": (B, T, Q, S, 2 * Q * S + Q),
    },
}
STATE_ARRAYS = ("data", "grad_after", "grad_before")


def call(function, **changed):
    """Call the kernel with valid arguments and arrays of zeros, except for the `changed` arguments."""
    arrays = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in ARRAYS[function].items()}
    if "data" in arrays:
        arrays |= {"before": BEFORE, "superposition": False}
    arrays = {**arrays, "lengths": torch.tensor([T, 1]), **changed}
    arrays = {name: to_dlpack(x) if isinstance(x, torch.Tensor) else x for name, x in arrays.items()}
    return getattr(kernel, function)(**arrays, threads=1)


def misaligned(shape):
    return torch.zeros(shape[0] * shape[1] + 1, dtype=torch.float64)[1:].reshape(shape)


@pytest.mark.parametrize(("function", "name"), [(f, name) for f, arrays in ARRAYS.items() for name in arrays])
def test_the_kernel_refuses_wrong_arrays(function, name):
    shape = ARRAYS[function][name]
    assert call(function, **{name: torch.zeros(shape, dtype=torch.float64)})[0] == 0
    wrong = [
        (ValueError, torch.zeros((*shape[:-1], shape[-1] - 1), dtype=torch.float64)),
        (ValueError, torch.zeros((shape[0] + 1, *shape[1:]), dtype=torch.float64)),
        (ValueError, torch.zeros(shape, dtype=torch.float64)[0]),
        (ValueError, torch.zeros((*shape[:-1], 2 * shape[-1]), dtype=torch.float64)[..., ::2]),
        (TypeError, torch.zeros(shape, dtype=torch.int64)),
        (TypeError, "zeros"),
    ]
    if name in STATE_ARRAYS:
        wrong += [
            (ValueError, misaligned(shape)),
            (ValueError, torch.zeros(shape[1], dtype=torch.float64).expand(shape)),
        ]
    else:
        wrong.append((ValueError, torch.zeros(shape[1:], dtype=torch.float64).expand(shape)))
    if name not in ("grad_weights", "grad_after") or function != "retract":
        wrong.append((TypeError, None))
    for error, array in wrong:
        with pytest.raises(error, match=rf"^{name}: expected|^lengths: expected shape|{name}: ndarray"):
            call(function, **{name: array})


@pytest.mark.parametrize("function", ARRAYS)
def test_the_kernel_refuses_wrong_lengths(function):
    for error, lengths in [
        (ValueError, torch.tensor([T + 1, 0])),
        (ValueError, torch.tensor([0, -1])),
        (ValueError, torch.tensor([1, 1, 1])),
        (ValueError, torch.zeros(4, dtype=torch.int64)[::2]),
        (TypeError, torch.tensor([1, 1], dtype=torch.int32)),
        (TypeError, torch.tensor([1.0, 1.0])),
    ]:
        with pytest.raises(error, match="lengths"):
            call(function, lengths=lengths)


@pytest.mark.parametrize("function", ["extend", "retract"])
@pytest.mark.parametrize("before", [-1, BEFORE + 1])
def test_the_kernel_refuses_a_wrong_number_of_steps(function, before):
    with pytest.raises(ValueError, match=r"before|data"):
        call(function, before=before)


def test_the_checks_survive_optimisation():
    """The checks are not assertions, so `python -O` keeps them."""
    program = """
import torch
from torch.utils.dlpack import to_dlpack
from stackattn.ops.dispatch import kernel
try:
    kernel.superposition(to_dlpack(torch.zeros(1, 50, 3)), to_dlpack(torch.zeros(1, 5, 5)), None, 1)
except ValueError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True)
    assert re.fullmatch(r"weights: expected shape \(1, 50, 50\), got \(1, 5, 5\)\n", run.stdout), run.stderr


def for_each_stack(test):
    """Parametrise a test with every stack and fast backend, in float32 and float64."""
    for name, values in (("backend", FAST), ("dtype", [torch.float32, torch.float64]), ("stack", STACKS)):
        test = pytest.mark.parametrize(name, values, ids=str)(test)
    return test


def negated(x):
    """The numbers of `x` as a view of -x with the negation bit set, which only PyTorch's own functions resolve."""
    view = torch._neg_view(-x)
    assert view.is_neg()
    return view


@for_each_stack
def test_operators_read_negated_views(stack, dtype, backend):
    found = []
    for view in (torch.Tensor.clone, negated):
        inputs = [view(x).requires_grad_() for x in stack.inputs(2, 5, dtype=dtype)]
        weights = stack.operator(*inputs, backend=backend)
        grad = view(torch.randn(weights.shape, generator=seeded(), dtype=dtype))
        found.append([weights, *torch.autograd.grad(weights, inputs, grad)])
    assert all(map(torch.equal, *found))


@for_each_stack
def test_states_read_negated_views(stack, dtype, backend):
    """The steps, the gradients of the rows and the gradient of the state in between are negated views."""
    found = []
    for view in (torch.Tensor.clone, negated):
        inputs = stack.inputs(2, 5, dtype=dtype)
        steps = view(inputs[0] if isinstance(stack, Superposition) else join_transitions(*inputs)).requires_grad_()
        state = stack.state(2, backend)
        rows = []
        for chunk in (steps[:, :3], steps[:, 3:]):
            take = state.extend if isinstance(stack, Superposition) else state.extend_joined
            row, state = take(chunk)
            rows.append(row)
            state = state.map(lambda x: Passed.apply(x, view))  # noqa: B023 (called at once)
        grads = [view(torch.randn(row.shape, generator=seeded(), dtype=dtype)) for row in rows]
        found.append([*rows, *torch.autograd.grad(rows, steps, grads)])
    assert all(map(torch.equal, *found))


class Passed(torch.autograd.Function):
    """The identity, whose gradient is the result of `view` for the upstream gradient."""

    @staticmethod
    def forward(ctx, x, view):
        ctx.view = view
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.view(grad), None


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_saved_states_may_come_back_at_any_address(stack):
    """Hooks on saved tensors may return new tensors, for example read from a file, with a different alignment."""

    def elsewhere(x):
        memory = np.empty(x.numel() + 1, dtype=np.float64)
        return torch.from_numpy(memory)[1:].reshape(x.shape).copy_(x) if x.dtype == torch.float64 else x

    found = []
    for unpack in (torch.Tensor.clone, elsewhere):
        inputs = [x.requires_grad_() for x in stack.inputs(2, 5)]
        with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.clone, unpack):
            first, state = stack.state(2, "cpp").extend(*(x[:, :3] for x in inputs))
            second, _ = state.extend(*(x[:, 3:] for x in inputs))
        found.append(torch.autograd.grad(first.square().sum() + second.square().sum(), inputs))
    assert all(relative_error(a, b) < 1e-14 for a, b in zip(*found, strict=True))
