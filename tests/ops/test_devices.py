"""The operators on a simulated GPU: nothing waits, each step launches few kernels, and failed checks give nan."""

import pytest
import torch
from fake_gpu import KernelCount, Waits, fake_gpu
from gpu_with_values import gpu_with_values
from stacks import Nondeterministic, Superposition, seeded

import stackattn
from stackattn.ops import checks, dispatch, extension, immediate_checks, states
from stackattn.ops.pytorch import columns, operators, window
from stackattn.ops.transitions import join_transitions

B, T, Q, S = 2, 5, 2, 3
STACK = Nondeterministic(Q, S)


def transitions(device):
    shapes = (B, T, Q, S, Q, S), (B, T, Q, S, Q, S), (B, T, Q, S, Q)
    return [torch.randn(shape, device=device) for shape in shapes]


def actions(device):
    return [torch.rand(B, T, 3, device=device)]


def strengths(device):
    return [torch.rand(B, T, device=device), torch.rand(B, T, device=device)]


# operator, its inputs except values, number of values (None if the operator takes none), and options
OPERATORS = {
    "superposition": (stackattn.superposition_weights, actions, None, {}),
    "superposition, readings": (stackattn.superposition_readings, actions, T, {}),
    "superposition, depth": (stackattn.superposition_weights, actions, None, {"depth": 2}),
    "superposition, depth, readings": (stackattn.superposition_readings, actions, T, {"depth": 2}),
    "nondeterministic": (stackattn.nondeterministic_weights, transitions, None, {}),
    "nondeterministic, readings": (stackattn.nondeterministic_readings, transitions, T + 1, {}),
    "nondeterministic, window": (stackattn.nondeterministic_weights, transitions, None, {"window": 2}),
    "nondeterministic, window, readings": (stackattn.nondeterministic_readings, transitions, T + 1, {"window": 2}),
    "stratified": (stackattn.stratified_weights, strengths, None, {}),
    "stratified, readings": (stackattn.stratified_readings, strengths, T, {}),
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_do_not_wait(name, padded):
    operator, make, values, options = OPERATORS[name]
    with fake_gpu() as gpu:
        inputs = [*make(gpu), *([torch.randn(B, values, 4, device=gpu)] if values else [])]
        inputs = [x.requires_grad_() for x in inputs]
        result = operator(*inputs, torch.full((B,), 3, device=gpu) if padded else None, **options)
        grads = torch.autograd.grad(result, inputs, torch.randn_like(result))
        assert {x.device for x in (result, *grads)} == {gpu}
        assert result.shape[:2] == (B, T)


def test_immediate_checks_wait():
    """Shows that the test above can fail."""
    with fake_gpu() as gpu, immediate_checks(), pytest.raises(Waits):
        checks.check_numbers("log_push", transitions(gpu)[0], None, minus_infinity=True)


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.sum() > 0),
        lambda x: x.tolist(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.index_put_((x > 0,), torch.ones_like(x)),
        lambda x: torch.equal(x, x),
        lambda x: x + torch.ones(3),
        lambda x: x[torch.arange(2)],
        lambda x: x.cpu(),
        lambda x: x.copy_(torch.ones(3)),
        lambda x: torch.ones(3).to(x.device),
    ],
)
def test_the_simulations_raise_where_a_gpu_would_wait(wait):
    with fake_gpu() as gpu:
        x = torch.ones(3, device=gpu)
        with pytest.raises((Waits, RuntimeError)):
            wait(x)
        assert torch.ones(3).to(gpu, non_blocking=True).device == gpu
    with gpu_with_values() as gpu:
        x, gpu.strict = torch.ones(3, device=gpu.device), True
        with pytest.raises(Waits):
            wait(x)
        with pytest.raises(Waits):
            torch.tensor([1.0], device=gpu.device)
        assert torch.ones(3).to(gpu.device, non_blocking=True).device == gpu.device


