"""The LSTM with a superposition stack in one call: the kernel against a loop of PyTorch's operations."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from stackattn.models import LSTMLM, LSTMConfig
from stackattn.ops import lstm

SIZES = [(1, 1, 8, 8), (2, 2, 5, 3), (3, 9, 10, 4), (5, 20, 17, 1), (4, 13, 33, 16), (0, 5, 8, 3)]


def arguments(B, T, h, m, scale=0.5):
    generator = torch.Generator().manual_seed(0)
    shapes = (B, T, 4 * h), (4 * h, m), (4 * h, h), (3 + m, h), (3 + m,)
    return [scale * torch.randn(shape, generator=generator) for shape in shapes]


def with_gradients(function, inputs):
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = function(*leaves)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    grads = torch.autograd.grad((y * weight).sum(), leaves, allow_unused=True)
    return [y.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True))]


@pytest.mark.parametrize("sizes", SIZES)
def test_kernel_is_the_reference(sizes):
    inputs = arguments(*sizes)
    found = with_gradients(lstm.superposition_lstm, inputs)
    expected = with_gradients(lstm.reference, [x.double() for x in inputs])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-4)


def test_kernel_at_large_numbers():
    """The activation functions saturate instead of overflowing."""
    inputs = arguments(3, 12, 9, 4, scale=100.0)
    found = with_gradients(lstm.superposition_lstm, inputs)
    assert all(x.isfinite().all() for x in found)
    torch.testing.assert_close(found[0], lstm.reference(*inputs), atol=1e-3, rtol=1e-3)


def test_bad_numbers_are_not_hidden():
    inputs = arguments(2, 5, 8, 3)
    inputs[0][1, 2, 0] = torch.nan
    y = lstm.superposition_lstm(*inputs)
    assert y[0].isfinite().all()
    assert y[1, :2].isfinite().all()
    assert y[1, 3].isnan().any()


def test_any_number_of_threads(threads):
    inputs, results = arguments(7, 15, 20, 6), []
    for count in (1, 2, 3, 16):
        threads(count)
        results.append(lstm.superposition_lstm(*inputs))
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_backward_twice_checkpointing_and_second_derivatives():
    inputs = [x.requires_grad_() for x in arguments(2, 6, 7, 3)]
    y = lstm.superposition_lstm(*inputs)
    first, again = (torch.autograd.grad(y.square().sum(), inputs, retain_graph=True) for _ in range(2))
    saved = checkpoint(lstm.superposition_lstm, *inputs, use_reentrant=False)
    for other in (again, torch.autograd.grad(saved.square().sum(), inputs)):
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))

    def penalty(function):
        grads = torch.autograd.grad(function(*inputs).square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in grads), inputs)

    for a, b in zip(penalty(lstm.superposition_lstm), penalty(lstm.reference), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def model():
    torch.manual_seed(0)
    return LSTMLM(LSTMConfig(input_size=5, output_size=4, hidden_size=20, stack="superposition-6", init_range=0.5))


@pytest.mark.parametrize("T", [1, 2, 3, 12])
def test_model_is_its_loop(T, monkeypatch):
    """With lengths too; and parameters that the loop does not use get no gradient."""
    ours = model()
    tokens = torch.randint(4, (3, T))
    tokens[:, 0] = 4
    lengths = torch.tensor([T, 1, max(T - 1, 1)])
    real = torch.arange(T) < lengths[:, None]
    results = []
    for unroll in (ours._unroll_in_one_call, lambda tokens: None):
        monkeypatch.setattr(ours, "_unroll_in_one_call", unroll)
        logits = ours(tokens, lengths)[real]
        grads = torch.autograd.grad(logits.logsumexp(-1).sum(), list(ours.parameters()), allow_unused=True)
        results.append((logits, *grads))
    for a, b in zip(*results, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_model_falls_back_to_the_loop(monkeypatch):
    calls = []
    kernel = lstm.network.lstm
    monkeypatch.setattr(lstm.network, "lstm", lambda *args: calls.append(args) or kernel(*args))
    ours = model()
    tokens = torch.tensor([[4, 1, 2, 3]])
    expected = ours(tokens)
    assert len(calls) == 1
    parameters = dict(ours.named_parameters())
    loss = torch.func.grad(lambda p: torch.func.functional_call(ours, p, (tokens,)).square().sum())
    gradients = torch.autograd.grad(expected.square().sum(), list(parameters.values()))
    for a, b in zip(loss(parameters).values(), gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours(tokens)
    assert torch.allclose(ours.double()(tokens).float(), expected, atol=1e-5)
    assert len(calls) == 1
