"""Sparse matrices of high-precision decimals: the arithmetic of the exact closure."""

import math
from collections.abc import Iterable
from decimal import Decimal, localcontext

DIGITS = 150
# Expectations beyond this are infinite ones (critical grammars), seen through finite arithmetic.
INFINITE = Decimal("1e25")

Matrix = dict[int, dict[int, Decimal]]


def components(edges: dict[int, set[int]]) -> list[list[int]]:
    """Strongly connected components (Tarjan), each after all those that it leads to."""
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
    """matrix⁻¹ right, by Gauss-Jordan elimination with row pivoting."""
    size = len(matrix)
    rows = [[*row, *extra] for row, extra in zip(matrix, right, strict=True)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        if not rows[pivot][i]:
            raise ZeroDivisionError("singular matrix")
        rows[i], rows[pivot] = rows[pivot], rows[i]
        head = rows[i][i]
        rows[i] = [value / head if value else value for value in rows[i]]
        for r in range(size):
            factor = rows[r][i]
            if r != i and factor:
                rows[r] = [x - factor * y if y else x for x, y in zip(rows[r], rows[i], strict=True)]
    return [row[size:] for row in rows]


def add(matrix: Matrix, a: int, b: int, value: Decimal) -> None:
    row = matrix.setdefault(a, {})
    row[b] = row.get(b, Decimal(0)) + value


def multiply(left: Matrix, right: Matrix) -> Matrix:
    out: Matrix = {}
    for a, row in left.items():
        for b, x in row.items():
            for c, y in right.get(b, {}).items():
                add(out, a, c, x * y)
    return out


def add_matrices(first: Matrix, second: Matrix) -> Matrix:
    out = {a: dict(row) for a, row in first.items()}
    for a, row in second.items():
        for b, value in row.items():
            add(out, a, b, value)
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