@pytest.mark.parametrize("stack", ["superposition", "nondeterministic"])
@pytest.mark.parametrize("padded", [False, True])
def test_states_do_not_wait(monkeypatch, stack, padded):
    for module in (extension, states):  # fake tensors have no addresses
        monkeypatch.setattr(module, "same_place", lambda one, other: one is other)
    with fake_gpu() as gpu:
        lengths = torch.full((B,), 1, device=gpu) if padded else None
        if stack == "superposition":
            state, steps = stackattn.SuperpositionState.empty(B, device=gpu), [torch.rand(B, T, 3, device=gpu)]
        else:
            state, steps = stackattn.NondeterministicState.empty(B, Q, S, device=gpu), transitions(gpu)
        inputs = [x.requires_grad_() for x in steps]
        first, state = state.extend(*(x[:, :2] for x in inputs), lengths)
        state = state.reorder(torch.arange(B, device=gpu).flip(0)).restart(torch.zeros(B, dtype=torch.bool, device=gpu))
        second, state = state.extend(*(x[:, 2:] for x in inputs), lengths)
        grads = torch.autograd.grad(first.sum() + second.sum(), inputs)
        assert {x.device for x in (first, second, *grads)} == {gpu}
        assert state.detach().length == T


def kernels_per_step(function):
    """The number of kernels that 10 more steps launch, divided by 10."""
    counts = []
    for n in (10, 20):
        with KernelCount() as count:
            function(n)
        counts.append(count.names.total())
    return (counts[1] - counts[0]) / 10


