"""Random calls to the functions that layers and models use, compared with the formulas in float64, gradients included.

The functions are readings with and without a window or a limited depth, at once and in chunks, causal attention,
dropout, and LSTMs with a stack.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

import stackattn
from stackattn.ops import lstm, reference
from stackattn.ops.attention import causal_attention
from stackattn.ops.dropout import dropout, multipliers
from stackattn.ops.keep_mask import draw_seed

from .drill import Case, Drill, Failed
from .operators import (
    BACKENDS,
    LENGTH_DTYPES,
    Weights,
    compare,
    draw,
    gradients,
    masked,
    padded,
    rounded,
    uses_reference,
    with_strides,
)

STACKS = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""Tolerances of readings: products with values, and windowed stacks, are not computed entirely in float64."""
NETWORK = 3e-4
"""Tolerance of attention, dropout and LSTMs, which are computed in float32."""

Draw = Callable[..., Tensor]


class Sizes:
    """Sizes of one call: small enough for the formulas, some of them larger than a vector register."""

    def __init__(self, rng: random.Random):
        self.B, self.T = rng.randint(0, 3), rng.choice((0, 1, 2, 3, 4, 5, 6, 6, 9, 17))
        self.Q, self.S = (rng.randint(1, 3), rng.randint(1, 3)) if self.T < 7 else (1, rng.randint(1, 2))
        self.m = rng.choice((1, 2, 3, 5, 8, 16, 17, 20))
        self.limit = rng.choice((None, 1, 2, 3, 5, 30))  # window or depth


def nondeterministic_readings(rng: random.Random, normal: Draw, lengths: Tensor | None, sizes: Sizes) -> str:
    B, T, Q, S, m, window = sizes.B, sizes.T, sizes.Q, sizes.S, sizes.m, sizes.limit
    dtype, backend = rng.choice(list(STACKS)), rng.choice(BACKENDS)
    shapes = ((B, T, Q, S, Q, S), (B, T, Q, S, Q, S), (B, T, Q, S, Q))
    steps = [draw(rng, shape, torch.Generator().manual_seed(rng.randrange(2**40))) for shape in shapes]
    inputs = [x.to(dtype) for x in (*steps, normal(B, T + 1, m))]

    def slow(*x: Tensor) -> Tensor:
        weights = masked(
            lambda *steps: reference.nondeterministic_weights(*steps, window), x[:3], lengths, (B, T, T + 1, Q, S)
        )
        return torch.einsum("btiqs,bim->btqsm", weights, x[3])

    def fast(*x: Tensor) -> Tensor:
        return stackattn.nondeterministic_readings(*x, lengths, window=window, backend=backend)

    def in_chunks(*x: Tensor) -> Tensor:
        assert window is not None
        state = stackattn.NondeterministicReadingState.empty(x[3][:, 0], Q, S, window=window, backend=backend)
        first, state = state.extend(*(y[:, :cut] for y in x[:3]), x[3][:, 1 : cut + 1])
        second, _ = state.extend(*(y[:, cut:] for y in x[:3]), x[3][:, cut + 1 :])
        return torch.cat([first, second], 1)

    upstream = rounded(normal(B, T, Q, S, m), dtype)
    strided = [*(with_strides(padded(x, lengths), rng) for x in inputs[:3]), with_strides(inputs[3], rng)]
    check(rng, fast, slow, strided, inputs, upstream, STACKS[dtype])
    if window is not None and lengths is None and B:
        cut = rng.randint(0, T)
        check(rng, in_chunks, slow, strided, inputs, upstream, STACKS[dtype])
    return "readings of a nondeterministic stack"


def superposition_readings(rng: random.Random, normal: Draw, lengths: Tensor | None, sizes: Sizes) -> str:
    B, T, m, depth = sizes.B, sizes.T, sizes.m, sizes.limit
    dtype, backend = rng.choice(list(STACKS)), rng.choice(BACKENDS)
    inputs = [x.to(dtype) for x in (normal(B, T, 3).softmax(-1), normal(B, T, m))]

    def slow(*x: Tensor) -> Tensor:
        return masked(lambda *y: reference.superposition_readings(*y, depth), x, lengths, (B, T, m))

    def fast(*x: Tensor) -> Tensor:
        return stackattn.superposition_readings(*x, lengths, depth=depth, backend=backend)

    def in_chunks(*x: Tensor) -> Tensor:
        state = stackattn.SuperpositionReadingState.empty(B, m, depth=depth, dtype=dtype, backend=backend)
        first, state = state.extend(*(y[:, :cut] for y in x))
        second, _ = state.extend(*(y[:, cut:] for y in x))
        return torch.cat([first, second], 1)

    upstream = rounded(normal(B, T, m), dtype)
    strided = [with_strides(padded(x, lengths), rng) for x in inputs]
    check(rng, fast, slow, strided, inputs, upstream, STACKS[dtype])
    if lengths is None:
        cut = rng.randint(0, T)
        check(rng, in_chunks, slow, strided, inputs, upstream, STACKS[dtype])
    return "readings of a superposition stack"


