"""Causal softmax attention with dropout of the weights.

PyTorch has no fused attention with dropout for the CPU, and for small heads its fused attention without dropout is slow
too. The kernel reads queries, keys and values where the projection leaves them, stores one number for each row instead
of the weights, and computes the dropout mask again in the backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import dropout as torch_dropout
from torch.nn.functional import scaled_dot_product_attention

from . import checks, dispatch
from .cpp import network
from .eager import backward_is_differentiated, differentiable_gradients, is_forward_mode, is_plain
from .keep_mask import draw_seed, keep_mask
from .lengths import without_padding
from .registration import NO_SECOND_DERIVATIVES, Operator


def causal_attention(
    packed: Tensor, heads: int, lengths: Tensor | None = None, *, dropout: float = 0.0, backend: str = "auto"
) -> Tensor:
    """Scaled dot-product attention of each step to itself and the steps before it.

    Args:
        packed: (B, T, 3 * heads * size)
            Queries, keys and values side by side, each with its heads side by side: the result of one linear layer.
        heads: number of heads.
        lengths: (B,), optional
            Number of steps of each sequence. Later steps are ignored; their rows and gradients are zero.
        dropout: probability of dropping an attention weight, from 0 to less than 1.
        backend: `"auto"`, `"cpp"`, `"torch"` or `"reference"`.
            `"cpp"` needs float32 on the CPU, `"torch"` is PyTorch's attention, and `"reference"` is the formula, with
            the dropout mask of `"cpp"`. `"auto"` uses `"cpp"` where it can run, and otherwise `"torch"`.

    Returns:
        (B, T, heads * size)

    Raises:
        TypeError, ValueError: an argument has the wrong type, dtype, shape or device, or is out of range.
        RuntimeError: the requested backend is not available.

    Examples::

        packed = torch.randn(2, 7, 3 * 32)
        y = causal_attention(packed, heads=4, dropout=0.1)  # (2, 7, 32)
    """
    _check_arguments(packed, heads, lengths, dropout)
    if backend != "auto":
        dispatch.choose(backend, packed.device)  # raises if it cannot run
    plain = is_plain(packed)
    if backend == "auto":
        compiling = torch.compiler.is_compiling() and packed.device.type == "cpu" and packed.dtype == torch.float32
        backend = "cpp" if plain or (compiling and dispatch.kernel is not None) else "torch"
    if backend == "torch":
        return _with_pytorch(packed, heads, lengths, dropout)
    seed = draw_seed() if dropout else torch.zeros((), dtype=torch.int64)
    if backend == "reference":
        return _reference(packed, heads, checks.copy_lengths(lengths, packed.shape[1]), dropout, int(seed))
    if plain:
        lengths = checks.copy_lengths(lengths, packed.shape[1])
        return _CausalAttention.apply(packed, heads, lengths, dropout, int(seed))  # pyright: ignore[reportReturnType]
    if packed.dtype != torch.float32:
        raise TypeError(f"packed: expected float32 for backend 'cpp', got {packed.dtype}; use 'torch' or 'auto'")
    return _op(packed, seed, lengths, heads, dropout)[0]


def _check_arguments(packed: Tensor, heads: int, lengths: Tensor | None, dropout: float) -> None:
    checks.check_tensor("packed", packed)
    if heads < 1:
        raise ValueError(f"heads: expected a positive integer, got {heads!r}")
    if packed.dim() != 3 or packed.shape[2] == 0 or packed.shape[2] % (3 * heads):
        raise ValueError(f"packed: expected shape (B, T, 3 * {heads} * size), got {tuple(packed.shape)}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout: expected a number from 0 to less than 1, got {dropout!r}")
    checks.check_lengths(lengths, packed)


def _split(packed: Tensor, heads: int, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, heads, T, size), with zeros in place of padding."""
    parts = without_padding(packed, lengths).chunk(3, dim=-1)
    queries, keys, values = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in parts)
    return queries, keys, values


def _join(y: Tensor, lengths: Tensor | None) -> Tensor:
    """(B, heads, T, size) -> (B, T, heads * size)"""
    return without_padding(y.transpose(1, 2).flatten(2), lengths)


