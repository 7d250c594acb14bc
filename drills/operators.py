"""Random calls to the operators, compared with the reference: shapes, dtypes, strides, lengths and extreme values.

Each case calls the backend `cpp` or `torch`, forward and backward, at once and, without lengths, also through a state.
Weights and gradients are compared with those of the literal equations in float64. Invalid values must be refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

import stackattn
from stackattn.ops import dispatch, reference

from .drill import Case, Drill, Failed

NARROW = (torch.float32, torch.bfloat16, torch.float16)
DTYPES = {torch.float64: 1e-9, **{dtype: torch.finfo(dtype).eps for dtype in NARROW}}
"""Tolerances: the largest difference relative to the largest entry. All arithmetic is in float64, so results of other
dtypes are rounded only once, by at most eps / 2."""
LENGTH_DTYPES = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)
SCALES = (0.0, 1.0, 1.0, 1.0, 10.0, 100.0, 1000.0)
SANITIZED = hasattr(dispatch.kernel, "read_beyond")  # built by tests/sanitizers.sh
BACKENDS = [name for name in ("cpp", *(() if SANITIZED else ("torch",))) if stackattn.backends()[name] == "available"]

Weights = Callable[..., Tensor]


def draw(rng: random.Random, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Logits of one scale; sometimes many are tied or forbidden (-inf), or all are far from 0."""
    x = torch.randn(*shape, generator=generator, dtype=torch.float64) * rng.choice(SCALES)
    if rng.random() < 0.3:
        x = x.round()
    if rng.random() < 0.3:
        x[torch.rand(x.shape, generator=generator) < rng.random()] = -torch.inf
    if rng.random() < 0.1:
        x += rng.choice((1e4, -1e4, 700.0, -745.0))
    return x


def with_strides(x: Tensor, rng: random.Random) -> Tensor:
    """The same values in another memory layout."""
    kind = rng.randrange(6)
    if kind == 1:  # a slice of a larger tensor, with an offset
        large = torch.full([size + 2 for size in x.shape], torch.nan, dtype=x.dtype)
        inner = large[tuple(slice(1, size + 1) for size in x.shape)]
        return inner.copy_(x)
    if kind == 2:  # dimensions in another order
        order = list(range(x.dim()))
        rng.shuffle(order)
        back = [order.index(i) for i in range(x.dim())]
        return x.permute(order).contiguous().permute(back)
    if kind == 3:  # every second element
        large = torch.full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan, dtype=x.dtype)
        large[..., ::2] = x
        return large[..., ::2]
    if kind == 4 and x.shape[0] > 1 and (x == x[:1]).all():
        return x[:1].expand_as(x)
    if kind == 5:
        return torch._neg_view(-x)
    return x


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to `dtype`, in float64. Where gradients nearly cancel, rounding only one operand would change them."""
    return x.to(dtype).double()


def gradients(weights: Weights, inputs: Sequence[Tensor], upstream: Tensor) -> list[Tensor]:
    """The weights, and the gradients of their product with `upstream`."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    found = weights(*leaves)
    if not found.numel() or not found.requires_grad:  # nothing to differentiate if all lengths are 0
        return [found.detach(), *map(torch.zeros_like, leaves)]
    # an LSTM with one step does not use the weights of its actions
    unused_are_zero = {"allow_unused": True, "materialize_grads": True}
    return [found.detach(), *torch.autograd.grad(found, leaves, upstream.to(found.dtype), **unused_are_zero)]


def uses_reference(rng: random.Random) -> bool:
    """Whether to compare a call with the reference. With sanitizers, most calls only have to run, which is faster."""
    return not SANITIZED or rng.random() < 0.1


def compare(found: Sequence[Tensor], expected: Sequence[Tensor] | None, tolerance: float, what: str) -> None:
    if expected is None:
        if not all(x.isfinite().all() for x in found):
            raise Failed(f"{what}: results are not finite")
        return
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        if a.shape != b.shape:
            raise Failed(f"{what}: expected shape {tuple(b.shape)}, got {tuple(a.shape)}")
        if not a.numel():
            continue
        # Gradients may vanish, so that only rounding errors remain. Numbers below the normal range may be 0.
        size = max(b.abs().max().item(), 1e-3 if i else 0.0, torch.finfo(a.dtype).smallest_normal / tolerance)
        error = (a.double() - b).abs().max().item() / size
        if not error <= tolerance:
            part = f"gradient {i}" if i else "result"
            raise Failed(f"{what}: {part}: expected a relative error of at most {tolerance}, got {error}")


def by_state(empty: Callable[[], stackattn.NondeterministicState | stackattn.SuperpositionState], cut: int) -> Weights:
    """The operator through a state, in two chunks."""

    def weights(*inputs: Tensor) -> Tensor:
        state = empty()
        first, state = state.extend(*(x[:, :cut] for x in inputs))
        second, _ = state.extend(*(x[:, cut:] for x in inputs))
        missing = second.shape[2] - first.shape[2]
        zeros = first.new_zeros(*first.shape[:2], missing, *first.shape[3:])
        return torch.cat([torch.cat([first, zeros], 2), second], 1)

    return weights