def attention(rng: random.Random, normal: Draw, lengths: Tensor | None, sizes: Sizes) -> str:
    B, T, heads = sizes.B, sizes.T + rng.choice((0, 0, 14, 60)), rng.randint(1, 3)
    if lengths is not None:
        lengths = torch.tensor([rng.randint(0, T) for _ in range(B)], dtype=torch.int64).to(lengths.dtype)
    inputs = [(normal(B, T, 3 * heads * sizes.m) * rng.choice((0.1, 1.0, 5.0))).float()]
    p, seed = rng.choice((0.0, 0.1, 0.9)), rng.randrange(2**40)

    def of(backend: str) -> Weights:
        def attend(x: Tensor) -> Tensor:
            torch.manual_seed(seed)  # the same dropout mask
            return causal_attention(x, heads, lengths, dropout=p, backend=backend)

        return attend

    strided = [with_strides(padded(inputs[0], lengths), rng)]
    check(rng, of("cpp"), of("reference"), strided, inputs, normal(B, T, heads * sizes.m).float().double(), NETWORK)
    return "attention"


def dropped(rng: random.Random, normal: Draw, lengths: Tensor | None, sizes: Sizes) -> str:
    shape = (sizes.B, rng.choice((0, 1, 7, 64, 1365, 4096, 5000)), rng.choice((1, 3)))
    p, seed, kind = rng.choice((0.1, 0.5, 0.99)), rng.randrange(2**40), rng.choice(("plain", "residual", "relu"))
    inputs = [normal(*shape).float() for _ in range(2 if kind == "residual" else 1)]

    def fast(x: Tensor, residual: Tensor | None = None) -> Tensor:
        torch.manual_seed(seed)
        return dropout(x, p, residual=residual, relu=kind == "relu")

    def slow(x: Tensor, residual: Tensor | None = None) -> Tensor:
        torch.manual_seed(seed)
        y = (x.relu() if kind == "relu" else x) * multipliers(x.shape, p, int(draw_seed()))
        return y if residual is None else residual + y

    strided = [with_strides(x, rng) for x in inputs]
    check(rng, fast, slow, strided, inputs, normal(*shape).float().double(), NETWORK)
    return "dropout"


def lstms(rng: random.Random, normal: Draw, lengths: Tensor | None, sizes: Sizes) -> str:
    B, T, Q, S, m, h = sizes.B, min(sizes.T, 6), sizes.Q, sizes.S, min(sizes.m, 5), rng.choice((1, 3, 8, 9))
    nondeterministic = rng.random() < 0.5
    readings, actions = (Q * S * m, Q * S * (2 * Q * S + Q)) if nondeterministic else (m, 3)
    shapes = [(B, T, 4 * h), (4 * h, readings), (4 * h, h), (actions + m, h), (actions + m,)]
    inputs = [normal(*shape).float() for shape in (*shapes, *([(m,)] if nondeterministic else []))]

    def fast(*x: Tensor) -> Tensor:
        if not nondeterministic:
            return lstm.superposition_lstm(*x)
        found = lstm.nondeterministic_lstm(*x, num_states=Q)  # pyright: ignore[reportCallIssue]
        if found is None:
            raise Failed("the kernel did not compute an LSTM with small weights")
        return found

    def slow(*x: Tensor) -> Tensor:
        if not nondeterministic:
            return lstm.superposition_reference(*x)
        return lstm.nondeterministic_reference(*x, num_states=Q)  # pyright: ignore[reportCallIssue]

    strided = [with_strides(x, rng) for x in inputs]
    check(rng, fast, slow, strided, inputs, normal(B, T, h).float().double(), NETWORK)
    return "LSTM"


KINDS = (nondeterministic_readings, nondeterministic_readings, superposition_readings, attention, dropped, lstms)


def check(
    rng: random.Random,
    fast: Weights,
    slow: Weights,
    strided: Sequence[Tensor],
    exact: Sequence[Tensor],
    upstream: Tensor,
    tolerance: float,
) -> None:
    found = gradients(fast, strided, upstream)
    expected = gradients(slow, [x.double() for x in exact], upstream) if uses_reference(rng) else None
    compare(found, expected, tolerance, fast.__name__)


@contextmanager
def prepare(folder: Path) -> Iterator[Case]:
    def case(rng: random.Random) -> str:
        torch.set_num_threads(rng.choice((1, 1, 1, 2)))
        generator = torch.Generator().manual_seed(rng.randrange(2**40))
        sizes, kind = Sizes(rng), rng.choice(KINDS)
        lengths = None
        if rng.random() < 0.5:
            lengths = torch.randint(0, sizes.T + 1, (sizes.B,), generator=generator).to(rng.choice(LENGTH_DTYPES))
        details = {"kind": kind.__name__, "lengths": lengths, **vars(sizes)}

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        try:
            return kind(rng, normal, lengths, sizes)
        except Failed as error:
            raise Failed(str(error), **details) from error
        except Exception as error:
            raise Failed(f"{type(error).__name__}: {error}", **details) from error

    yield case


DRILL = Drill("layers", 100, 20_000, prepare)