def _with_pytorch(packed: Tensor, heads: int, lengths: Tensor | None, dropout: float) -> Tensor:
    queries, keys, values = _split(packed, heads, lengths)
    if packed.device.type != "cpu" or not (dropout or is_forward_mode()):
        return _join(scaled_dot_product_attention(queries, keys, values, None, dropout, True), lengths)
    # On the CPU, PyTorch's attention has no forward-mode derivative, and with dropout it takes three times as many
    # operations as the code below.
    T, size = queries.shape[2:]
    future = torch.full((T, T), -torch.inf, dtype=packed.dtype).triu(1)
    flat = (x.flatten(0, 1) for x in (queries, keys.mT))  # (B * heads, T, size), (B * heads, size, T)
    weights = torch.baddbmm(future, *flat, alpha=size**-0.5).softmax(-1)  # (B * heads, T, T)
    return _join((torch_dropout(weights, dropout) @ values.flatten(0, 1)).view_as(queries), lengths)


def _reference(packed: Tensor, heads: int, lengths: Tensor | None, dropout: float, seed: int) -> Tensor:
    queries, keys, values = _split(packed, heads, lengths)
    B, _, T, size = queries.shape
    future = torch.ones(T, T, dtype=torch.bool, device=packed.device).triu(1)
    weights = (queries @ keys.mT * size**-0.5).masked_fill(future, -torch.inf).softmax(-1)  # (B, heads, T, T)
    if dropout:
        mask = keep_mask(seed, B * heads * T, T, dropout).to(packed.device)
        weights = weights * mask.reshape(weights.shape) / (1 - dropout)
    return _join(weights @ values, lengths)


class _CausalAttention(torch.autograd.Function):
    """The kernel for eager code: half the overhead of a registered operator."""

    @staticmethod
    def forward(ctx, packed, heads, lengths, dropout, seed):
        outputs, log_sums = network.attention(packed, heads, lengths, dropout, seed)
        ctx.save_for_backward(packed, outputs, log_sums)
        ctx.rest = heads, lengths, dropout, seed
        return outputs

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        packed, outputs, log_sums = ctx.saved_tensors
        if not backward_is_differentiated():
            return network.attention_backward(grad, packed, outputs, log_sums, *ctx.rest), None, None, None, None
        found = differentiable_gradients(lambda x: _reference(x, *ctx.rest), (packed,), grad)
        return *found, None, None, None, None


# For torch.compile. The seed is a tensor, so that each call of the compiled code draws a new one.
_op = Operator(
    "causal_attention",
    "(Tensor packed, Tensor seed, Tensor? lengths, int heads, float dropout) -> (Tensor, Tensor)",
    saves_result=True,
)
_op_backward = Operator(
    "causal_attention_backward",
    "(Tensor grad, Tensor packed, Tensor seed, Tensor? lengths, Tensor outputs, Tensor log_sums, int heads,"
    " float dropout) -> Tensor",
)


@_op.implementation
def _(packed, seed, lengths, heads, dropout):
    _check_arguments(packed, heads, lengths, dropout)  # a graph may call the operator directly
    lengths = checks.copy_lengths(lengths, packed.shape[1])
    return network.attention(packed, heads, lengths, dropout, int(seed))


@_op_backward.implementation
def _(grad, packed, seed, lengths, outputs, log_sums, heads, dropout):
    lengths = checks.copy_lengths(lengths, packed.shape[1])
    return network.attention_backward(grad, packed, outputs, log_sums, heads, lengths, dropout, int(seed))


@_op.fake
def _(packed, seed, lengths, heads, dropout):
    B, T, width = packed.shape
    return packed.new_empty(B, T, width // 3), packed.new_empty(B, heads, T)


@_op_backward.fake
def _(grad, packed, seed, lengths, outputs, log_sums, heads, dropout):
    return torch.empty_like(packed, memory_format=torch.contiguous_format)


@_op.gradient
def _(inputs, memory, grad, heads, dropout):
    return _op_backward(grad, *inputs, *memory, heads, dropout), None


_op_backward.without_gradient(NO_SECOND_DERIVATIVES)