def test_kernels_per_step():
    """On a GPU, the number of kernels determines the time that short sequences take."""
    inputs = {n: STACK.inputs(B, n) for n in (10, 20)}
    actions = {n: Superposition().inputs(B, n)[0] for n in (10, 20)}
    charts = {n: operators.nondeterministic(*inputs[n], None) for n in (10, 20)}

    def backward(n):
        weights, memory = charts[n]
        operators.nondeterministic_backward(weights, *inputs[n], None, memory)

    assert kernels_per_step(lambda n: operators.nondeterministic(*inputs[n], None)) == 5
    assert kernels_per_step(backward) == 6
    assert kernels_per_step(lambda n: operators.superposition(actions[n], None)) == 4
    grads = {n: torch.ones(B, n, n, dtype=torch.float64) for n in (10, 20)}
    assert kernels_per_step(lambda n: operators.superposition_backward(grads[n], actions[n], None)) == 10


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Treat tensors on the CPU like those on a GPU: do not read their values."""
    for module in (checks, operators, columns, window):
        monkeypatch.setattr(module, "reads_values", lambda device: False)


def hidden(batch=3, steps=8):
    """Transitions whose last sequence leaves the range of float64 at step 2."""
    return Nondeterministic(2, 2, hidden=True).inputs(batch, steps)


def with_gradients(inputs, grad, lengths=None, **options):
    inputs = [x.clone().requires_grad_() for x in inputs]
    weights = stackattn.nondeterministic_weights(*inputs, lengths, backend="torch", **options)
    return [weights.detach(), *torch.autograd.grad(weights, inputs, grad)]


@pytest.mark.parametrize("padded", [False, True])
def test_rows_beyond_the_range_are_nan_and_others_exact(request, padded):
    inputs = hidden()
    lengths = torch.tensor([8, 3, 8]) if padded else None
    grad = torch.randn(3, 8, 9, 2, 2, generator=seeded(), dtype=torch.float64)
    expected = with_gradients(inputs, grad, lengths)
    request.getfixturevalue("as_on_a_gpu")
    weights, *grads = with_gradients(inputs, grad, lengths)
    assert torch.equal(weights[:2], expected[0][:2])
    torch.testing.assert_close(weights[2, :2], expected[0][2, :2], rtol=1e-12, atol=0)
    assert weights[2, 2:].isnan().all()
    assert all(torch.equal(x[:2], y[:2]) for x, y in zip(grads, expected[1:], strict=True))
    assert all(x[2].isnan().any() for x in grads)


def test_padding_beyond_the_range_is_not_nan(request):
    inputs, lengths = hidden(1), torch.tensor([2])
    grad = torch.randn(1, 8, 9, 2, 2, generator=seeded(), dtype=torch.float64)
    expected = with_gradients(inputs, grad, lengths)
    request.getfixturevalue("as_on_a_gpu")
    assert all(map(torch.equal, with_gradients(inputs, grad, lengths), expected))


@pytest.mark.parametrize("width", [None, 3])
def test_rows_after_a_step_without_transitions_are_zero(request, width):
    inputs = STACK.inputs(2, 6)
    for x in inputs:
        x[0, 3] = -torch.inf
    grad = torch.randn(2, 6, 7, Q, S, generator=seeded(), dtype=torch.float64)
    expected = with_gradients(inputs, grad, window=width)
    request.getfixturevalue("as_on_a_gpu")
    found = with_gradients(inputs, grad, window=width)
    assert not found[0][0, 3:].any()
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-15)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_invalid_values_become_nan_and_lengths_are_clamped():
    inputs = STACK.inputs(2, 6)
    inputs[0][0, 2, 0, 0, 0, 0] = torch.nan
    weights = stackattn.nondeterministic_weights(*inputs, torch.tensor([6, 99]), backend="torch")
    assert weights[0, 2:].isnan().all()
    assert torch.equal(weights[1], stackattn.nondeterministic_weights(*(x[1:] for x in inputs), backend="torch")[0])
    actions = Superposition().inputs(1, 4)[0]
    actions[0, 2] = torch.inf
    assert stackattn.superposition_weights(actions, backend="torch")[0, 2:].isnan().any()


def test_a_state_beyond_the_range_is_nan_and_can_be_repeated_exactly(request):
    inputs = hidden(1, 4)
    expected = stackattn.nondeterministic_weights(*inputs, backend="torch")
    state = stackattn.NondeterministicState.empty(1, 2, 2, backend="torch")
    request.getfixturevalue("as_on_a_gpu")
    _, state = state.extend(*(x[:, :2] for x in inputs))
    row, _ = state.extend(*(x[:, 2:3] for x in inputs))
    assert row.isnan().all()
    for module in (checks, operators, columns, window):  # as inside `immediate_checks`
        request.getfixturevalue("monkeypatch").setattr(module, "reads_values", lambda device: True)
    row, state = state.extend(*(x[:, 2:3] for x in inputs))
    torch.testing.assert_close(row, expected[:, 2:3, :4], rtol=1e-12, atol=0)
    row, _ = state.extend_joined(join_transitions(*(x[:, 3:] for x in inputs)))
    torch.testing.assert_close(row, expected[:, 3:], rtol=1e-12, atol=0)


def test_windowed_rows_beyond_the_range_are_nan(request):
    inputs = hidden(2, 6)
    expected = stackattn.nondeterministic_weights(*inputs, window=3, backend="torch")
    request.getfixturevalue("as_on_a_gpu")
    weights = stackattn.nondeterministic_weights(*inputs, window=3, backend="torch")
    assert torch.equal(weights[0], expected[0])
    torch.testing.assert_close(weights[1, :2], expected[1, :2], rtol=1e-12, atol=0)
    assert weights[1, 2:].isnan().any()


def test_auto_uses_torch_on_a_gpu_unless_the_environment_says_triton(monkeypatch):
    gpu = torch.device("cuda")
    assert dispatch.choose("auto", gpu, 2, 2) == "torch"
    monkeypatch.setenv("STACKATTN_GPU_BACKEND", "triton")
    assert dispatch.choose("auto", gpu) == "torch"  # states and softmax attention give no Q and S
    with pytest.raises(RuntimeError, match="PyTorch finds no GPU"):
        dispatch.choose("auto", gpu, 2, 2)
    monkeypatch.setattr(dispatch.availability, "status", lambda: "available")
    monkeypatch.setattr(dispatch.availability, "works", lambda device, Q, S, windowed: True)
    assert dispatch.choose("auto", gpu, 2, 2) == "triton"
    monkeypatch.setattr(dispatch, "kernel", object())
    assert dispatch.choose("auto", torch.device("cpu"), 2, 2) == "cpp"
    monkeypatch.setenv("STACKATTN_GPU_BACKEND", "cpp")
    with pytest.raises(ValueError, match="STACKATTN_GPU_BACKEND: expected 'torch' or 'triton', got 'cpp'"):
        dispatch.choose("auto", gpu, 2, 2)


def test_triton_is_refused_on_the_cpu(monkeypatch):
    with pytest.raises(RuntimeError, match="backend 'triton' is not available: PyTorch finds no GPU"):
        stackattn.nondeterministic_weights(*STACK.inputs(1, 2), backend="triton")
    monkeypatch.setattr(dispatch.availability, "status", lambda: "available")
    with pytest.raises(ValueError, match="runs only on GPUs"):
        stackattn.nondeterministic_weights(*STACK.inputs(1, 2), backend="triton")