def refuse(weights: Weights, inputs: Sequence[Tensor], lengths: Tensor | None, rng: random.Random) -> str:
    """Put one invalid number within the lengths; the operator must refuse it."""
    which = rng.randrange(len(inputs))
    broken = [x.clone() for x in inputs]
    b = rng.randrange(len(broken[0]))
    steps = broken[0].shape[1] if lengths is None else int(lengths[b])
    if not steps:
        return "empty"
    position = (b, rng.randrange(steps), *(rng.randrange(size) for size in broken[which].shape[2:]))
    broken[which][position] = rng.choice((torch.nan, torch.inf))
    try:
        weights(*broken)
    except ValueError:
        return "invalid values refused"
    raise Failed(f"{broken[which][position]} at {position} of input {which} was accepted")


@contextmanager
def prepare(folder: Path) -> Iterator[Case]:
    torch.set_num_threads(1)

    def case(rng: random.Random) -> str:
        generator = torch.Generator().manual_seed(rng.randrange(2**40))
        B, T, Q, S = rng.randint(0, 3), rng.randint(0, 6), rng.randint(1, 3), rng.randint(1, 3)
        nondeterministic = rng.random() < 0.6
        dtype = rng.choice(list(DTYPES))
        details = {"B": B, "T": T, "Q": Q, "S": S, "nondeterministic": nondeterministic, "dtype": str(dtype)}
        if nondeterministic:
            shapes = ((B, T, Q, S, Q, S), (B, T, Q, S, Q, S), (B, T, Q, S, Q))
            exact = [draw(rng, shape, generator).to(dtype) for shape in shapes]
            operator, slow = stackattn.nondeterministic_weights, reference.nondeterministic_weights
        else:
            logits = draw(rng, (B, T, 3), generator).clamp(min=-1e3)
            exact = [logits.softmax(-1).to(dtype)]
            operator, slow = stackattn.superposition_weights, reference.superposition_weights
        lengths = None
        if rng.random() < 0.5:
            lengths = torch.randint(0, T + 1, (B,), generator=generator).to(rng.choice(LENGTH_DTYPES))
        inputs = [with_strides(padded(x, lengths), rng) for x in exact]
        backend = rng.choice(BACKENDS)
        details |= {"backend": backend, "strides": [x.stride() for x in inputs], "lengths": lengths}
        try:
            fast: Weights = lambda *x: operator(*x, lengths, backend=backend)  # noqa: E731
            if B and T and rng.random() < 0.1:
                return refuse(fast, exact, lengths, rng)
            shape = (B, T, T + 1, Q, S) if nondeterministic else (B, T, T)
            upstream = rounded(torch.randn(shape, generator=generator, dtype=torch.float64), dtype)
            expected = None
            if uses_reference(rng):
                expected = gradients(lambda *x: masked(slow, x, lengths, shape), [x.double() for x in exact], upstream)
                compare(expected, None, 0.0, "reference")
            compare(gradients(fast, inputs, upstream), expected, DTYPES[dtype], "operator")
            if lengths is None and B and T > 1:
                cls = stackattn.NondeterministicState if nondeterministic else stackattn.SuperpositionState
                sizes = (B, Q, S) if nondeterministic else (B,)
                state = by_state(lambda: cls.empty(*sizes, backend=backend), rng.randint(0, T))
                compare(gradients(state, inputs, upstream), expected, DTYPES[dtype], "state")
                return "without comparison" if expected is None else "compared at once and in chunks"
            return "without comparison" if expected is None else "compared"
        except Failed as error:
            raise Failed(str(error), **details) from error
        except Exception as error:
            raise Failed(f"{type(error).__name__}: {error}", **details) from error

    yield case


def padded(x: Tensor, lengths: Tensor | None) -> Tensor:
    """`x` with nan beyond the lengths, where nothing may be read."""
    if lengths is None:
        return x
    beyond = torch.arange(x.shape[1]) >= lengths.long()[:, None]
    return x.masked_fill(beyond[(...,) + (None,) * (x.dim() - 2)], torch.nan)


def masked(slow: Weights, inputs: Sequence[Tensor], lengths: Tensor | None, shape: Sequence[int]) -> Tensor:
    """The reference, which has no lengths: each sequence alone, and zeros beyond its end."""
    rows = []
    for b in range(shape[0]):
        steps = shape[1] if lengths is None else int(lengths[b])
        row = inputs[0].new_zeros(shape[1:])
        if steps:
            own = slow(*(x[b : b + 1, :steps] for x in inputs))[0]
            extra = [
                n for size, full in zip(reversed(own.shape), reversed(shape[1:]), strict=True) for n in (0, full - size)
            ]
            row = torch.nn.functional.pad(own, extra)
        rows.append(row)
    return torch.stack(rows) if rows else inputs[0].new_zeros(shape)


DRILL = Drill("operators", 400, 50_000, prepare)
