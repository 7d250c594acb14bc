"""The band and the rows of the windowed nondeterministic stack (docs/maths.md, section 10) as Triton kernels.

The rules of kernels.py hold here too: no program reads memory that its own launch writes, there are no atomic
operations, and offsets are 64-bit.

The band of a segment of n steps has P[j -> j + s] for the spans s = 2..window, and D[j -> j + s] for s = 1..window-1. A
launch computes one span for all starts j, symbols and sequences. A *lane* is a pair of sequence and start, b n + j; the
lanes of a span are contiguous, and a program computes the Q x Q matrices of a block of lanes as sums of outer products,
because they are too small for tensor cores.

A row has Q S x width numbers, of which the last column is alpha. Row x is at time point tau of the segment.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl

from .kernels import _dot, _moves, _place

_kernel = triton.jit(do_not_specialize=["n", "B", "width", "window", "s", "tau", "x", "origin", "low", "high"])


@triton.jit
def _in_band(kind, index, symbol, p, r, lane, lanes, window, Q: tl.constexpr, S: tl.constexpr):
    """Offset in a band (2, window - 1, S, Q, Q, lanes). Kind 0 is P with span index + 2, 1 is D with span index + 1."""
    return ((((kind * (window - 1) + index) * S + symbol) * Q + p) * Q + r) * lanes + lane


@triton.jit
def _in_rows(x, sequence, pair, column, B, width, Q: tl.constexpr, S: tl.constexpr):
    """Offset in rows (x, B, Q S, width)."""
    return ((x * B + sequence) * (Q * S) + pair) * width + column


@triton.jit
def _lanes(n, B, s, Q: tl.constexpr, BL: tl.constexpr, BQ: tl.constexpr):
    """A block of lanes, their sequences b and starts j, and states p and r, as axes of a block (BL, BQ, BQ).

    `here` is where they have a matrix of span s.
    """
    lane = (tl.program_id(0).to(tl.int64) * BL + tl.arange(0, BL))[:, None, None]
    b, j = lane // n, lane % n
    p = tl.arange(0, BQ).to(tl.int64)[None, :, None]
    r = tl.arange(0, BQ).to(tl.int64)[None, None, :]
    here = (lane < B * n) & (j + s <= n) & (p < Q) & (r < Q)
    return lane, b, j, p, r, here


@_kernel
def fill_diagonal(
    push, replace, band_in, band, n, B, window, s,
    Q: tl.constexpr, S: tl.constexpr, BL: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """P and D of span s, from those of smaller spans; s is at least 2."""
    n, B, window, s = tl.cast(n, tl.int64), tl.cast(B, tl.int64), tl.cast(window, tl.int64), tl.cast(s, tl.int64)
    lane, b, j, p, r, here = _lanes(n, B, s, Q, BL, BQ)
    w, lanes = tl.program_id(1).to(tl.int64), B * n
    move = ((j * B + b) * (Q * S) + p * S + w) * (Q * S) + r * 0
    P = tl.zeros((BL, BQ, BQ), dtype=tl.float64)
    D = tl.zeros((BL, BQ, BQ), dtype=tl.float64)
    for f in range(Q * S):
        next_D = _in_band(1, s - 2, f % S, f // S + p * 0, r, lane + 1, lanes, window, Q, S)
        D_next = tl.load(band_in + next_D, mask=here, other=0.0)
        P += tl.load(push + move + f, mask=here, other=0.0) * D_next
        D += tl.load(replace + move + f, mask=here, other=0.0) * D_next
    for inner in range(2, s):
        for u in range(Q):
            left = _in_band(0, inner - 2, w, p, u + r * 0, lane, lanes, window, Q, S)
            right = _in_band(1, s - inner - 1, w, u + p * 0, r, lane + inner, lanes, window, Q, S)
            D += tl.load(band_in + left, mask=here, other=0.0) * tl.load(band_in + right, mask=here, other=0.0)
    tl.store(band + _in_band(0, s - 2, w, p, r, lane, lanes, window, Q, S), P, mask=here)
    tl.store(band + _in_band(1, s - 1, w, p, r, lane, lanes, window, Q, S), D, mask=here & (lane * 0 + s < window))


@_kernel
def fill_row(
    push, replace, band, values, scales_in, rows_in, scales, rows, n, B, width, window, tau, x,
    Q: tl.constexpr, S: tl.constexpr, E: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Row x in units of the mass of row x - 1, from earlier rows, each also in units of the mass of the row before it.

    Rows of the history are in units of their own mass instead; the first `scales_in` takes this into account.
    `scales_in` (B, window - 1) converts the rows x - 2, x - 3, ... to the units of row x - 1, and `scales` the rows
    x - 1, x - 2, ... to those of row x; one more division, by the mass of row x - 1, is done here.
    """
    y, b, m, e = _place(Q, S)
    n, B, width, x = tl.cast(n, tl.int64), tl.cast(B, tl.int64), tl.cast(width, tl.int64), tl.cast(x, tl.int64)
    window, tau = tl.cast(window, tl.int64), tl.cast(tau, tl.int64)
    f = tl.arange(0, E).to(tl.int64)
    c = tl.program_id(0).to(tl.int64) * BC + tl.arange(0, BC)
    known, columns = (f < Q * S)[:, None], (c < width)[None, :]
    alpha = tl.load(rows_in + _in_rows(x - 1, b, f, width - 1, B, width, Q, S), mask=f < Q * S, other=0.0)
    unit = 1.0 / tl.sum(alpha, axis=0)  # infinite after a row without runs, which is out of range
    last = tl.load(
        rows_in + _in_rows(x - 1, b, f[:, None], c[None, :], B, width, Q, S), mask=known & columns, other=0.0
    )
    acc = tl.zeros((16, BC), dtype=tl.float64)
    acc = _dot(_moves(replace, tau - 1, b, f[None, :], e, B, Q, S), last * unit, acc)
    end = (tl.minimum(window, tau) + 1) * Q
    for start in range(2 * Q, end, BK):
        rho = start + tl.arange(0, BK)
        span, u = rho // Q, rho % Q
        real = rho < end
        lane = (b * n + tau - span)[None, :]
        P = tl.load(
            band + _in_band(0, (span - 2)[None, :], y, u[None, :], m[:, None], lane, B * n, window, Q, S),
            mask=real[None, :] & (m < Q)[:, None], other=0.0,
        )  # fmt: skip
        scale = tl.load(scales_in + b * (window - 1) + span - 2, mask=real, other=0.0) * unit
        earlier = tl.load(
            rows_in + _in_rows(x - span[:, None], b, (u * S + y)[:, None], c[None, :], B, width, Q, S),
            mask=real[:, None] & columns, other=0.0,
        )  # fmt: skip
        acc = _dot(P, earlier * scale[:, None], acc)
    pushed = tl.sum(_moves(push, tau - 1, b, f[None, :], e, B, Q, S) * (alpha * unit)[None, :], axis=1)[:, None]
    acc += pushed * tl.load(values + ((x - window) * B + b) * width + c, mask=c < width, other=0.0)[None, :]
    tl.store(rows + _in_rows(x, b, e, c[None, :], B, width, Q, S), acc, mask=(m < Q)[:, None] & columns)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        for start in range(0, window - 1, BK):
            i = start + tl.arange(0, BK)
            older = tl.load(scales_in + b * (window - 1) + i - 1, mask=(i > 0) & (i < window - 1), other=1.0)
            tl.store(scales + b * (window - 1) + i, older * unit, mask=i < window - 1)


