"""Sparse matrices of high-precision decimals: the arithmetic of the exact closure."""

import math
from collections.abc import Iterable
from decimal import Decimal, localcontext

import numpy as np

DIGITS = 150
INFINITE = Decimal("1e25")
"""Larger expectations are infinite, as in critical grammars; rounding makes them finite."""

_SMALLEST, _LARGEST = Decimal("1e-70"), Decimal("1e70")

Matrix = dict[int, dict[int, Decimal]]


def components(edges: dict[int, set[int]]) -> list[list[int]]:
    """Return the strongly connected components (Tarjan); each comes after the components that it leads to."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for root in sorted(edges):
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        work = [(root, iter(sorted(edges[root])))]
        while work:
            a, children = work[-1]
            for b in children:
                if b not in index:
                    index[b] = low[b] = len(index)
                    stack.append(b)
                    on_stack.add(b)
                    work.append((b, iter(sorted(edges[b]))))
                    break
                if b in on_stack:
                    low[a] = min(low[a], index[b])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[a])
                if low[a] == index[a]:
                    component = []
                    while not component or component[-1] != a:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    found.append(sorted(component))
    return found


def solve(matrix: list[list[Decimal]], right: list[list[Decimal]]) -> list[list[Decimal]]:
    """Return matrix⁻¹ right, by Gaussian elimination with row pivoting."""
    size = len(matrix)
    rows = [[*row, *extra] for row, extra in zip(matrix, right, strict=True)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        if not rows[pivot][i]:
            raise ZeroDivisionError("singular matrix")
        rows[i], rows[pivot] = rows[pivot], rows[i]
        head, tail = rows[i][i], rows[i][i + 1 :]
        for row in rows[i + 1 :]:
            if row[i]:
                factor = row[i] / head
                row[i + 1 :] = [x - factor * y if y else x for x, y in zip(row[i + 1 :], tail, strict=True)]
    out = [row[size:] for row in rows]
    for i in reversed(range(size)):
        for j in range(i + 1, size):
            factor = rows[i][j]
            if factor:
                out[i] = [x - factor * y if y else x for x, y in zip(out[i], out[j], strict=True)]
        out[i] = [x / rows[i][i] if x else x for x in out[i]]
    return out


def add(matrix: Matrix, a: int, b: int, value: Decimal) -> None:
    row = matrix.setdefault(a, {})
    row[b] = row.get(b, Decimal(0)) + value


def chained(star: Matrix, between_cost: Matrix, last: Matrix, last_cost: Matrix) -> tuple[Matrix, Matrix]:
    """Return the weights `star last`, of any number of steps and a last one, and their costs.

    The costs are star (between_cost star last + last_cost). All entries are positive, so these products lose no digits
    in float64; decimals are only needed for numbers outside its range.
    """
    values = [
        abs(x) for matrix in (star, between_cost, last, last_cost) for row in matrix.values() for x in row.values()
    ]
    if any(x and not _SMALLEST < x < _LARGEST for x in values):
        total = _multiply(star, last)
        cost = _multiply(between_cost, total)
        for a, row in last_cost.items():
            for b, x in row.items():
                add(cost, a, b, x)
        return total, _multiply(star, cost)
    rows = {a: i for i, a in enumerate(star)}
    columns = {b: i for i, b in enumerate({b: None for row in last.values() for b in row})}
    square, between = _dense(star, rows, rows), _dense(between_cost, rows, rows)
    weights = square @ _dense(last, rows, columns)
    costs = square @ (between @ weights + _dense(last_cost, rows, columns))
    return _sparse(weights, weights > 0, rows, columns), _sparse(costs, weights > 0, rows, columns)


def _dense(matrix: Matrix, rows: dict[int, int], columns: dict[int, int]) -> np.ndarray:
    out = np.zeros((len(rows), len(columns)))
    for a, row in matrix.items():
        for b, x in row.items():
            out[rows[a], columns[b]] = float(x)
    return out


def _sparse(values: np.ndarray, where: np.ndarray, rows: dict[int, int], columns: dict[int, int]) -> Matrix:
    row_names, column_names = list(rows), list(columns)
    out: Matrix = {a: {} for a in row_names}
    for i, j in np.argwhere(where).tolist():
        out[row_names[i]][column_names[j]] = Decimal(values[i, j].item())
    return out


def _multiply(left: Matrix, right: Matrix) -> Matrix:
    out: Matrix = {}
    for a, row in left.items():
        for b, x in row.items():
            for c, y in right.get(b, {}).items():
                add(out, a, c, x * y)
    return out


def product(values: Iterable[Decimal]) -> Decimal:
    result = Decimal(1)
    for value in values:
        result *= value
    return result


def log(value: Decimal) -> float:
    number = float(value)
    if number > 1e-300:
        return math.log(number)
    if not value:
        return -math.inf
    with localcontext() as context:
        context.prec = 25
        return float(value.ln())


def ratio(cost: Decimal, weight: Decimal) -> float:
    quotient = cost / weight
    return math.inf if quotient > INFINITE else float(quotient)
