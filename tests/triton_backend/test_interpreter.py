"""The kernels in Triton's interpreter, on the CPU: results and gradients against `cpp`, `reference` and `torch`."""

from contextlib import contextmanager

import pytest
import torch
from frozen import Frozen

import stackattn
from stackattn.ops.pytorch import operators as plain
from stackattn.ops.triton_backend import availability, charts, kernels, operators


def transitions(B, T, Q, S, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (B, T, Q, S, Q, S), (B, T, Q, S, Q, S), (B, T, Q, S, Q)
    return [scale * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def results(inputs, backend, lengths=None):
    """Attention weights, and the gradients of the inputs for a fixed random upstream gradient."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    operator = stackattn.nondeterministic_weights if len(inputs) == 3 else stackattn.superposition_weights
    weights = operator(*inputs, lengths, backend=backend)
    grad = torch.randn(weights.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [weights.detach(), *torch.autograd.grad(weights, inputs, grad)]


def assert_same(inputs, lengths=None, backends=("cpp", "torch")):
    found = results(inputs, "triton", lengths)
    for backend in backends:
        for x, y in zip(found, results(inputs, backend, lengths), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(("T", "Q", "S"), [(0, 2, 2), (1, 2, 2), (2, 1, 1), (3, 2, 2), (6, 2, 3), (4, 3, 6)])
def test_short_sequences(T, Q, S):
    assert_same(transitions(2, T, Q, S), backends=("cpp", "reference"))


def test_block_edges():
    """The last rows of F have 15 to 17 columns and a block has 16; blocks of P and D begin within a time point."""
    assert_same(transitions(1, 15, 3, 2))


@pytest.mark.slow
def test_several_blocks():
    assert_same(transitions(1, 18, 2, 2), torch.tensor([17]))


def test_lengths_and_garbage_in_the_padding():
    inputs, lengths = transitions(3, 5, 2, 2), torch.tensor([5, 0, 2])
    for x in inputs:
        x[1:, 3:] = torch.nan
    assert_same(inputs, lengths)


def test_forbidden_transitions_and_rows_without_runs():
    inputs = transitions(2, 6, 2, 2)
    inputs[0][:, 2, :, 1] = -torch.inf
    inputs[2][:, 1:4] = -torch.inf
    for x in inputs:
        x[1, 4] = -torch.inf
    assert_same(inputs)
    assert not results(inputs, "triton")[0][1, 4:].any()


def test_wide_logits_leave_the_range_and_are_computed_exactly():
    inputs = transitions(2, 6, 2, 2, scale=1000.0)
    out_of_range = plain._out_of_range(charts.fill(plain.scaled_steps(*inputs, extended=False), 2), None)
    assert out_of_range, "the test needs a sequence beyond the range of float64"
    assert_same(inputs, backends=("cpp",))


def test_any_strides_and_dtypes_of_lengths():
    """Transposed inputs, an expanded gradient, 32-bit lengths, and inputs that need no gradient."""
    push, replace, pop = (x.mT.contiguous().mT for x in transitions(2, 3, 2, 2))
    lengths = torch.tensor([3, 2], dtype=torch.int32)
    grads = []
    for backend in ("triton", "cpp"):
        inputs = [push.clone().requires_grad_(), replace.clone(), pop.clone()]
        assert not inputs[0].is_contiguous()
        weights = stackattn.nondeterministic_weights(*inputs, lengths, backend=backend)
        upstream = torch.arange(1.0, 3.0, dtype=torch.float64).expand_as(weights)
        weights.backward(upstream)
        assert [x.grad is None for x in inputs] == [False, True, True]
        grads.append(inputs[0].grad)
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-13)


def test_empty_batches():
    for inputs in (transitions(0, 3, 2, 2), [torch.rand(0, 3, 3, dtype=torch.float64)]):
        assert all(len(x) == 0 for x in results(inputs, "triton", torch.zeros(0, dtype=torch.int64)))


def test_superposition():
    generator = torch.Generator().manual_seed(0)
    actions = torch.randn(2, 7, 3, generator=generator, dtype=torch.float64).softmax(-1)
    assert_same([actions], backends=("cpp", "reference"))
    assert_same([actions], torch.tensor([3, 7]))
    longer = torch.randn(1, 18, 3, generator=generator, dtype=torch.float64).softmax(-1)
    assert_same([longer])


def test_readings_and_single_precision():
    inputs = [x.float() for x in transitions(2, 4, 2, 2)]
    values = torch.randn(2, 5, 3)
    readings = stackattn.nondeterministic_readings(*inputs, values, backend="triton")
    assert readings.dtype == torch.float32
    torch.testing.assert_close(readings, stackattn.nondeterministic_readings(*inputs, values, backend="cpp"))


@pytest.mark.slow
def test_gradcheck():
    inputs = [x.requires_grad_() for x in transitions(1, 3, 2, 1)]
    assert torch.autograd.gradcheck(
        lambda *x: stackattn.nondeterministic_weights(*x, backend="triton"), inputs, nondet_tol=0.0
    )


@pytest.mark.slow
def test_bitwise_repeatable():
    inputs = transitions(1, 6, 2, 2)
    assert all(map(torch.equal, results(inputs, "triton"), results(inputs, "triton")))


@pytest.mark.slow
def test_batches_in_parts(monkeypatch):
    """Charts that do not fit into memory together are computed in parts, and again in the backward pass."""
    inputs = transitions(3, 4, 2, 2)
    expected = results(inputs, "triton")
    kept = operators.nondeterministic(*inputs, None)[1]
    assert kept.numel() == operators.kept_size(4, 3, 2, 2) == charts.Chart.size(4, 3, 2, 2)
    monkeypatch.setenv("STACKATTN_CHART_MEMORY", str(2.5 * 8e-6 * charts.Chart.size(4, 1, 2, 2)))
    assert operators._part_size(4, 3, 2, 2) == 2
    assert operators.kept_size(4, 3, 2, 2) == 0
    assert operators.nondeterministic(*inputs, None)[1].numel() == 0
    for x, y in zip(results(inputs, "triton"), expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-15)


def test_kept_charts_are_used_whatever_the_limit_is_now(monkeypatch):
    inputs = transitions(2, 3, 2, 1)
    weights, kept = operators.nondeterministic(*inputs, None)
    expected = operators.nondeterministic_backward(weights, *inputs, None, kept)
    monkeypatch.setenv("STACKATTN_CHART_MEMORY", "0.0001")
    assert operators._part_size(3, 2, 2, 1) == 1
    assert all(map(torch.equal, operators.nondeterministic_backward(weights, *inputs, None, kept), expected))


def test_grids_are_within_the_limits_of_cuda(monkeypatch):
    """The last axis of a grid is limited to 65,535 sequences, here to 2; the first axis may be larger."""
    grids, original = [], charts.launch

    def recorded(kernel, grid, *args, **options):
        grids.append(grid)
        original(kernel, grid, *args, **options)

    monkeypatch.setattr(charts, "launch", recorded)
    monkeypatch.setattr(operators, "MOST_SEQUENCES", 2)
    assert_same(transitions(5, 2, 2, 1), torch.tensor([2, 0, 1, 2, 2]), backends=("cpp",))
    assert {grid[-1] for grid in grids} == {1, 2}


def test_launches_are_on_the_device_of_the_tensors(monkeypatch):
    """Triton launches on the current device, which may differ from that of the tensors."""
    current, launched, original = [], [], charts.launch

    @contextmanager
    def device_of(x):
        current.append(x.device)
        yield
        current.pop()

    def recorded(*args, **options):
        launched.append(list(current))
        original(*args, **options)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(charts, "launch", recorded)
    results(transitions(1, 2, 1, 1), "triton")
    results([torch.rand(1, 2, 3, dtype=torch.float64)], "triton")
    assert launched
    assert all(devices == [torch.device("cpu")] for devices in launched)


@pytest.mark.parametrize("superposition", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_launch_reads_what_it_writes(monkeypatch, superposition):
    actions = torch.rand(2, 6, 3, dtype=torch.float64).softmax(-1)
    inputs = [actions] if superposition else transitions(2, 5, 2, 2)
    expected = results(inputs, "triton")
    frozen = Frozen()
    monkeypatch.setattr(charts, "launch", frozen)
    found = results(inputs, "triton")
    T = inputs[0].shape[1]
    forward, backward = 2 * T, T + 2 * (T - 1) + 1  # the superposition stack fills its chart again in the backward pass
    assert frozen.launches == forward + backward + (forward if superposition else 0)
    assert all(map(torch.equal, found, expected))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["fill_P_and_D", "fill_F", "walk_back_F", "walk_back_D", "walk_back_P"])
def test_nan_in_a_tensor_that_is_read_is_noticed(monkeypatch, kernel):
    """Negative control for the test above: nan in a tensor that a launch reads changes the result."""

    def spoil(launched, reads):
        if launched is getattr(kernels, kernel):
            reads[-1] = torch.full_like(reads[-1], torch.nan)

    monkeypatch.setattr(charts, "launch", Frozen(spoil))
    inputs = transitions(1, 4, 2, 2)
    steps = plain.scaled_steps(*inputs, extended=False)
    chart = charts.fill(steps, 2)
    grads = charts.walk_back(steps, chart, torch.ones_like(chart.F))
    assert chart.F.isnan().any() or any(x.isnan().any() for x in grads)


@pytest.mark.usefixtures("_first_use")
def test_first_use_compares_with_torch(monkeypatch):
    device = torch.device("cpu")
    assert availability.works(device, 2, 1)
    assert availability.works(device, 1, 1)
    original = charts.fill

    def wrong(*args, **kwargs):
        chart = original(*args, **kwargs)
        chart.F[-1] *= 1.5
        return chart

    availability._agrees.cache_clear()
    monkeypatch.setattr(charts, "fill", wrong)
    with pytest.warns(RuntimeWarning, match="relative error"):
        assert not availability.works(device, 1, 1)
    monkeypatch.setattr(charts, "fill", lambda *_, **__: (_ for _ in ()).throw(OSError("no driver")))
    availability._agrees.cache_clear()
    inputs = transitions(1, 3, 1, 2)
    with pytest.warns(RuntimeWarning, match="OSError: no driver"):
        weights = stackattn.nondeterministic_weights(*inputs, backend="triton")
    assert torch.equal(weights, stackattn.nondeterministic_weights(*inputs, backend="torch"))


def test_errors():
    with pytest.raises(ValueError, match=r"up to 16 states \(Q\) and 32 pairs of state and symbol"):
        stackattn.nondeterministic_weights(*transitions(1, 2, 6, 6), backend="triton")
    with pytest.raises(ValueError, match="does not support limited depths, states"):
        stackattn.SuperpositionState.empty(1, backend="triton")
    assert stackattn.backends()["triton"] == "available"
