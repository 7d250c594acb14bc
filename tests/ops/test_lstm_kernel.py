"""LSTMs with a stack in one call: the kernel against a loop of PyTorch operations."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from stackattn.models import LSTMLM, LSTMConfig
from stackattn.ops import lstm

# B, T, h (size of the hidden state), m, and Q, S for the nondeterministic stack
SUPERPOSITION = [(1, 1, 8, 8), (2, 2, 5, 3), (3, 9, 10, 4), (5, 20, 17, 1), (4, 13, 33, 16), (0, 5, 8, 3)]
NONDETERMINISTIC = [
    (1, 1, 8, 3, 2, 2),
    (2, 2, 5, 3, 1, 1),
    (0, 4, 8, 3, 2, 2),
    (3, 9, 10, 4, 3, 3),
    (2, 12, 9, 50, 1, 2),
    (2, 8, 5, 2, 4, 2),
    (1, 7, 5, 1, 5, 2),
]
SMALL = (3, 6, 7, 3), (2, 6, 7, 3, 2, 2)
both_stacks = pytest.mark.parametrize("sizes", SMALL, ids=("superposition", "nondeterministic"))


def arguments(B, T, h, m, Q=0, S=0, scale=0.5):
    """Arguments for the superposition stack, or for the nondeterministic stack if Q and S are given."""
    generator = torch.Generator().manual_seed(0)
    actions, readings = (Q * S * (2 * Q * S + Q), Q * S * m) if Q else (3, m)
    shapes = [(B, T, 4 * h), (4 * h, readings), (4 * h, h), (actions + m, h), (actions + m,), *([(m,)] if Q else [])]
    return [scale * torch.randn(shape, generator=generator) for shape in shapes]


def kernel(sizes):
    if len(sizes) == 4:
        return lstm.superposition_lstm
    return lambda *inputs: lstm.nondeterministic_lstm(*inputs, sizes[4])


def reference(sizes):
    if len(sizes) == 4:
        return lstm.superposition_reference
    return lambda *inputs: lstm.nondeterministic_reference(*inputs, num_states=sizes[4])


def with_gradients(function, inputs):
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = function(*leaves)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    grads = torch.autograd.grad((y * weight).sum(), leaves, allow_unused=True)
    return [y.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True))]


def same_bits(*results):
    return all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("sizes", SUPERPOSITION + NONDETERMINISTIC)
def test_the_kernel_equals_the_reference(sizes):
    inputs = arguments(*sizes)
    found = with_gradients(kernel(sizes), inputs)
    expected = with_gradients(reference(sizes), [x.double() for x in inputs])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-4)
    with torch.no_grad():  # without charts for a backward pass
        assert torch.equal(kernel(sizes)(*inputs), found[0])


def test_the_kernel_with_large_numbers():
    """The activation functions saturate instead of overflowing."""
    inputs = arguments(3, 12, 9, 4, scale=100.0)
    found = with_gradients(lstm.superposition_lstm, inputs)
    assert all(x.isfinite().all() for x in found)
    torch.testing.assert_close(found[0], lstm.superposition_reference(*inputs), atol=1e-3, rtol=1e-3)


def test_wide_log_weights():
    """Log weights from about -115 to 113 are in the range of float64; the gradients then vary widely too."""
    sizes = (2, 8, 6, 3, 2, 2)
    inputs = arguments(*sizes)
    inputs[3] *= 100
    found = with_gradients(kernel(sizes), inputs)
    expected = with_gradients(reference(sizes), [x.double() for x in inputs])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-3, rtol=1e-3)


def test_bad_numbers_are_not_hidden():
    inputs = arguments(2, 5, 8, 3)
    inputs[0][1, 2, 0] = torch.nan
    y = lstm.superposition_lstm(*inputs)
    assert y[0].isfinite().all()
    assert y[1, :2].isfinite().all()
    assert y[1, 3].isnan().any()
    inputs = arguments(2, 5, 8, 3, 2, 2)
    inputs[0][1, 2, 0] = torch.nan
    assert lstm.nondeterministic_lstm(*inputs, 2) is None


@pytest.mark.parametrize("sizes", [(19, 15, 20, 6), (19, 15, 20, 6, 3, 2)], ids=("superposition", "nondeterministic"))
def test_any_number_of_threads(sizes, threads):
    """Hidden states and all gradients, those of the weights included, have the same bits."""
    inputs, results = arguments(*sizes), []
    for count in (1, 2, 3, 16):
        threads(count)
        results.append(with_gradients(kernel(sizes), inputs))
    assert same_bits(*results)


@both_stacks
def test_any_batch(sizes):
    """A sequence has the same hidden states alone and in a batch that is computed in several parts."""
    inputs = arguments(21, *sizes[1:])
    together = kernel(sizes)(*inputs)
    alone = [kernel(sizes)(inputs[0][i : i + 1], *inputs[1:]) for i in (0, 7, 20)]
    assert all(torch.equal(together[i], y[0]) for i, y in zip((0, 7, 20), alone, strict=True))


@both_stacks
def test_backward_twice_and_checkpointing(sizes):
    inputs = [x.requires_grad_() for x in arguments(*sizes)]
    y = kernel(sizes)(*inputs)
    first, again = (torch.autograd.grad(y.square().sum(), inputs, retain_graph=True) for _ in range(2))
    saved = checkpoint(kernel(sizes), *inputs, use_reentrant=False)
    assert same_bits(first, again, torch.autograd.grad(saved.square().sum(), inputs))


@both_stacks
def test_second_derivatives(sizes):
    inputs = [x.requires_grad_() for x in arguments(*sizes)]

    def penalty(function):
        grads = torch.autograd.grad(function(*inputs).square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in grads), inputs)

    for a, b in zip(penalty(kernel(sizes)), penalty(reference(sizes)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


@both_stacks
def test_saved_tensor_hooks(sizes):
    """Hooks may return tensors of another layout."""
    inputs = [x.requires_grad_() for x in arguments(*sizes)]

    def spread(x):
        wide = x.new_empty(*x.shape[:-1], 2 * x.shape[-1] + 1)[..., 1::2] if x.dim() else x.clone()
        return wide.copy_(x)

    expected = torch.autograd.grad(kernel(sizes)(*inputs).square().sum(), inputs)
    with torch.autograd.graph.saved_tensors_hooks(spread, lambda x: x):
        y = kernel(sizes)(*inputs)
    assert same_bits(expected, torch.autograd.grad(y.square().sum(), inputs))


def model(stack, init_range=0.5):
    torch.manual_seed(0)
    return LSTMLM(LSTMConfig(input_size=5, output_size=4, hidden_size=20, stack=stack, init_range=init_range))


stacks = pytest.mark.parametrize("stack", ["superposition-6", "nondeterministic-2-3-5"])


def tokens_of(B, T):
    tokens = torch.randint(4, (B, T), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = 4
    return tokens


@stacks
@pytest.mark.parametrize("T", [1, 2, 3, 12])
def test_the_model_equals_its_loop(stack, T, monkeypatch):
    """Sequences have different lengths. Parameters that the loop does not use get no gradient."""
    ours, tokens = model(stack), tokens_of(3, T)
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


def count_calls(monkeypatch, stack):
    """A list to which each call of the kernel's loop over time appends its result."""
    name, calls = stack.split("-")[0] + "_lstm", []
    call = getattr(lstm.network, name)
    monkeypatch.setattr(lstm.network, name, lambda *args: calls.append(call(*args)) or calls[-1])
    return calls


