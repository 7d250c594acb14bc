"""Dropout in the kernel: agreement with PyTorch operations that use the same masks, and statistics of the generator."""

import pytest
import torch
from torch.func import vmap
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from stackattn.ops.dropout import dropout, multipliers
from stackattn.ops.keep_mask import draw_seed, keep_mask

KINDS = {"alone": {}, "residual": {"residual": True}, "relu": {"relu": True}}
kinds = pytest.mark.parametrize("kind", KINDS)


def run(kind, x, residual, p=0.3, seed=1):
    torch.manual_seed(seed)
    options = dict(KINDS[kind])
    if "residual" in options:
        options["residual"] = residual
    return dropout(x, p, **options)


def formula(kind, x, residual, factor):
    if kind == "residual":
        return residual + x * factor
    return (x.relu() if kind == "relu" else x) * factor


def arguments(*shape):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, requires_grad=True) for _ in range(2)]


@kinds
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (610, 32), (4096,), (4097,), (0, 3), (3, 50_001)])
def test_the_kernel_equals_the_formula(kind, shape):
    """Values and gradients, at sizes that do and do not fill whole vector registers and rows of the mask."""
    x, residual = arguments(*shape)
    y = run(kind, x, residual)
    torch.manual_seed(1)
    factor = multipliers(torch.Size(shape), 0.3, int(draw_seed()))
    expected = formula(kind, x, residual, factor)
    torch.testing.assert_close(y, expected)
    weight = torch.randn(shape)
    found = torch.autograd.grad((y * weight).sum(), [x, residual], allow_unused=True)
    expected = torch.autograd.grad((expected * weight).sum(), [x, residual], allow_unused=True)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


@kinds
def test_any_number_of_threads(kind, threads):
    x, residual = arguments(7, 50_000)
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(run(kind, x, residual))
    assert all(torch.equal(results[0], other) for other in results[1:])


@kinds
def test_second_derivatives(kind):
    x, residual = arguments(5, 7)
    y = run(kind, x, residual)
    (first,) = torch.autograd.grad(y.tanh().sum(), x, create_graph=True)
    second = torch.autograd.grad(first.square().sum(), x)[0]
    torch.manual_seed(1)
    factor = multipliers(x.shape, 0.3, int(draw_seed()))
    z = formula(kind, x, residual, factor)
    (expected,) = torch.autograd.grad(z.tanh().sum(), x, create_graph=True)
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(second, torch.autograd.grad(expected.square().sum(), x)[0])


@kinds
@pytest.mark.parametrize("change", [torch.Tensor.double, torch.Tensor.bfloat16])
def test_other_dtypes_use_pytorchs_dropout(kind, change):
    x, residual = (change(x.detach()) for x in arguments(5, 7))
    y = run(kind, x, residual)
    torch.manual_seed(1)
    z = functional.dropout(x.relu() if kind == "relu" else x, 0.3)
    assert torch.equal(y, residual + z if kind == "residual" else z)


@kinds
def test_checkpointing_draws_the_same_mask(kind):
    x, residual = arguments(5, 7)
    torch.manual_seed(1)
    y = checkpoint(lambda x: tanh_of_dropout(kind, x, residual), x, use_reentrant=False)
    (found,) = torch.autograd.grad(y.sum(), x)
    torch.manual_seed(1)
    (expected,) = torch.autograd.grad(tanh_of_dropout(kind, x, residual).sum(), x)
    assert torch.equal(found, expected)


def tanh_of_dropout(kind, x, residual):
    """Tanh of dropout, without setting a seed."""
    return dropout(x, 0.3, **({"residual": residual} if kind == "residual" else KINDS[kind])).tanh()


@kinds
def test_functional_transforms(kind):
    x, residual = (x.detach() for x in arguments(2, 50))
    y = vmap(lambda a, b: tanh_of_dropout(kind, a, b), randomness="different")(x, residual)
    assert y.shape == x.shape
    assert torch.func.grad(lambda x: tanh_of_dropout(kind, x, residual).sum())(x).shape == x.shape


@pytest.mark.slow
@kinds
def test_compile(kind):
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: tanh_of_dropout(kind, a, b), fullgraph=True, backend="aot_eager")
    x, residual = arguments(5, 70)
    compiled(x, residual).sum().backward()
    assert x.grad is not None
    assert not torch.equal(compiled(x, residual), compiled(x, residual))


def test_one_seed_for_each_call_from_pytorchs_generator():
    x = torch.ones(100)
    torch.manual_seed(2)
    dropout(x, 0.5)
    state = torch.get_rng_state()
    second = dropout(x, 0.5)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x, 0.5), second)
    assert not torch.equal(dropout(x, 0.5), second)


def test_bad_numbers_are_kept():
    x = torch.full((1000,), torch.nan)
    for kind in KINDS:
        assert run(kind, x, x).isnan().any()


@pytest.mark.parametrize(
    ("p", "options", "message"),
    [
        (1.0, {}, "p: expected a number from 0 to less than 1, got 1.0"),
        (-0.1, {}, "p: expected a number from 0"),
        (0.1, {"residual": torch.ones(3), "relu": True}, "residual: expected None together with relu=True"),
    ],
)
def test_errors(p, options, message):
    with pytest.raises(ValueError, match=message):
        dropout(torch.ones(3), p, **options)


# The generator. Bounds are five standard deviations, computed as if all hits were independent; the seeds are fixed, so
# the tests always give the same result.


def assert_probability(hits: torch.Tensor, p: float) -> None:
    n = hits.numel()
    assert abs(float(hits.double().mean()) - p) < 5 * (p * (1 - p) / n) ** 0.5


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_rate(p):
    dropped = ~keep_mask(12345, 1000, 1000, p)
    assert_probability(dropped, p)
    for rows in dropped.unflatten(0, (10, 100)):
        assert_probability(rows, p)
    for columns in dropped.mT.unflatten(0, (10, 100)):
        assert_probability(columns, p)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_independence(p):
    """Two numbers are both dropped with probability p squared.

    This holds at lags within a row and between rows, and for calls with neighbouring or distant seeds.
    """
    dropped = ~keep_mask(99, 2000, 500, p)
    for lag in (1, 2, 3, 4, 7, 8, 16, 31, 32, 64, 128, 256):
        assert_probability(dropped[:, lag:] & dropped[:, :-lag], p * p)
        assert_probability(dropped[lag:] & dropped[:-lag], p * p)
        assert_probability(dropped[lag:, lag:] & dropped[:-lag, :-lag], p * p)
    for seed in (98, 100, 99 + 2**32, 99 - 2**40, 8765432109876543210, -99):
        other = ~keep_mask(seed, 2000, 500, p)
        assert_probability(dropped & other, p * p)


def test_patterns_of_neighbours():
    """All 256 patterns of eight neighbours are equally frequent (chi-squared, 255 degrees of freedom)."""
    for kept in (keep_mask(7, 4000, 256, 0.5), keep_mask(7, 256, 4000, 0.5).mT):
        groups = kept.unflatten(1, (-1, 8)).long() @ (2 ** torch.arange(8))
        counts = torch.bincount(groups.flatten(), minlength=256).double()
        expected = counts.sum() / 256
        statistic = float(((counts - expected) ** 2 / expected).sum())
        assert abs(statistic - 255) < 5 * (2 * 255) ** 0.5
