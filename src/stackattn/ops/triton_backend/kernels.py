"""The chart of docs/maths.md and its gradients as Triton kernels.

Each launch computes one row for all columns, symbols and sequences, except that one launch of `collect` computes the
gradients of all transition weights.

No program reads memory that its own launch writes. Triton does not order a store and a later load of the same address
within a program, and its interpreter, in which the tests run, executes one program after the other and would not reveal
such an error. A buffer that a launch both reads and writes is therefore passed as two arguments, and the tests in
tests/triton_backend replace what a launch writes with nan in the argument that it reads. There are no atomic
operations, so results are the same in every run.

The letters are those of NOTATION.md, with these additions and exceptions: a row `rho` and a column `c` are pairs (time
point, state), and `m` is a state, padded to 16 because a matrix product has at least 16 rows. `e` and `f` are pairs
(state, symbol): `f`, and `e` in `collect`, are all pairs, padded to E; elsewhere, `e` are the pairs of the states m and
the program's symbol. P and D are packed triangles: a row rho of time point j has the columns from (j + 1) Q on. Offsets
are 64-bit: a chart can have more than 2^31 entries.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl

# Without this, Triton would compile every kernel again for sizes that are 1 or multiples of 16.
_kernel = triton.jit(do_not_specialize=["n", "B", "j", "t"])


@triton.jit
def _packed(rho, c, n, Q: tl.constexpr):
    """Offset of row rho and column c within the packed triangle of one kind, symbol and sequence."""
    j = rho // Q
    return Q * Q * (j * n - j * (j - 1) // 2) + (rho % Q) * (n - j) * Q + c - (j + 1) * Q


@triton.jit
def _dot(a, b, acc):
    return tl.dot(a, b, acc, input_precision="ieee", out_dtype=tl.float64)


@triton.jit
def _triangle(x, kind, symbol, sequence, n, B, Q: tl.constexpr, S: tl.constexpr):
    """Pointers to the packed triangles; kind 0 is P and kind 1 is D."""
    size = Q * Q * (n * (n + 1) // 2)
    return x + ((kind * S + symbol) * B + sequence) * size


@triton.jit
def _moves(x, step, sequence, rows, columns, B, Q: tl.constexpr, S: tl.constexpr):
    """Entries [rows, columns] of the push or replace weights (n, B, QS, QS) of a step and sequence, by broadcasting."""
    QS: tl.constexpr = Q * S
    offset = ((step * B + sequence) * QS + rows) * QS + columns
    return tl.load(x + offset, mask=(rows < QS) & (columns < QS), other=0.0)


@triton.jit
def _place(Q: tl.constexpr, S: tl.constexpr):
    """Symbol and sequence of this program, the states m (16,), and the pairs e (16, 1) of m and the symbol.

    Where m is padding, e is Q S, one beyond the last pair.
    """
    symbol, sequence = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    m = tl.arange(0, 16).to(tl.int64)
    return symbol, sequence, m, tl.where(m < Q, m * S + symbol, Q * S)[:, None]


@_kernel
def fill_P_and_D(
    push, replace, pop, PD_in, PD, n, B, j,
    Q: tl.constexpr, S: tl.constexpr, E: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Row j of P and D, from the rows after it."""
    w, b, m, e = _place(Q, S)
    n, j = tl.cast(n, tl.int64), tl.cast(j, tl.int64)
    C = (n + 1) * Q
    first = (j + 1) * Q + tl.program_id(0).to(tl.int64) * BC
    f = tl.arange(0, E).to(tl.int64)
    c = first + tl.arange(0, BC)
    up = _moves(push, j, b, e, f[None, :], B, Q, S)  # (16, E)
    re = _moves(replace, j, b, e, f[None, :], B, Q, S)
    next_row = (j + 1) * Q + f // S
    next_D = _triangle(PD_in, 1, f % S, b, n, B, Q, S)[:, None]
    known = (f < Q * S)[:, None]
    D_next = tl.load(
        next_D + _packed(next_row[:, None], c[None, :], n, Q),
        mask=known & ((c >= (j + 2) * Q) & (c < C))[None, :], other=0.0,
    )  # fmt: skip
    zeros = tl.zeros((16, BC), dtype=tl.float64)
    P = _dot(up, D_next, zeros)
    D = _dot(re, D_next, zeros)
    here = (m < Q)[:, None] & (c < C)[None, :]
    row = j * Q + m
    tl.store(_triangle(PD, 0, w, b, n, B, Q, S) + _packed(row[:, None], c[None, :], n, Q), P, mask=here)
    r = c - (j + 1) * Q
    popped = (e < Q * S) & (r < Q)[None, :] & (c < C)[None, :]
    D += tl.load(pop + ((j * B + b) * Q * S + e) * Q + r[None, :], mask=popped, other=0.0)
    later_D = _triangle(PD_in, 1, w, b, n, B, Q, S)
    end = tl.minimum(first + BC, C)
    for start in range((j + 2) * Q, end, BK):
        rho = start + tl.arange(0, BK)
        # P[j -> rho] is computed again, because other programs of this launch write it
        D_rho = tl.load(
            next_D + _packed(next_row[:, None], rho[None, :], n, Q), mask=known & (rho < end)[None, :], other=0.0
        )
        inner = _dot(up, D_rho, tl.zeros((16, BK), dtype=tl.float64))
        after = (rho < end)[:, None] & (c[None, :] >= (rho // Q + 1)[:, None] * Q) & (c < C)[None, :]
        D = _dot(inner, tl.load(later_D + _packed(rho[:, None], c[None, :], n, Q), mask=after, other=0.0), D)
    tl.store(_triangle(PD, 1, w, b, n, B, Q, S) + _packed(row[:, None], c[None, :], n, Q), D, mask=here)


@triton.jit
def _in_F(rho, symbol, sequence, i, n, B, S: tl.constexpr):
    """Offset in F (n + 1, Q, S, B, n + 2)."""
    return ((rho * S + symbol) * B + sequence) * (n + 2) + i


@_kernel
def fill_F(
    push, replace, PD, F_in, F, n, B, t,
    Q: tl.constexpr, S: tl.constexpr, E: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    SUPERPOSITION: tl.constexpr,
):  # fmt: skip
    """Row t of F, from the rows before it."""
    y, b, m, e = _place(Q, S)
    n, t = tl.cast(n, tl.int64), tl.cast(t, tl.int64)
    first = tl.program_id(0).to(tl.int64) * BC
    f = tl.arange(0, E).to(tl.int64)
    i = first + tl.arange(0, BC)
    known, exists = (f < Q * S)[:, None], (i <= t + 1)[None, :]
    before = (t - 1) * Q + f // S
    F_before = tl.load(F_in + _in_F(before[:, None], (f % S)[:, None], b, i[None, :], n, B, S), known & exists, 0.0)
    acc = _dot(_moves(replace, t - 1, b, f[None, :], e, B, Q, S), F_before, tl.zeros((16, BC), dtype=tl.float64))
    P = _triangle(PD, 0, y, b, n, B, Q, S)
    end = (t - 1) * Q
    for start in range(tl.maximum(first - 1, 0) * Q, end, BK):  # the element of column i is on top from time i - 1 on
        rho = start + tl.arange(0, BK)
        inside = (rho < end)[None, :] & (m < Q)[:, None]
        inner = tl.load(P + _packed(rho[None, :], t * Q + m[:, None], n, Q), mask=inside, other=0.0)
        on_top = tl.load(F_in + _in_F(rho[:, None], y, b, i[None, :], n, B, S), (rho < end)[:, None] & exists, 0.0)
        acc = _dot(inner, on_top, acc)
    alpha = tl.load(F_in + _in_F(before, f % S, b, 0, n, B, S), mask=f < Q * S, other=0.0)
    pushed = tl.sum(_moves(push, t - 1, b, f[None, :], e, B, Q, S) * alpha[None, :], axis=1)[:, None]
    acc += tl.where((i == t + 1)[None, :], pushed, 0.0)
    if SUPERPOSITION:  # alpha stays 1
        exists = exists & (i > 0)[None, :]
    else:
        acc += tl.where((i == 0)[None, :], pushed, 0.0)
    tl.store(F + _in_F((t * Q + m)[:, None], y, b, i[None, :], n, B, S), acc, mask=exists & (m < Q)[:, None])


@_kernel
def walk_back_F(
    push, replace, PD, given, dF_in, dF, n, B, t,
    Q: tl.constexpr, S: tl.constexpr, E: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    SUPERPOSITION: tl.constexpr,
):  # fmt: skip
    """Row t of the gradient of F, from the rows after it and `given`, the contribution of the attention weights."""
    y, b, m, e = _place(Q, S)
    n, t = tl.cast(n, tl.int64), tl.cast(t, tl.int64)
    C = (n + 1) * Q
    f = tl.arange(0, E).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * BC + tl.arange(0, BC)
    exists = (i <= t + 1)[None, :]
    here = _in_F((t * Q + m)[:, None], y, b, i[None, :], n, B, S)
    acc = tl.load(given + here, mask=exists & (m < Q)[:, None], other=0.0)
    later = (f < Q * S) & (f * 0 + t < n)
    row = (t + 1) * Q + f // S
    dF_later = tl.load(
        dF_in + _in_F(row[:, None], (f % S)[:, None], b, i[None, :], n, B, S), later[:, None] & exists, 0.0
    )
    step = tl.minimum(t, n - 1)  # leads to row t + 1; clamped at t = n, where dF_later is zero
    acc = _dot(_moves(replace, step, b, e, f[None, :], B, Q, S), dF_later, acc)
    P = _triangle(PD, 0, y, b, n, B, Q, S)
    for start in range((t + 2) * Q, C, BK):
        rho = start + tl.arange(0, BK)
        inside = (rho < C)[None, :] & (m < Q)[:, None]
        inner = tl.load(P + _packed((t * Q + m)[:, None], rho[None, :], n, Q), mask=inside, other=0.0)
        after = tl.load(dF_in + _in_F(rho[:, None], y, b, i[None, :], n, B, S), (rho < C)[:, None] & exists, 0.0)
        acc = _dot(inner, after, acc)
    if not SUPERPOSITION:
        pushed = tl.load(dF_in + _in_F(row, f % S, b, 0, n, B, S), mask=later, other=0.0)
        pushed += tl.load(dF_in + _in_F(row, f % S, b, t + 2, n, B, S), mask=later, other=0.0)
        to_alpha = tl.sum(_moves(push, step, b, e, f[None, :], B, Q, S) * pushed[None, :], axis=1)[:, None]
        acc += tl.where((i == 0)[None, :], to_alpha, 0.0)
    tl.store(dF + here, acc, mask=exists & (m < Q)[:, None])


@_kernel
def walk_back_D(
    push, replace, PD, dPD_in, dPD, n, B, j,
    Q: tl.constexpr, S: tl.constexpr, E: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Row j of the gradient of D, from the rows before it; j is at least 1."""
    w, b, m, e = _place(Q, S)
    n, j = tl.cast(n, tl.int64), tl.cast(j, tl.int64)
    C = (n + 1) * Q
    f = tl.arange(0, E).to(tl.int64)
    c = (j + 1) * Q + tl.program_id(0).to(tl.int64) * BC + tl.arange(0, BC)
    columns = (c < C)[None, :]
    offset = _packed(((j - 1) * Q + f // S)[:, None], c[None, :], n, Q)
    known = (f < Q * S)[:, None] & columns
    dP_before = tl.load(_triangle(dPD_in, 0, f % S, b, n, B, Q, S)[:, None] + offset, mask=known, other=0.0)
    popped = (f * 0 + j > 1)[:, None]  # the bottom element is never popped: D[0] is not used
    dD_before = tl.load(_triangle(dPD_in, 1, f % S, b, n, B, Q, S)[:, None] + offset, mask=known & popped, other=0.0)
    acc = _dot(_moves(push, j - 1, b, f[None, :], e, B, Q, S), dP_before, tl.zeros((16, BC), dtype=tl.float64))
    acc = _dot(_moves(replace, j - 1, b, f[None, :], e, B, Q, S), dD_before, acc)
    P = _triangle(PD, 0, w, b, n, B, Q, S)
    dD = _triangle(dPD_in, 1, w, b, n, B, Q, S)
    end = (j - 1) * Q
    for start in range(Q, end, BK):
        rho = start + tl.arange(0, BK)
        inside = (rho < end)[None, :] & (m < Q)[:, None]
        inner = tl.load(P + _packed(rho[None, :], j * Q + m[:, None], n, Q), mask=inside, other=0.0)
        before = tl.load(dD + _packed(rho[:, None], c[None, :], n, Q), mask=(rho < end)[:, None] & columns, other=0.0)
        acc = _dot(inner, before, acc)
    out = _triangle(dPD, 1, w, b, n, B, Q, S) + _packed((j * Q + m)[:, None], c[None, :], n, Q)
    tl.store(out, acc, mask=(m < Q)[:, None] & columns)


@_kernel
def walk_back_P(
    PD, F, dF, dPD_in, dPD, n, B, j,
    Q: tl.constexpr, S: tl.constexpr, E: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Row j of the gradient of P, from the gradient of F and the same row of the gradient of D."""
    w, b, m, _ = _place(Q, S)
    n, j = tl.cast(n, tl.int64), tl.cast(j, tl.int64)
    C = (n + 1) * Q
    first = (j + 2) * Q + tl.program_id(0).to(tl.int64) * BC
    row = (j * Q + m)[:, None]
    c = first + tl.arange(0, BC)
    columns = (c < C)[None, :]
    acc = tl.zeros((16, BC), dtype=tl.float64)
    for start in range(0, j + 2, BK):
        i = start + tl.arange(0, BK)
        real = i <= j + 1
        on_top = tl.load(F + _in_F(row, w, b, i[None, :], n, B, S), mask=(m < Q)[:, None] & real[None, :], other=0.0)
        grads = tl.load(dF + _in_F(c[None, :], w, b, i[:, None], n, B, S), mask=real[:, None] & columns, other=0.0)
        acc = _dot(on_top, grads, acc)
    D = _triangle(PD, 1, w, b, n, B, Q, S)
    dD = _triangle(dPD_in, 1, w, b, n, B, Q, S)
    begin = tl.where(j > 0, (first // Q + 1) * Q, C)  # D[0] has no gradient
    for start in range(begin, C, BK):
        rho = start + tl.arange(0, BK)
        grads = tl.load(dD + _packed(row, rho[None, :], n, Q), mask=(m < Q)[:, None] & (rho < C)[None, :], other=0.0)
        after = (rho < C)[:, None] & columns & (rho[:, None] >= (c // Q + 1)[None, :] * Q)
        acc = _dot(grads, tl.load(D + _packed(c[None, :], rho[:, None], n, Q), mask=after, other=0.0), acc)
    out = _triangle(dPD, 0, w, b, n, B, Q, S) + _packed(row, c[None, :], n, Q)
    tl.store(out, acc, mask=(m < Q)[:, None] & columns)


@_kernel
def collect(
    PD, F, dPD, dF, d_push, d_replace, d_pop, n, B,
    Q: tl.constexpr, S: tl.constexpr, E: tl.constexpr, BK: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """Gradients of the transition weights of one step and sequence."""
    j, b = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    n = tl.cast(n, tl.int64)
    QS: tl.constexpr = Q * S
    C = (n + 1) * Q
    e = tl.arange(0, E).to(tl.int64)
    known = e < QS
    row, symbol, t = j * Q + e // S, e % S, j + 1
    to_push = tl.zeros((E, E), dtype=tl.float64)
    to_replace = tl.zeros((E, E), dtype=tl.float64)
    popped = known & (e * 0 + j > 0)  # the bottom element is never popped: D[0] is not used
    dD = _triangle(dPD, 1, symbol, b, n, B, Q, S)[:, None]
    for start in range((j + 2) * Q, C, BK):
        c = start + tl.arange(0, BK)
        columns = (c < C)[None, :]
        here = _packed(row[:, None], c[None, :], n, Q)
        D_next = tl.load(
            _triangle(PD, 1, symbol, b, n, B, Q, S)[:, None] + _packed(row[:, None] + Q, c[None, :], n, Q),
            mask=known[:, None] & columns, other=0.0,
        )  # fmt: skip
        dP_here = tl.load(
            _triangle(dPD, 0, symbol, b, n, B, Q, S)[:, None] + here, mask=known[:, None] & columns, other=0.0
        )
        to_push = _dot(dP_here, tl.trans(D_next), to_push)
        dD_here = tl.load(dD + here, mask=popped[:, None] & columns, other=0.0)
        to_replace = _dot(dD_here, tl.trans(D_next), to_replace)
    for start in range(0, t + 1, BK):
        i = start + tl.arange(0, BK)
        real = known[:, None] & (i <= t)[None, :]
        before = tl.load(F + _in_F(row[:, None], symbol[:, None], b, i[None, :], n, B, S), mask=real, other=0.0)
        grads = tl.load(dF + _in_F(row[:, None] + Q, symbol[:, None], b, i[None, :], n, B, S), mask=real, other=0.0)
        to_replace = _dot(before, tl.trans(grads), to_replace)
    alpha = tl.load(F + _in_F(row, symbol, b, 0, n, B, S), mask=known, other=0.0)
    pushed = tl.load(dF + _in_F(row + Q, symbol, b, 0, n, B, S), mask=known, other=0.0)
    pushed += tl.load(dF + _in_F(row + Q, symbol, b, t + 1, n, B, S), mask=known, other=0.0)
    to_push += alpha[:, None] * pushed[None, :]
    square = ((j * B + b) * QS + e)[:, None] * QS + e[None, :]
    both = known[:, None] & known[None, :]
    tl.store(d_push + square, to_push, mask=both)
    tl.store(d_replace + square, to_replace, mask=both)
    r = tl.arange(0, BQ).to(tl.int64)
    states = (r < Q)[None, :]
    to_pop = tl.load(dD + _packed(row[:, None], (t * Q + r)[None, :], n, Q), mask=popped[:, None] & states, other=0.0)
    tl.store(d_pop + ((j * B + b) * QS + e)[:, None] * Q + r[None, :], to_pop, mask=known[:, None] & states)
