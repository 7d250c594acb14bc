"""Causal softmax attention with dropout: the kernel against the formula, its masks, and PyTorch's transforms."""

import pytest
import torch
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from stackattn.nn import SelfAttention
from stackattn.ops import attention, causal_attention
from stackattn.ops.keep_mask import draw_seed, keep_mask

SIZES = [(2, 1, 2, 8), (3, 25, 4, 7), (2, 17, 3, 5), (2, 61, 4, 8), (2, 33, 1, 32), (1, 130, 2, 20), (2, 9, 1, 1)]
sizes = pytest.mark.parametrize(("B", "T", "heads", "size"), SIZES)


def inputs(B=2, T=7, heads=2, size=3, dtype=torch.float32):
    return torch.randn(B, T, 3 * heads * size, generator=torch.Generator().manual_seed(0)).to(dtype)


def seeded(function, *args, seed=1, **options):
    torch.manual_seed(seed)
    return function(*args, **options)


def with_gradient(function, x, seed=1):
    x = x.detach().requires_grad_()
    y = seeded(function, x, seed=seed)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(y.dtype)
    return y.detach(), torch.autograd.grad((y * weight).sum(), x)[0]


@sizes
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_the_kernel_equals_the_reference(B, T, heads, size, dropout, with_lengths):
    """Values and gradients, with the same dropout mask, at sizes that do and do not fill vectors and blocks."""
    x = inputs(B, T, heads, size)
    lengths = torch.tensor([T // 2, T, 0][:B]) if with_lengths else None

    def run(backend):
        return lambda x: causal_attention(x, heads, lengths, dropout=dropout, backend=backend)

    found, expected = with_gradient(run("cpp"), x), with_gradient(run("reference"), x.double())
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, atol=5e-6, rtol=1e-5)
        if lengths is not None:
            assert (a[torch.arange(T) >= lengths[:, None]] == 0).all()


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradcheck_of_the_reference(dropout):
    lengths = torch.tensor([7, 4])

    def run(x):
        return seeded(causal_attention, x, 2, lengths, dropout=dropout, backend="reference")

    x = inputs(dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(run, (x,))
    assert torch.autograd.gradgradcheck(run, (x,))


def test_without_dropout_it_equals_pytorchs_attention():
    x, lengths = inputs(3, 20, 2, 8), torch.tensor([20, 5, 0])
    for backend in ("cpp", "reference"):
        found, expected = (
            with_gradient(lambda x, b=b: causal_attention(x, 2, lengths, backend=b), x) for b in (backend, "torch")
        )
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-5)


def test_steps_beyond_the_lengths_are_not_read():
    x, lengths = inputs(3, 20, 2, 8), torch.tensor([20, 5, 0])
    expected = with_gradient(lambda x: causal_attention(x, 2, lengths, dropout=0.2), x)
    x[torch.arange(20) >= lengths[:, None]] = torch.nan
    found = with_gradient(lambda x: causal_attention(x, 2, lengths, dropout=0.2), x)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_no_output_depends_on_later_steps():
    x = inputs(2, 40, 2, 8)
    before = seeded(causal_attention, x, 2, dropout=0.2)
    x[:, 23:] += 1
    after = seeded(causal_attention, x, 2, dropout=0.2)
    assert torch.equal(before[:, :23], after[:, :23])
    assert not torch.equal(before[:, 23], after[:, 23])


@pytest.mark.parametrize("scale", [30.0, 1e4])
def test_large_scores(scale):
    """The largest scores are subtracted before the exponential function."""
    x = inputs(2, 30, 2, 8) * scale**0.5
    found = with_gradient(lambda x: causal_attention(x, 2, dropout=0.2, backend="cpp"), x)
    expected = with_gradient(lambda x: causal_attention(x, 2, dropout=0.2, backend="reference"), x.double())
    assert all(a.isfinite().all() for a in found)
    torch.testing.assert_close(found[0].double(), expected[0], atol=1e-6 * scale, rtol=1e-4)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_numbers_are_not_hidden(bad):
    x = inputs(1, 20, 1, 8)
    x[0, 3, 0] = bad  # a query
    y = causal_attention(x, 1)
    assert not y[0, 3].isfinite().all()
    assert y[0, :3].isfinite().all()


def test_the_mask_can_be_read_from_the_output():
    """With equal scores and one-hot values, the output is the product of the mask, the weights and 1 / (1 - p)."""
    B, T, heads, p = 2, 19, 3, 0.25
    x = torch.zeros(B, T, 3, heads, T)
    x[:, :, 2] = torch.eye(T)[:, None]
    torch.manual_seed(3)
    y = causal_attention(x.flatten(2), heads, dropout=p).unflatten(-1, (heads, T)).transpose(1, 2)  # (B, heads, T, T)
    torch.manual_seed(3)
    seed = int(draw_seed())
    mask = keep_mask(seed, B * heads * T, T, p).reshape(B, heads, T, T).tril()
    counts = torch.arange(1, T + 1)[:, None]
    torch.testing.assert_close(y, mask / counts / (1 - p))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_any_number_of_threads(dropout, threads):
    x, results = inputs(5, 40, 3, 8), []
    for count in (1, 2, 3, 16):
        threads(count)
        results.append(with_gradient(lambda x: causal_attention(x, 3, dropout=dropout), x))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_repeatable_from_the_seed():
    x = inputs()
    first, again = (seeded(causal_attention, x, 2, dropout=0.5) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, causal_attention(x, 2, dropout=0.5))
    torch.manual_seed(5)
    causal_attention(x, 2)  # draws no numbers
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))


