"""The kernel's cross-entropy against PyTorch's, its fallbacks, and its errors."""

import pytest
import torch
from torch.func import grad, vmap
from torch.nn import functional

from stackattn.ops import cross_entropy as module
from stackattn.ops.cross_entropy import cross_entropy
from stackattn.ops.dispatch import kernel

SIZES = [(1, 1), (3, 2), (5, 7), (4, 8), (6, 31), (3, 32), (2, 65), (3, 1000), (40, 2003), (0, 5)]
smoothings = pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def inputs(N=4, C=9, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(N, C, generator=generator, dtype=torch.float64)
    return logits.to(dtype), torch.randint(C, (N,), generator=generator)


def pytorch(logits, targets, **options):
    return functional.cross_entropy(logits, targets, reduction="none", **options)


def with_gradient(function, logits, targets, **options):
    logits = logits.detach().requires_grad_()
    losses = function(logits, targets, **options)
    weights = torch.linspace(-1, 2, losses.numel(), dtype=losses.dtype).view_as(losses)
    return losses.detach(), torch.autograd.grad((losses * weights).sum(), logits)[0]


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b.to(a.dtype))


@pytest.mark.parametrize(("N", "C"), SIZES)
@dtypes
@smoothings
def test_the_kernel_equals_pytorchs_function(N, C, dtype, smoothing):
    """Some sizes fill whole vectors and others do not; the expected numbers are computed in float64."""
    logits, targets = inputs(N, C, dtype)
    found = with_gradient(cross_entropy, logits, targets, label_smoothing=smoothing)
    assert_same(found, with_gradient(pytorch, logits.double(), targets, label_smoothing=smoothing))
    assert all(x.dtype == dtype for x in found)


@smoothings
def test_gradcheck_of_the_kernel(smoothing):
    logits, targets = inputs(4, 9, torch.float64)
    targets[2] = -100

    def run(x):
        return cross_entropy(x, targets, label_smoothing=smoothing)

    assert torch.autograd.gradcheck(run, (logits.requires_grad_(),))
    assert torch.autograd.gradgradcheck(run, (logits,))


@dtypes
@smoothings
@pytest.mark.parametrize("ignored", [-100, 3])
def test_ignored_targets_in_the_kernel(dtype, smoothing, ignored):
    """`ignore_index` may be the index of a class. Logits of ignored rows are not read."""
    logits, targets = inputs(6, 9, dtype)
    targets[1::2] = ignored
    options = {"ignore_index": ignored, "label_smoothing": smoothing}
    expected = with_gradient(pytorch, logits, targets, **options)
    logits[targets == ignored] = torch.nan
    found = with_gradient(cross_entropy, logits, targets, **options)
    assert_same(found, expected)
    assert all((x[targets == ignored] == 0).all() for x in found)
    found = with_gradient(cross_entropy, logits, torch.full_like(targets, ignored), **options)
    assert all((x == 0).all() for x in found)


@dtypes
@pytest.mark.parametrize("scale", [1e4, 1e30, 3e38])
def test_very_large_logits_in_the_kernel(dtype, scale):
    logits, targets = inputs(6, 40, dtype)
    logits = (logits / logits.abs().max() * scale).to(dtype)
    found, expected = (with_gradient(f, logits, targets) for f in (cross_entropy, pytorch))
    assert_same(found, expected)


@dtypes
def test_a_common_offset_loses_no_digits_in_the_kernel(dtype):
    logits, targets = inputs(6, 40, dtype)
    logits = logits.round()
    found, expected = (with_gradient(cross_entropy, x, targets) for x in (logits + 2**20, logits))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@dtypes
@smoothings
def test_infinite_logits_in_the_kernel(dtype, smoothing):
    """A class with logit -inf has probability zero; where PyTorch's loss is nan or inf, so is that of the kernel."""
    logits, targets = inputs(6, 40, dtype)
    logits[0, 5:] = -torch.inf
    targets[0] = 2
    logits[1, targets[1]] = -torch.inf
    logits[2] = -torch.inf
    logits[3, 7] = torch.inf
    logits[4, 39] = torch.nan
    found, expected = (with_gradient(f, logits, targets, label_smoothing=smoothing) for f in (cross_entropy, pytorch))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_any_number_of_threads_of_the_kernel(threads):
    logits, targets = inputs(50, 3001)
    results = []
    for count in (1, 2, 3, 16):
        threads(count)
        results.append(with_gradient(cross_entropy, logits, targets, label_smoothing=0.1))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_any_shape_and_layout():
    logits, targets = inputs(24, 9)
    expected = with_gradient(cross_entropy, logits, targets)
    shaped = logits.view(2, 3, 4, 9), targets.view(2, 3, 4)
    assert_same(with_gradient(cross_entropy, *shaped), (expected[0].view(2, 3, 4), expected[1].view(2, 3, 4, 9)))
    other = logits.T.contiguous().T, torch.stack([targets, targets], dim=1)[:, 0]
    assert not any(x.is_contiguous() for x in other)
    assert_same(with_gradient(cross_entropy, *other), expected)
    assert cross_entropy(logits[0], targets[0]).shape == ()


