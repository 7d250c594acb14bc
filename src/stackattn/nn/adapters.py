"""Stack attention in place of the self-attention of PyTorch's own transformer layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.immediate import reads_values
from .stack import StackAttention


def replace_self_attention(
    model: nn.TransformerEncoder | nn.TransformerDecoder, layers: Mapping[int, StackAttention]
) -> None:
    """Replace the self-attention of some layers with stack attention, in place.

    Norms, dropout and residual connections of these layers do not change.

    Args:
        model: PyTorch's encoder or decoder.
        layers: the stack attention of each layer to change, by the index of the layer; negative indices count from the
            end.

    Raises:
        ValueError: an index is out of range, a layer has no `MultiheadAttention`, or the `d_model` of a stack
            is not that of its layer.

    Examples::

        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, batch_first=True), num_layers=5)
        replace_self_attention(encoder, {2: NondeterministicStackAttention(32)})
        y = encoder(x)
    """
    for index, stack in layers.items():
        if index not in range(-len(model.layers), len(model.layers)):
            count = len(model.layers)
            raise ValueError(f"layers: expected indices from {-count} to {count - 1}, got {index!r}")
        old: Any = model.layers[index].self_attn
        if not isinstance(old, nn.MultiheadAttention):
            raise ValueError(f"layers: expected a MultiheadAttention in layer {index}, got {type(old).__name__}")
        d_model = stack.to_output.out_features
        if d_model != old.embed_dim:
            raise ValueError(f"layers: expected d_model {old.embed_dim} in layer {index}, got {d_model}")
        new = StackSelfAttention(stack, batch_first=old.batch_first).to(old.out_proj.weight).train(old.training)
        model.layers[index].self_attn = new
    if isinstance(model, nn.TransformerEncoder):
        model.use_nested_tensor = False  # stack attention does not support nested tensors


class StackSelfAttention(nn.Module):
    """Stack attention with the interface of `nn.MultiheadAttention`, as PyTorch's transformer layers use it.

    The attention is always causal. Padding may be anywhere: it is ignored, and its output is 0.

    Args:
        stack: the stack attention layer.
        batch_first: whether inputs have shape (B, T, d_model) instead of (T, B, d_model).

    Examples::

        attention = StackSelfAttention(SuperpositionStackAttention(32), batch_first=True)
        y, _ = attention(x, x, x, need_weights=False)                 # (B, T, 32) -> (B, T, 32)
    """

    in_proj_bias = None  # makes PyTorch call this module instead of a fused kernel

    def __init__(self, stack: StackAttention, *, batch_first: bool = False):
        super().__init__()
        self.stack = stack
        self.batch_first = batch_first

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Attend.

        Args:
            query: (B, T, d_model) with `batch_first`, otherwise (T, B, d_model); or (T, d_model)
            key, value: the same tensor as `query`.
            key_padding_mask: (B, T), or (T,) with `query` (T, d_model); optional
                True or -inf at padding.
            need_weights: must be False.
            attn_mask: optional
                Must let each step attend to itself and to all earlier steps; pass padding in `key_padding_mask`.
            average_attn_weights: ignored.
            is_causal: whether `attn_mask` is known to be causal; then it is not checked.

        Returns:
            The output, with the shape of `query`, and None.

        Raises:
            ValueError: `key` or `value` is another tensor, weights are requested, `query` is a nested tensor,
                `attn_mask` hides earlier steps, or a mask has values other than 0 and -inf. On a GPU, such a mask makes
                the output nan.
        """
        if key is not query or value is not query:
            raise ValueError(
                "key, value: expected the same tensor as query, got another; stack attention is self-attention"
            )
        if need_weights:
            raise ValueError(
                "need_weights: expected False, got True; call `stack(x, return_weights=True)` for the weights"
            )
        if query.is_nested:
            raise ValueError(
                "query: expected a padded tensor, got a nested tensor; set `encoder.use_nested_tensor = False`"
            )
        x, real = query, None
        if attn_mask is not None and not is_causal:
            hidden, x = _masked("attn_mask", attn_mask, x)
            x = check_past_is_visible("attn_mask", ~hidden, x)
        if key_padding_mask is not None:
            padding, x = _masked("key_padding_mask", key_padding_mask, x)
            real = ~padding
        if x.dim() == 2:
            return self._attend(x[None], None if real is None else real[None])[0], None
        if self.batch_first:
            return self._attend(x, real), None
        return self._attend(x.transpose(0, 1), real).transpose(0, 1), None

    def _attend(self, x: Tensor, real: Tensor | None) -> Tensor:
        return self.stack(x) if real is None else without_padding_anywhere(self.stack, x, real)


def without_padding_anywhere(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, real: Tensor) -> Tensor:
    """Apply `function` to the real steps only, wherever the padding is.

    Args:
        function: takes x, with the real steps moved to the front, and `lengths`.
        x: (B, T, d)
        real: (B, T), bool
            Steps that are not padding.

    Returns:
        The results of `function`, (B, T, d), each at the place of its step.
    """
    order = (~real).long().argsort(dim=1, stable=True)[..., None]
    y = function(x.take_along_dim(order, 1), real.sum(1))
    return torch.zeros_like(y).scatter(1, order.expand_as(y), y)


def check_past_is_visible(name: str, visible: Tensor, x: Tensor) -> Tensor:
    """Check that a mask lets each step attend to itself and to all earlier steps.

    Args:
        name: name of the mask.
        visible: (..., T, T), bool
            Whether step i may attend to step j.
        x: the input of the attention.

    Returns:
        The input x; see `_nan_unless`.
    """
    supported = visible.logical_or(torch.ones_like(visible).triu(1))
    expected = "a mask that lets each step attend to itself and to all earlier steps, got one that hides some of them"
    return _nan_unless(supported, x, f"{name}: expected {expected}; a stack depends on all earlier steps")


def check_mask_values(name: str, allowed: Tensor, x: Tensor) -> Tensor:
    """Check that all values of a mask are allowed, and return the input x of the attention; see `_nan_unless`."""
    expected = "only the values 0 and -inf, got others; stack attention has no logits to add them to"
    return _nan_unless(allowed, x, f"{name}: expected {expected}")


def _nan_unless(condition: Tensor, x: Tensor, message: str) -> Tensor:
    """Return x if the condition is true everywhere; else raise ValueError or, if values are not read, return nan."""
    if not reads_values(condition.device):
        return x.where(condition.all(), torch.nan)
    if not condition.all():
        raise ValueError(message)
    return x


def _masked(name: str, mask: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Convert one of PyTorch's masks, in which True or -inf means hidden, to booleans; the second result is `x`."""
    if mask.dtype == torch.bool:
        return mask, x
    masked = mask == -torch.inf
    return masked, check_mask_values(name, masked | (mask == 0), x)