def test_inference_mode():
    x = inputs()
    with torch.inference_mode():
        found = seeded(causal_attention, x, 2, dropout=0.3)
    assert torch.equal(found, seeded(causal_attention, x, 2, dropout=0.3))


def test_arguments_that_are_not_contiguous():
    x = inputs(2, 7, 2, 3)
    other = torch.stack([x, x], dim=-1)[..., 0]
    assert not other.is_contiguous()
    found, expected = (with_gradient(lambda x: causal_attention(x, 2, dropout=0.3), y) for y in (other, x))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("contiguous", [True, False])
def test_second_derivatives(contiguous):
    """Second derivatives come from the reference, with the same mask."""

    def penalty(backend, x):
        x = x.requires_grad_()
        y = seeded(causal_attention, x if contiguous else x.mT.contiguous().mT, 2, dropout=0.3, backend=backend)
        (first,) = torch.autograd.grad(y.tanh().sum(), x, create_graph=True)
        return first, *torch.autograd.grad(first.square().sum(), x)

    found, expected = penalty("cpp", inputs()), penalty("reference", inputs(dtype=torch.float64))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-4)


def layer(dropout=0.0):
    torch.manual_seed(0)
    return SelfAttention(12, 3, dropout)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # from PyTorch's attention
def test_functional_transforms():
    """Under torch.func, PyTorch's attention is used, which computes the same function if there is no dropout."""
    attend, x = layer(), torch.randn(4, 6, 12)

    def loss(parameters, x):
        return functional_call(attend, parameters, (x[None],)).square().sum()

    parameters = dict(attend.named_parameters())
    found = vmap(grad(loss), (None, 0))(parameters, x)
    for i in range(4):
        expected = torch.autograd.grad(loss(parameters, x[i]), list(parameters.values()))
        for a, b in zip(found.values(), expected, strict=True):
            torch.testing.assert_close(a[i], b, atol=1e-5, rtol=1e-4)
    different = vmap(lambda x: causal_attention(x, 3, dropout=0.5), randomness="different")
    assert not torch.equal(*different(torch.ones(2, 1, 5, 36)))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch calls it