@_kernel
def walk_back_row(
    push, replace, band, values, factors, rows, given, d_in, d_rows, n, B, width, window, x, origin, low, high,
    Q: tl.constexpr, S: tl.constexpr, E: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradients of row x and the rows after it, from those of the rows low..high-1.

    On the last axis of the grid, each group of B programs computes one row. `factors` (x, B, window) has the mass of
    row x, divided by those of the rows x + 1, x + 2, ...; row `origin` is at time point 0 of the segment, and row `low`
    is the first one that the segment has computed. Entries that no run reaches have no effect on the gradient of any
    weight; their own gradients, which may be too large for float64, are set to zero.
    """
    y, _, m, e = _place(Q, S)
    row, b = tl.program_id(2) // B, (tl.program_id(2) % B).to(tl.int64)
    n, B, width, x = tl.cast(n, tl.int64), tl.cast(B, tl.int64), tl.cast(width, tl.int64), tl.cast(x, tl.int64) + row
    window, origin = tl.cast(window, tl.int64), tl.cast(origin, tl.int64)
    low, high = tl.cast(low, tl.int64), tl.cast(high, tl.int64)
    tau = x - origin
    f = tl.arange(0, E).to(tl.int64)
    c = tl.program_id(0).to(tl.int64) * BC + tl.arange(0, BC)
    columns = (c < width)[None, :]
    acc = tl.zeros((16, BC), dtype=tl.float64)
    factor = factors + (x * B + b) * window
    if (x + 1 >= low) & (x + 1 < high):
        known = f < Q * S
        moved = tl.load(factor)  # from the units of row x to those of row x + 1
        after = tl.load(
            d_in + _in_rows(x + 1, b, f[:, None], c[None, :], B, width, Q, S), mask=known[:, None] & columns, other=0.0
        )
        acc = _dot(_moves(replace, tau, b, e, f[None, :], B, Q, S), after * moved, acc)
        if (tl.program_id(0).to(tl.int64) + 1) * BC >= width:  # alpha, from what step x + 1 pushes
            pushes = tl.zeros((E,), dtype=tl.float64)
            for start in range(0, width, BK):
                i = start + tl.arange(0, BK)
                d = tl.load(
                    d_in + _in_rows(x + 1, b, f[:, None], i[None, :], B, width, Q, S),
                    mask=known[:, None] & (i < width)[None, :], other=0.0,
                )  # fmt: skip
                v = tl.load(values + ((x + 1 - window) * B + b) * width + i, mask=i < width, other=0.0)
                pushes += tl.sum(d * v[None, :], axis=1)
            to_alpha = tl.sum(_moves(push, tau, b, e, f[None, :], B, Q, S) * (pushes * moved)[None, :], axis=1)
            acc += tl.where((c == width - 1)[None, :], to_alpha[:, None], 0.0)
    begin = tl.where(tau >= 0, tl.maximum(low - x, 2) * Q, window * Q + Q)
    end = (tl.minimum(window, high - 1 - x) + 1) * Q
    for start in range(begin, end, BK):
        rho = start + tl.arange(0, BK)
        span, r = rho // Q, rho % Q
        real = rho < end
        P = tl.load(
            band + _in_band(0, (span - 2)[None, :], y, m[:, None], r[None, :], b * n + tau, B * n, window, Q, S),
            mask=real[None, :] & (m < Q)[:, None], other=0.0,
        )  # fmt: skip
        later = tl.load(
            d_in + _in_rows(x + span[:, None], b, (r * S + y)[:, None], c[None, :], B, width, Q, S),
            mask=real[:, None] & columns, other=0.0,
        )  # fmt: skip
        acc = _dot(P, later * tl.load(factor + span - 1, mask=real, other=0.0)[:, None], acc)
    alpha = tl.load(rows + _in_rows(x, b, e, width - 1, B, width, Q, S), mask=(m < Q)[:, None], other=0.0)
    here = _in_rows(x, b, e, c[None, :], B, width, Q, S)
    acc += tl.load(given + here, mask=(m < Q)[:, None] & columns, other=0.0)
    acc = tl.where(alpha != 0, acc, 0.0)
    tl.store(d_rows + here, acc, mask=(m < Q)[:, None] & columns)


@_kernel
def rows_to_P(
    rows, d_rows, factors, dP, n, B, width, window, origin, low,
    Q: tl.constexpr, S: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradient of P[. -> t] from row t, for each row from `low` on; dP is the first half of a band."""
    y, b, m, _ = _place(Q, S)
    n, B, width, low = tl.cast(n, tl.int64), tl.cast(B, tl.int64), tl.cast(width, tl.int64), tl.cast(low, tl.int64)
    window, origin = tl.cast(window, tl.int64), tl.cast(origin, tl.int64)
    x = low + tl.program_id(0).to(tl.int64)
    tau = x - origin
    e = tl.where(m < Q, m * S + y, Q * S)[None, :]
    end = (tl.minimum(window, tau) + 1) * Q
    for start in range(2 * Q, end, BK):
        rho = start + tl.arange(0, BK)
        span, u = rho // Q, rho % Q
        real = rho < end
        acc = tl.zeros((BK, 16), dtype=tl.float64)
        for first in range(0, width, BC):
            c = first + tl.arange(0, BC)
            earlier = tl.load(
                rows + _in_rows(x - span[:, None], b, (u * S + y)[:, None], c[None, :], B, width, Q, S),
                mask=real[:, None] & (c < width)[None, :], other=0.0,
            )  # fmt: skip
            d = tl.load(
                d_rows + _in_rows(x, b, e, c[:, None], B, width, Q, S),
                mask=(c < width)[:, None] & (m < Q)[None, :], other=0.0,
            )  # fmt: skip
            acc = _dot(earlier, d, acc)
        factor = tl.load(factors + ((x - span) * B + b) * window + span - 1, mask=real, other=0.0)
        out = _in_band(
            0, (span - 2)[:, None], y, u[:, None], m[None, :], b * n + tau - span[:, None], B * n, window, Q, S
        )
        tl.store(dP + out, acc * factor[:, None], mask=real[:, None] & (m < Q)[None, :])


@_kernel
def walk_back_diagonal(
    push, replace, band, given, d_in, d_band, n, B, window, s,
    Q: tl.constexpr, S: tl.constexpr, BL: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """The gradients of P and D of span s, from those of larger spans; `given` is the first half of a band."""
    n, B, window, s = tl.cast(n, tl.int64), tl.cast(B, tl.int64), tl.cast(window, tl.int64), tl.cast(s, tl.int64)
    lane, b, j, p, r, here = _lanes(n, B, s, Q, BL, BQ)
    w, lanes = tl.program_id(1).to(tl.int64), B * n
    pushes = here & (lane * 0 + s > 1)
    at_P = _in_band(0, s - 2, w, p, r, lane, lanes, window, Q, S)
    dP = tl.load(given + at_P, mask=pushes, other=0.0)
    for span in range(s + 1, window):
        inside = pushes & (j + span <= n)
        for z in range(Q):
            whole = _in_band(1, span - 1, w, p, z + r * 0, lane, lanes, window, Q, S)
            right = _in_band(1, span - s - 1, w, r, z + p * 0, lane + s, lanes, window, Q, S)
            dP += tl.load(d_in + whole, mask=inside, other=0.0) * tl.load(band + right, mask=inside, other=0.0)
    tl.store(d_band + at_P, dP, mask=pushes)
    dD = tl.zeros((BL, BQ, BQ), dtype=tl.float64)
    before = here & (j > 0) & (lane * 0 + s < window)
    for f in range(Q * S):
        move = (((j - 1) * B + b) * (Q * S) + f) * (Q * S) + p * S + w + r * 0
        whole = _in_band(0, s - 1, f % S, f // S + p * 0, r, lane - 1, lanes, window, Q, S)
        dD += tl.load(push + move, mask=before, other=0.0) * tl.load(d_in + whole, mask=before, other=0.0)
        replaced = before & (lane * 0 + s + 1 < window)
        whole = _in_band(1, s, f % S, f // S + p * 0, r, lane - 1, lanes, window, Q, S)
        dD += tl.load(replace + move, mask=replaced, other=0.0) * tl.load(d_in + whole, mask=replaced, other=0.0)
    for inner in range(2, window - s):
        inside = here & (j >= inner)
        for z in range(Q):
            left = _in_band(0, inner - 2, w, z + r * 0, p, lane - inner, lanes, window, Q, S)
            whole = _in_band(1, s + inner - 1, w, z + p * 0, r, lane - inner, lanes, window, Q, S)
            dD += tl.load(band + left, mask=inside, other=0.0) * tl.load(d_in + whole, mask=inside, other=0.0)
    tl.store(d_band + _in_band(1, s - 1, w, p, r, lane, lanes, window, Q, S), dD, mask=here & (lane * 0 + s < window))


@_kernel
def collect_diagonals(
    band, d_band, d_push, d_replace, n, B, window,
    Q: tl.constexpr, S: tl.constexpr, E: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradients of the push and replace weights of one step and sequence, from those of all spans."""
    j, b = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    n, B, window = tl.cast(n, tl.int64), tl.cast(B, tl.int64), tl.cast(window, tl.int64)
    QS: tl.constexpr = Q * S
    e = tl.arange(0, E).to(tl.int64)
    p, w, known = (e // S)[:, None], (e % S)[:, None], (e < QS)[:, None]
    lane, lanes = b * n + j, B * n
    to_push = tl.zeros((E, E), dtype=tl.float64)
    to_replace = tl.zeros((E, E), dtype=tl.float64)
    end = (tl.minimum(window, n - j) + 1) * Q
    for start in range(2 * Q, end, BK):
        rho = start + tl.arange(0, BK)
        span, r = (rho // Q)[None, :], (rho % Q)[None, :]
        real = known & (rho < end)[None, :]
        D_next = tl.load(band + _in_band(1, span - 2, w, p, r, lane + 1, lanes, window, Q, S), mask=real, other=0.0)
        dP = tl.load(d_band + _in_band(0, span - 2, w, p, r, lane, lanes, window, Q, S), mask=real, other=0.0)
        to_push = _dot(dP, tl.trans(D_next), to_push)
        dD = tl.load(
            d_band + _in_band(1, span - 1, w, p, r, lane, lanes, window, Q, S), mask=real & (span < window), other=0.0
        )
        to_replace = _dot(dD, tl.trans(D_next), to_replace)
    square = ((j * B + b) * QS + e)[:, None] * QS + e[None, :]
    both = known & (e < QS)[None, :]
    tl.store(d_push + square, to_push, mask=both)
    tl.store(d_replace + square, to_replace, mask=both)
