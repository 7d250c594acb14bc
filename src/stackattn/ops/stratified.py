"""The stratified stack (Das et al., 1992; Grefenstette et al., 2015): elements with strengths between 0 and 1.

A step removes the strength `pop` from the top and then puts an element of strength `push` on top. The top unit of
strength is read. The attention weights have a closed form that consists of cumulative sums and maxima (docs/maths.md,
section 8), so plain PyTorch computes them, and there is no kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from . import checks, reference
from .immediate import is_traced, reads_values
from .lengths import length_mask, values_without_padding, without_padding
from .memory import names_argument
from .tensor_state import TensorState


@names_argument("push")
def stratified_weights(push: Tensor, pop: Tensor, lengths: Tensor | None = None, *, backend: str = "auto") -> Tensor:
    """Attention weights of the stratified stack: the share of each earlier value in the top unit of strength.

    Args:
        push: (B, T)
            Strength of the element that each step pushes, from 0 to 1.
        pop: (B, T)
            Strength that each step removes from the top before it pushes, from 0 to 1.
        lengths: (B,), optional
            Number of steps of each sequence. Later steps are ignored; their rows and gradients are zero.
        backend: `"auto"`, `"reference"` or `"torch"`; there is no kernel.

    Returns:
        (B, T, T)
            `weights[b, t, i]`: the share of the value pushed at step i in the reading of step t. A row sums to at most
            1; it sums to less if the remaining strengths of all elements sum to less than 1.

    Raises:
        TypeError, ValueError: an argument has the wrong type, dtype, shape or device, or a length, or a strength within
            the lengths, is out of range (not checked under torch.compile or torch.func, or on a GPU without
            `immediate_checks`).

    Examples::

        >>> import torch
        >>> from stackattn import stratified_weights
        >>> push, pop = torch.tensor([[1.0, 0.5, 0.25]]), torch.tensor([[0.0, 0.0, 0.25]])
        >>> stratified_weights(push, pop)[0, 2]  # 0.25 of the last value, 0.25 of the second, the rest of the first
        tensor([0.5000, 0.2500, 0.2500])
    """
    backend = _choose(backend)
    push, pop = _strengths(push, pop, lengths)
    if backend == "reference":
        weights = reference.stratified_weights(push, pop)
    else:
        weights = _weights(push, pop, push.new_zeros(push.shape[0], 0, dtype=torch.float64))[0].to(push.dtype)
    return without_padding(weights, lengths)


@names_argument("push")
def stratified_readings(
    push: Tensor, pop: Tensor, values: Tensor, lengths: Tensor | None = None, *, backend: str = "auto"
) -> Tensor:
    """Readings of the stratified stack: the sum of the values in the top unit of strength, weighted by their shares.

    Args:
        push: (B, T), as in `stratified_weights`.
        pop: (B, T)
        values: (B, T, m)
            The vectors that are pushed.
        lengths: (B,), optional
            Number of steps of each sequence. Later steps are ignored; their readings and gradients are zero.
        backend: `"auto"`, `"reference"` or `"torch"`; there is no kernel.

    Returns:
        (B, T, m)
            `stratified_weights(push, pop, lengths) @ values`

    Raises:
        TypeError, ValueError: as in `stratified_weights`, or `values` has the wrong type, dtype, shape or device.

    Examples::

        readings = stratified_readings(logits[..., 0].sigmoid(), logits[..., 1].sigmoid(), values)
    """
    weights = stratified_weights(push, pop, lengths, backend=backend)
    checks.check_values(values, push, push.shape[1])
    return weights @ values_without_padding(values, lengths, push.shape[1]).to(weights.dtype)


class StratifiedState(TensorState):
    """The state of a stratified stack after some steps. States are immutable: `extend` returns a new one.

    Examples::

        >>> import torch
        >>> from stackattn import StratifiedState
        >>> state = StratifiedState.empty(batch_size=2)
        >>> for _ in range(3):
        ...     weights, state = state.extend(torch.rand(2, 1), torch.rand(2, 1))  # (B, 1, steps so far)
        >>> state
        StratifiedState(batch_size=2, length=3, device=cpu)
    """

    _backend = "torch"

    def __init__(self, upwards: Tensor, length: int):
        self._tensor = upwards  # (B, length): the total strength of each element and all elements above it
        self.length = length

    @classmethod
    def empty(cls, batch_size: int, *, device: torch.device | str = "cpu") -> StratifiedState:
        """States of `batch_size` empty stacks on `device`.

        Raises:
            ValueError: `batch_size` is not a non-negative integer.
        """
        checks.check_count("batch_size", batch_size, least=0)
        return cls(torch.zeros(batch_size, 0, dtype=torch.float64, device=device), 0)

    def map(self, function: Callable[[Tensor], Tensor]) -> StratifiedState:
        """The same state with `function` applied to its tensor. The first axis is the batch."""
        return type(self)(function(self._tensor), self.length)

    def restart(self, rows: Tensor) -> StratifiedState:
        """The same state, with an empty stack for each sequence where `rows`, (B,), bool, is True."""
        rows = checks.check_rows(rows, self)
        return self.map(lambda x: x.where(~rows[:, None], 0.0))

    @property
    def strengths(self) -> Tensor:
        """The remaining strength of each element, (B, length), in the order in which the elements were pushed."""
        return self._tensor - pad(self._tensor[:, 1:], (0, 1))

    @names_argument("push", 1)
    def extend(self, push: Tensor, pop: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, StratifiedState]:
        """Extend the stack by c steps.

        Args:
            push, pop: (B, c) each
                Strengths, as in `stratified_weights`.
            lengths: (B,), optional
                How many of the c steps each sequence takes. Later steps are ignored.

        Returns:
            Attention weights (B, c, length + c), zero for ignored steps, and the new state.

        Raises:
            TypeError, ValueError: as in `stratified_weights`, or the batch size or device is not that of the state.
        """
        push, pop = _strengths(push, pop, lengths)
        checks.check_same_batch("push", push, self)
        weights, tensor = _weights(push, pop, self._tensor)
        return without_padding(weights.to(push.dtype), lengths), StratifiedState(tensor, self.length + push.shape[1])


def _choose(backend: str) -> str:
    if backend not in ("auto", "reference", "torch"):
        raise ValueError(f"backend: expected 'auto', 'reference' or 'torch' for a stratified stack, got {backend!r}")
    return "torch" if backend == "auto" else backend


def _strengths(push: Tensor, pop: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """The validated strengths, set to zero beyond the lengths, so that these steps change nothing."""
    for name, x in (("push", push), ("pop", pop)):
        checks.check_tensor(name, x)
        if x.dim() != 2 or x.shape != push.shape:
            expected = "shape (B, T)" if name == "push" else f"shape {tuple(push.shape)} like push"
            raise ValueError(f"{name}: expected {expected}, got {tuple(x.shape)}")
        if x.device != push.device:
            raise ValueError(f"{name}: expected device {push.device} like push, got {x.device}")
    checks.check_lengths(lengths, push)
    if lengths is not None:
        mask = length_mask(lengths, push.shape[1])
        push, pop = push.where(mask, 0.0), pop.where(mask, 0.0)
    if not is_traced() and reads_values(push.device):
        checks.copy_lengths(lengths, push.shape[1])
        for name, x in (("push", push), ("pop", pop)):
            if len(bad := ((x >= 0) & (x <= 1)).logical_not().nonzero()):
                b, t = bad[0].tolist()
                message = f"{name}: expected strengths from 0 to 1, got {x[b, t]} in sequence {{}} at step {t}"
                raise checks.SequenceError(message, b)
    return push, pop.to(push.dtype)


def _weights(push: Tensor, pop: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Attention weights (B, T, i) in float64, and the strength from each element upwards after the last step.

    `before` (B, h) is the strength from each element upwards before the first step.
    """
    (B, T), h = push.shape, before.shape[1]
    total = (push.double() - pop.double()).cumsum(1)  # (B, T)
    starts = torch.cat([before, push - total], dim=1)[:, None].expand(B, T, h + T)
    later = torch.ones(T, h + T, dtype=torch.bool, device=push.device).triu(h + 1)
    highest = starts.masked_fill(later, -torch.inf).flip(-1).cummax(-1).values.flip(-1)
    upwards = (total[..., None] + highest).clamp(min=0)  # (B, T, i)
    top = upwards.clamp(max=1)
    return top - pad(top[..., 1:], (0, 1)), upwards[:, -1] if T else before
