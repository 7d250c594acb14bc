"""Stack attention in models that already exist: in place of the self-attention of PyTorch's transformer layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .stack import StackAttention


def replace_self_attention(
    model: nn.TransformerEncoder | nn.TransformerDecoder, layers: Mapping[int, StackAttention]
) -> None:
    """Put stack attention into the layers with these indices, in place. The rest of the layer stays as it is: norms,
    dropout, residual connections, and what is called with which masks.

    Examples::

        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, batch_first=True), num_layers=5)
        replace_self_attention(encoder, {2: NondeterministicStackAttention(32)})
        y = encoder(x)
    """
    for index, stack in layers.items():
        if index not in range(-len(model.layers), len(model.layers)):
            raise ValueError(f"layers: expected indices of {len(model.layers)} layers, got {index!r}")
        old: Any = model.layers[index].self_attn
        if not isinstance(old, nn.MultiheadAttention):
            raise ValueError(f"layers: expected a MultiheadAttention in layer {index}, got {type(old).__name__}")
        d_model = stack.to_output.out_features
        if d_model != old.embed_dim:
            raise ValueError(f"layers: expected d_model {old.embed_dim} in layer {index}, got {d_model}")
        new = StackSelfAttention(stack, batch_first=old.batch_first).to(old.out_proj.weight).train(old.training)
        model.layers[index].self_attn = new
    if isinstance(model, nn.TransformerEncoder):
        model.use_nested_tensor = False  # stack attention reads padded tensors only


class StackSelfAttention(nn.Module):
    """Stack attention that is called as PyTorch's transformer layers call `nn.MultiheadAttention`.

    It is causal, with a mask or without. A mask that hides some of the past cannot be honoured and raises, as does
    asking for weights. Padding may stand anywhere: it is left out, and gets zeros.
    """

    in_proj_bias = None  # PyTorch takes it as a reason not to bypass this module with a fused kernel

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
        """query (B, T, d_model), or (T, B, d_model) unless `batch_first`, or (T, d_model); the same as key and value"""
        if key is not query or value is not query:
            raise ValueError("key, value: expected the query itself, since a stack attends to its own past only")
        if need_weights:
            raise ValueError("need_weights: expected False; `stack(x, return_weights=True)` gives a stack's weights")
        if query.is_nested:
            raise ValueError(
                "query: expected a padded tensor, got a nested one: set `encoder.use_nested_tensor = False`"
            )
        if attn_mask is not None and not is_causal:  # PyTorch's hint for a mask that was found to be causal
            check_past_is_visible("attn_mask", ~_masked("attn_mask", attn_mask))
        real = None if key_padding_mask is None else ~_masked("key_padding_mask", key_padding_mask)
        if query.dim() == 2:
            return self._attend(query[None], None if real is None else real[None])[0], None
        if self.batch_first:
            return self._attend(query, real), None
        return self._attend(query.transpose(0, 1), real).transpose(0, 1), None

    def _attend(self, x: Tensor, real: Tensor | None) -> Tensor:
        return self.stack(x) if real is None else without_padding_anywhere(self.stack, x, real)


def without_padding_anywhere(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, real: Tensor) -> Tensor:
    """What `function` makes of the `real` (B, T) steps of x (B, T, d), as if there were no others.

    `function` takes x with the real steps first, and `lengths`; the other steps get what it puts behind these.
    """
    order = (~real).long().argsort(dim=1, stable=True)[..., None]
    y = function(x.take_along_dim(order, 1), real.sum(1))
    return torch.zeros_like(y).scatter(1, order.expand_as(y), y)


def check_past_is_visible(name: str, visible: Tensor) -> None:
    """visible (..., T, T): whether step i may look at step j. A stack looks at all of j <= i."""
    if not visible.logical_or(torch.ones_like(visible).triu(1)).all():
        raise ValueError(f"{name}: expected nothing hidden but the future and padding: a stack reads all of its past")


def _masked(name: str, mask: Tensor) -> Tensor:
    """A mask of PyTorch's, where True or -inf mean masked, as booleans."""
    if mask.dtype == torch.bool:
        return mask
    masked = mask == -torch.inf
    if not (masked | (mask == 0)).all():
        raise ValueError(f"{name}: expected only 0 and -inf: a stack has no logits to add other numbers to")
    return masked