def test_second_derivatives_are_pytorchs():
    def penalty(function, logits, targets):
        logits = logits.requires_grad_()
        (first,) = torch.autograd.grad(function(logits, targets).square().sum(), logits, create_graph=True)
        return first, *torch.autograd.grad(first.square().sum(), logits)

    assert_same(penalty(cross_entropy, *inputs()), penalty(pytorch, *inputs()))


def test_other_dtypes_use_pytorchs_function():
    logits, targets = inputs(dtype=torch.bfloat16)
    assert torch.equal(cross_entropy(logits, targets), pytorch(logits, targets))


def test_functional_transforms():
    logits, targets = inputs(6, 9)
    found = vmap(grad(lambda x, y: cross_entropy(x, y, label_smoothing=0.1).sum()))(logits, targets)
    logits.requires_grad_()
    expected = torch.autograd.grad(cross_entropy(logits, targets, label_smoothing=0.1).sum(), logits)
    assert_same([found], expected)


@pytest.mark.slow
def test_compile():
    torch._dynamo.reset()
    compiled = torch.compile(cross_entropy, fullgraph=True, backend="aot_eager")
    assert_same(with_gradient(compiled, *inputs()), with_gradient(cross_entropy, *inputs()))


def test_the_kernel_is_used_only_where_it_can_be(monkeypatch):
    calls = []
    original = module.network.cross_entropy
    monkeypatch.setattr(module.network, "cross_entropy", lambda *args: calls.append(args) or original(*args))
    logits, targets = inputs()
    cross_entropy(logits, targets)
    cross_entropy(logits.double(), targets)
    assert len(calls) == 2
    cross_entropy(logits.half(), targets)
    cross_entropy(logits.bfloat16(), targets)
    assert len(calls) == 2


@pytest.mark.parametrize("bad", [9, -1, -101, 2**62])
def test_targets_out_of_range_in_the_kernel(bad):
    logits, targets = inputs()
    targets[2] = bad
    with pytest.raises(IndexError, match=rf"targets: expected a class from 0 to 8 or -100 .*, got {bad} in row 2"):
        cross_entropy(logits, targets)


def test_targets_that_change_before_the_backward_pass_of_the_kernel():
    """NumPy hides the change from autograd; the kernel must not write outside the gradient."""
    logits, targets = inputs()
    losses = cross_entropy(logits.requires_grad_(), targets)
    targets.numpy()[1] = 10**9
    with pytest.raises(IndexError, match="got 1000000000 in row 1"):
        losses.sum().backward()


def test_errors_name_the_argument():
    logits, targets = inputs()
    with pytest.raises(ValueError, match=r"targets: expected shape \(4,\) for logits \(4, 9\), got \(3,\)"):
        cross_entropy(logits, targets[:3])
    with pytest.raises(ValueError, match=r"label_smoothing: expected a number from 0 to 1, got 1\.5"):
        cross_entropy(logits, targets, label_smoothing=1.5)


@pytest.mark.skipif(kernel is None, reason="the kernel is not available")
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({0: torch.zeros(4, 9, 1)}, ValueError, "logits: expected two axes"),
        ({0: torch.zeros(4, 9, dtype=torch.int64)}, TypeError, "logits: expected float32"),
        ({1: torch.zeros(3, dtype=torch.int64)}, ValueError, r"targets: expected shape \(4,\)"),
        ({1: torch.zeros(4)}, TypeError, "targets: expected int64"),
        ({3: -0.5}, ValueError, "smoothing: expected a number from 0 to 1"),
        ({4: torch.zeros(5)}, ValueError, r"losses: expected shape \(4,\)"),
        ({5: torch.zeros(4, 1)}, ValueError, r"kept: expected shape \(4, 2\)"),
        ({5: torch.zeros(4, 2, dtype=torch.float64)}, TypeError, "kept: expected float32"),
        ({0: torch.zeros(9, 4).T}, ValueError, "logits: expected a contiguous array"),
    ],
)
def test_the_kernel_checks_its_arrays(changes, error, message):
    arguments = [*inputs(), -100, 0.0, torch.zeros(4), torch.zeros(4, 2)]
    for position, value in changes.items():
        arguments[position] = value
    with pytest.raises(error, match=message):
        module.network._call("cross_entropy", *arguments)


def test_every_nan_stays_nan():
    """This includes a nan with all payload bits set, as in memory in which every bit is one."""
    logits, targets = inputs(C=40)
    logits[1, 3] = logits[2, 39] = torch.tensor(-1, dtype=torch.int32).view(torch.float32)
    losses, gradient = with_gradient(cross_entropy, logits, targets)
    assert losses.isnan().tolist() == [False, True, True, False]
    assert gradient[[1, 2]].isnan().all()
    assert gradient[[0, 3]].isfinite().all()
