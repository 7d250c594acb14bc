"""The windowed kernels in Triton's interpreter, on the CPU: results and gradients against other backends."""

import pytest
import torch
from frozen import Frozen

import stackattn
from stackattn.ops.pytorch import band as plain_band
from stackattn.ops.pytorch import window as plain
from stackattn.ops.triton_backend import availability, band, window, window_kernels
from stackattn.ops.window import first_row


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs_of(B, T, Q, S, m=3, scale=1.0):
    """Transitions and values."""
    shapes = (B, T, Q, S, Q, S), (B, T, Q, S, Q, S), (B, T, Q, S, Q)
    return [*(scale * random(*shape, seed=i) for i, shape in enumerate(shapes)), random(B, T + 1, m, seed=3)]


def results(inputs, backend, width, lengths=None):
    """Readings, and the gradients of their product with fixed numbers."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    readings = stackattn.nondeterministic_readings(*inputs, lengths, window=width, backend=backend)
    return [readings.detach(), *torch.autograd.grad(readings, inputs, random(*readings.shape, seed=4))]


def assert_same(inputs, width, lengths=None, backends=("cpp",)):
    found = results(inputs, "triton", width, lengths)
    for backend in backends:
        for x, y in zip(found, results(inputs, backend, width, lengths), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-13)
    return found


@pytest.mark.parametrize(
    ("T", "Q", "S", "width"), [(1, 2, 2, 1), (4, 1, 1, 2), (4, 2, 1, 1), (5, 2, 2, 3), (3, 2, 2, 9)]
)
def test_short_sequences(T, Q, S, width):
    assert_same(inputs_of(2, T, Q, S), width, backends=("cpp", "reference"))


@pytest.mark.slow
def test_block_edges():
    """17 columns per row, products of more than 16 terms, and several blocks of lanes that are not all full."""
    assert_same(inputs_of(2, 9, 3, 2, m=16), 7)
    assert_same(inputs_of(1, 4, 3, 6, m=2), 3)


def test_lengths_and_garbage_in_the_padding():
    inputs, lengths = inputs_of(3, 5, 2, 1), torch.tensor([5, 0, 2])
    for x in inputs[:3]:
        x[1:, 3:] = torch.nan
    assert_same(inputs, 3, lengths)


# The interpreter computes with NumPy, which warns about infinities in rows that are computed again.
infinities = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")


@infinities
def test_forbidden_transitions_and_rows_without_runs():
    inputs = inputs_of(2, 5, 2, 1)
    inputs[2][:, 1:3] = -torch.inf
    for x in inputs[:3]:
        x[1, 3] = -torch.inf
    assert not assert_same(inputs, 3)[0][1, 3:].any()


@infinities
def test_wide_logits_leave_the_range_and_are_computed_exactly(monkeypatch):
    repeated, original = [], plain_band.fill

    def recorded(*args, **options):
        repeated.append(options)
        return original(*args, **options)

    monkeypatch.setattr(plain_band, "fill", recorded)
    assert_same(inputs_of(2, 5, 2, 2, scale=1000.0), 3)
    assert {"extended": True} in repeated


def one_run(*, lost):
    """A run whose log weight falls by `lost` at each step, and an unreached symbol that keeps its weight."""
    *transitions, values = inputs_of(1, 9, 1, 3, m=2)
    push, replace, pop = (x.fill_(-torch.inf) for x in transitions)
    replace[0, 0, 0, 0, 0, 1], replace[0, 1:, 0, 1, 0, 1], replace[0, 1:, 0, 2, 0, 2] = 0.0, -lost, 0.0
    return [push, replace, pop, values]


def test_gradients_of_entries_without_runs(monkeypatch):
    """Gradients of entries that no run reaches do not overflow, and float64 is sufficient."""
    monkeypatch.setattr(plain_band, "fill", None)  # extended arithmetic would call it
    found = results(one_run(lost=140.0), "triton", 4)
    monkeypatch.undo()
    for x, y in zip(found, results(one_run(lost=140.0), "reference", 4), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-13)


@infinities
def test_no_run_is_lost():
    """In 4 steps, the mass falls by a factor of only e^400, but a run with a share of e^-700 becomes the heaviest."""
    inputs = one_run(lost=100.0)
    inputs[1][0, 0, 0, 0, 0, 2] = -700.0
    readings = assert_same(inputs, 4, backends=("cpp", "reference"))[0]
    assert readings[0, 8, 0, 2].abs().max() > 10 * readings[0, 8, 0, 1].abs().max()


@pytest.mark.slow
def test_weights_and_single_precision():
    transitions = [x.float() for x in inputs_of(2, 4, 2, 2)[:3]]
    found, expected = (
        stackattn.nondeterministic_weights(*transitions, window=2, backend=backend) for backend in ("triton", "cpp")
    )
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)


def rows_problem(B=2, T=5, Q=2, S=1, m=2, known=0, width=3):
    """Arguments of `forward`, and a gradient of its result."""
    steps, values = random(B, known + T, Q, S, 2 * Q * S + Q), random(B, known + T, m, seed=1)
    history = first_row(random(B, m, seed=2), Q, S)
    if known:
        history = torch.cat([history, plain.forward(steps[:, :known], values[:, :known], history, None, width)], 1)
    return (steps, values[:, known:], history[:, -width:]), random(B, T, Q * S * (m + 2) + 1, seed=3)


def both_passes(module, inputs, grad, width=3):
    rows = module.forward(*inputs, None, width)
    return [rows, *module.backward(grad, *inputs, rows, None, width)]


def assert_as_torch(inputs, grad, width=3):
    for x, y in zip(both_passes(window, inputs, grad, width), both_passes(plain, inputs, grad, width), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("known", [0, 2])
def test_segments_and_steps_after_a_state(monkeypatch, known):
    """Segments of 8 steps, at the start of a sequence and after the steps that a state keeps."""
    monkeypatch.setattr(plain_band, "_SHORTEST_SEGMENT", 1)
    monkeypatch.setenv("STACKATTN_CHART_MEMORY", "0.0001")
    assert_as_torch(*rows_problem(B=1, T=9, known=known, width=2), width=2)


def test_batches_in_parts(monkeypatch):
    problem = rows_problem(B=3, T=3)
    monkeypatch.setenv("STACKATTN_CHART_MEMORY", str(2.5e-6 * 3 * band.step_size(2, 1, 3)))
    assert window._parts(problem[0][0], 3) == [slice(0, 2), slice(2, 4)]
    assert_as_torch(*problem)


def test_grids_are_within_the_limits_of_cuda(monkeypatch):
    """A launch of the backward pass computes `window` rows of each sequence."""
    problem = rows_problem(B=3, T=3, width=2)
    monkeypatch.setattr(window, "MOST_SEQUENCES", 4)
    assert window._parts(problem[0][0], 2) == [slice(0, 2), slice(2, 4)]
    grids, original = [], band.launch

    def recorded(kernel, grid, *args, **options):
        grids.append(grid)
        original(kernel, grid, *args, **options)

    monkeypatch.setattr(band, "launch", recorded)
    assert_as_torch(*problem, width=2)
    assert max(size for grid in grids for size in grid[1:]) == 4


def test_empty_batches():
    assert all(len(x) == 0 for x in results(inputs_of(0, 3, 2, 1), "triton", 2, torch.zeros(0, dtype=torch.int64)))


def test_no_launch_reads_what_it_writes(monkeypatch):
    problem = rows_problem()
    expected = both_passes(window, *problem)
    frozen = Frozen()
    monkeypatch.setattr(band, "launch", frozen)
    found = both_passes(window, *problem)
    T, spans = 5, 2
    assert frozen.launches == (spans + T) + (spans + (T + 1) + 1 + (spans + 1) + 1)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    "kernel",
    [
        "fill_diagonal",
        "fill_row",
        pytest.param("walk_back_row", marks=pytest.mark.slow),
        pytest.param("walk_back_diagonal", marks=pytest.mark.slow),
    ],
)
def test_nan_in_a_tensor_that_is_read_is_noticed(monkeypatch, kernel):
    """Negative control for the test above: nan in a tensor that a launch reads changes the result."""

    def spoil(launched, reads):
        if launched is getattr(window_kernels, kernel):
            reads[-1] = torch.full_like(reads[-1], torch.nan)

    inputs, grad = rows_problem(B=1, T=4)
    monkeypatch.setattr(plain, "_out_of_range", lambda good: [])
    rows = plain.forward(*inputs, None, 3)
    monkeypatch.setattr(band, "launch", Frozen(spoil))
    if kernel.startswith("fill"):
        found = [window.forward(*inputs, None, 3)]
    else:
        found = window.backward(grad, *inputs, rows, None, 3)
    assert any(x.isnan().any() for x in found)


@pytest.mark.usefixtures("_first_use")
def test_first_use_compares_with_torch(monkeypatch):
    device = torch.device("cpu")
    assert availability.works(device, 1, 2, windowed=True)
    original = band.fill

    def wrong(*args):
        rows = original(*args)
        return rows._replace(numbers=rows.numbers * 1.5)

    monkeypatch.setattr(band, "fill", wrong)
    with pytest.warns(RuntimeWarning, match="for Q = 2 and S = 1 with a window on cpu: a tiny problem has"):
        assert not availability.works(device, 2, 1, windowed=True)
    inputs = inputs_of(1, 3, 2, 1)
    found, expected = (
        stackattn.nondeterministic_readings(*inputs, window=2, backend=backend) for backend in ("triton", "torch")
    )
    assert torch.equal(found, expected)
