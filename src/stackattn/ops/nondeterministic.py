"""The nondeterministic stack: from transition weights of a pushdown automaton to attention weights."""

from __future__ import annotations

import torch
from torch import Tensor

from . import checks, reference
from .cpp import native
from .dispatch import choose, module_of
from .lengths import without_padding
from .memory import names_argument
from .pytorch.steps import neutral
from .registration import operator_with_backward
from .transitions import join_transitions
from .window import windowed_weights


@names_argument("log_push")
def nondeterministic_weights(
    log_push: Tensor,
    log_replace: Tensor,
    log_pop: Tensor,
    lengths: Tensor | None = None,
    *,
    window: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attention weights of the nondeterministic stack: the probability that each earlier element is on top.

    Args:
        log_push: (B, T, Q, S, Q, S)
            Log weights of pushing y and moving to state r, from state q with x on top: `[b, t, q, x, r, y]`.
            State 0 is the start state and symbol 0 the bottom symbol; -inf forbids a transition.
        log_replace: (B, T, Q, S, Q, S)
            Log weights of replacing the top symbol x with y. The element keeps its vector.
        log_pop: (B, T, Q, S, Q)
            Log weights of popping x. A run that pops the bottom element ends and does not contribute to later rows.
        lengths: (B,), optional
            Number of steps of each sequence. Later steps are ignored; their rows and gradients are zero.
        window: an element that is pushed at step t can be popped up to step t + `window` - 1. After that, it can be
            read and replaced but not popped: a run that would pop it ends, as at the bottom. With T steps,
            `window >= T` is exact. The default is no limit.
        backend: `"auto"`, `"reference"`, `"torch"`, `"cpp"` or `"triton"`; see `stackattn.backends()`.

    Returns:
        (B, T, T + 1, Q, S)
            `weights[b, t, i, r, y]`: the share, among all runs, of those that are in state r after step t, with symbol
            y on top, and whose top element is the bottom (i = 0) or was pushed at step i - 1. Each row sums to 1; a row
            that no run reaches, because all runs are forbidden or have popped the bottom or an element that left the
            window, is zero and has zero gradients.

    Raises:
        TypeError, ValueError: an argument has the wrong type, dtype, shape or device, is out of range, or contains nan
            or +inf within the lengths.
        RuntimeError: the requested backend is not available.

    Examples::

        >>> import torch
        >>> from stackattn import nondeterministic_weights
        >>> B, T, Q, S, m = 1, 4, 2, 3, 5
        >>> log_push, log_replace = torch.randn(2, B, T, Q, S, Q, S)
        >>> log_pop = torch.randn(B, T, Q, S, Q)
        >>> weights = nondeterministic_weights(log_push, log_replace, log_pop)
        >>> weights.shape
        torch.Size([1, 4, 5, 2, 3])
        >>> values = torch.randn(B, T + 1, m)  # the bottom vector, then the pushed vectors
        >>> readings = torch.einsum("btiqs,bim->btqsm", weights, values)
    """
    checks.check_transitions(log_push, log_replace, log_pop, lengths)
    checks.check_limit("window", window)
    backend = choose(backend, log_push.device, *log_push.shape[2:4], windowed=window is not None)
    if backend == "reference":
        return _reference(log_push, log_replace, log_pop, lengths, window)
    if window is not None:
        return windowed_weights(join_transitions(log_push, log_replace, log_pop), lengths, window, backend)
    return _op(log_push, log_replace, log_pop, lengths, backend)[0]


def _check_numbers(log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None) -> None:
    for name, x in (("log_push", log_push), ("log_replace", log_replace), ("log_pop", log_pop)):
        checks.check_numbers(name, x, lengths, minus_infinity=True)


def _reference(
    log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None, window: int | None
) -> Tensor:
    lengths = checks.copy_lengths(lengths, log_push.shape[1])
    _check_numbers(log_push.detach(), log_replace.detach(), log_pop.detach(), lengths)
    weights = reference.nondeterministic_weights(*neutral(log_push, log_replace, log_pop, lengths), window=window)
    return without_padding(weights, lengths)


# The second result is the memory of the charts, which `torch` and `triton` reuse in the backward pass; empty for `cpp`.
_op, _op_backward = operator_with_backward(
    "nondeterministic_weights",
    "Tensor log_push, Tensor log_replace, Tensor log_pop, Tensor? lengths",
    "str backend",
    keeps_memory=True,
)


@_op.implementation
def _(log_push, log_replace, log_pop, lengths, backend):
    checks.check_transitions(log_push, log_replace, log_pop, lengths)  # a graph may call the operator directly
    lengths = checks.copy_lengths(lengths, log_push.shape[1])
    if backend == "cpp":
        return native.nondeterministic(log_push, log_replace, log_pop, lengths), _no_memory(log_push)
    _check_numbers(log_push, log_replace, log_pop, lengths)
    weights, memory = module_of(backend).nondeterministic(log_push, log_replace, log_pop, lengths)
    return weights.to(log_push.dtype).contiguous(), memory


@_op_backward.implementation
@names_argument("log_push", 1)
def _(grad, log_push, log_replace, log_pop, lengths, memory, backend):
    checks.check_transitions(log_push, log_replace, log_pop, lengths)
    if grad.shape != (expected := (*log_push.shape[:2], log_push.shape[1] + 1, *log_push.shape[2:4])):
        raise ValueError(f"grad: expected shape {expected} like the attention weights, got {tuple(grad.shape)}")
    lengths = checks.copy_lengths(lengths, log_push.shape[1])
    if backend == "cpp":
        return native.nondeterministic_backward(grad, log_push, log_replace, log_pop, lengths)
    found = module_of(backend).nondeterministic_backward(grad, log_push, log_replace, log_pop, lengths, memory)
    return tuple(x.to(log_push.dtype).contiguous() for x in found)


def _no_memory(x):
    return x.new_empty(0, dtype=torch.float64)


@_op.fake
def _(log_push, log_replace, log_pop, lengths, backend):
    B, T, Q, S = log_push.shape[:4]
    size = 0 if backend == "cpp" else module_of(backend).kept_size(T, B, Q, S)
    return log_push.new_empty(B, T, T + 1, Q, S), log_push.new_empty(size, dtype=torch.float64)


@_op.batched
def _(tensors, size, backend):
    weights, _ = _op(*tensors, backend)
    return (weights.unflatten(0, (size, -1)), _no_memory(weights)), (0, None)


@_op_backward.batched
def _(tensors, size, backend):
    grads = _op_backward(*tensors, _no_memory(tensors[0]), backend)
    return tuple(x.unflatten(0, (size, -1)) for x in grads), (0, 0, 0)