def test_forward_mode():
    x = inputs()
    _, tangent = torch.func.jvp(lambda x: causal_attention(x, 2), (x,), (torch.ones_like(x),))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        found = torch.autograd.forward_ad.unpack_dual(causal_attention(dual, 2)).tangent
    torch.testing.assert_close(found, tangent)


def test_checkpointing_draws_the_same_mask():
    x = inputs()

    def run(x):
        return causal_attention(x, 2, dropout=0.4).tanh()

    found = with_gradient(lambda x: checkpoint(run, x, use_reentrant=False), x)
    assert all(torch.equal(a, b) for a, b in zip(found, with_gradient(run, x), strict=True))


def test_autocast():
    attend, x = layer(0.1).eval(), torch.randn(2, 6, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = attend(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), attend(x), atol=0.02, rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("with_lengths", [False, True])
def test_compile(with_lengths):
    """One graph; the compiled code draws a new seed at each call."""
    torch._dynamo.reset()
    lengths = torch.tensor([7, 3]) if with_lengths else None
    compiled = torch.compile(
        lambda x, p: causal_attention(x, 2, lengths, dropout=p).tanh(), fullgraph=True, backend="aot_eager"
    )
    x = inputs()
    for p in (0.0, 0.4):
        found = with_gradient(lambda x: compiled(x, p), x)  # noqa: B023
        expected = with_gradient(lambda x: causal_attention(x, 2, lengths, dropout=p).tanh(), x)  # noqa: B023
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
    assert not torch.equal(compiled(x, 0.4), compiled(x, 0.4))


@pytest.mark.slow
def test_opcheck():
    x, lengths, seed = inputs(), torch.tensor([7, 3]), torch.tensor(5)
    operator = torch.ops.stackattn.causal_attention.default
    torch.library.opcheck(operator, (x.requires_grad_(), seed, lengths, 2, 0.3))
    (first,) = torch.autograd.grad(operator(x, seed, None, 2, 0.3)[0].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot differentiate its backward pass"):
        first.sum().backward()


def test_the_layer_uses_the_kernel_only_where_it_can(monkeypatch):
    calls = []
    kernel = attention.network.attention
    monkeypatch.setattr(attention.network, "attention", lambda *args: calls.append(args) or kernel(*args))
    attend, x = layer(0.1), torch.randn(2, 6, 12)
    attend(x)
    attend.eval()(x, torch.tensor([6, 2]))
    assert len(calls) == 2
    attend.double()(x.double())
    SelfAttention(12, 3, causal=False)(x)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [
        (ValueError, lambda: causal_attention(torch.zeros(2, 3, 10), 2), r"packed: expected shape \(B, T, 3 \* 2 \*"),
        (ValueError, lambda: causal_attention(torch.zeros(2, 12), 2), r"packed: expected shape"),
        (ValueError, lambda: causal_attention(torch.zeros(2, 3, 12), 0), "heads: expected a positive integer, got 0"),
        (
            ValueError,
            lambda: causal_attention(inputs(), 2, dropout=1.0),
            "dropout: expected a number from 0 to less than 1",
        ),
        (ValueError, lambda: causal_attention(inputs(), 2, torch.tensor([8, 1])), "lengths: expected values from 0 to"),
        (ValueError, lambda: causal_attention(inputs(), 2, backend="gpu"), "backend: expected one of"),
        (ValueError, lambda: causal_attention(inputs(), 2, backend="triton"), "backend 'triton' does not support"),
        (TypeError, lambda: causal_attention(inputs().double(), 2, backend="cpp"), "packed: expected float32"),
        (TypeError, lambda: causal_attention(inputs().long(), 2), "packed: expected one of float32"),
    ],
)
def test_errors_name_the_argument(error, call, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("shape", [(0, 4, 12), (2, 0, 12)])
def test_nothing_to_attend_to(shape):
    y, gradient = with_gradient(lambda x: causal_attention(x, 2, dropout=0.1), torch.zeros(shape))
    assert y.shape == (*shape[:2], 4)
    assert gradient.shape == shape