@stacks
def test_model_falls_back_to_the_loop(stack, monkeypatch):
    calls, ours, tokens = count_calls(monkeypatch, stack), model(stack), tokens_of(1, 4)
    expected = ours(tokens)
    assert len(calls) == 1
    parameters = dict(ours.named_parameters())
    gradients = torch.autograd.grad(expected.square().sum(), list(parameters.values()))
    if stack.startswith("superposition"):  # the states of the other stack do not support torch.func
        loss = torch.func.grad(lambda p: torch.func.functional_call(ours, p, (tokens,)).square().sum())
        for a, b in zip(loss(parameters).values(), gradients, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours(tokens)
    assert torch.allclose(ours.double()(tokens).float(), expected, atol=1e-5)
    assert len(calls) == 1


def test_range_of_float64(monkeypatch):
    """If the range does not suffice, the loop in Python computes the logits exactly."""
    calls, ours, tokens = count_calls(monkeypatch, "nondeterministic"), model("nondeterministic-2-3-5"), tokens_of(2, 9)
    transitions = ours.stack.to_actions.bias.unflatten(0, (2, 3, 14))  # (Q, S, push, replace and pop)
    with torch.no_grad():
        # Nearly all the weight belongs to the two runs that pop the bottom at the first step. For all other runs, every
        # step weighs about e^-200, except one that pops symbol 0 in state 0.
        transitions[:] = -200
        transitions[0, 0, -2:] = 0
    logits = ours(tokens)
    assert calls == [None]
    assert logits.isfinite().all()
    exact = ours.double()(tokens)
    torch.testing.assert_close(logits.double(), exact, atol=1e-5, rtol=1e-4)


@both_stacks
def test_no_steps(sizes):
    """Without steps, all gradients are zero; tests/sanitizers.sh also detects writes beyond the empty arrays."""
    inputs = [x.requires_grad_() for x in arguments(2, 0, *sizes[2:])]
    y = kernel(sizes)(*inputs)
    assert y.shape == (2, 0, sizes[2])
    grads = torch.autograd.grad(y.sum(), inputs, allow_unused=True)
    assert all(x is None or not x.any() for x in grads)


@both_stacks
def test_negated_views(sizes):
    """A negated view has a bit that DLPack ignores."""
    inputs = arguments(*sizes)
    negated = [torch._neg_view(-x) for x in inputs]
    assert all(x.is_neg() for x in negated)
    assert same_bits(with_gradients(kernel(sizes), inputs), with_gradients(kernel(sizes), negated))
