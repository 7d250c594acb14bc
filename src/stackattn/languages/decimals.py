"""Sparse matrices of high-precision decimals: the arithmetic of the exact closure."""

import heapq
import math
from collections.abc import Iterable
from decimal import Decimal, localcontext

import numpy as np

DIGITS = 150
INFINITE = Decimal("1e25")
"""Larger expectations count as infinite: in critical grammars, rounding makes infinite expectations finite."""

_CANCELLED = Decimal("1e-100")
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


class Budget:
    """Counts operations and raises TooManyOperationsError when a limit is exceeded."""

    def __init__(self, operations: int):
        self.limit = self.left = operations

    def spend(self, operations: int) -> None:
        """Count operations; raise TooManyOperationsError if they exceed the rest of the budget."""
        self.left -= operations
        if self.left < 0:
            raise TooManyOperationsError(f"more than {self.limit:,} operations")


class TooManyOperationsError(Exception):
    """A computation that exceeds its budget."""


class SingularError(Exception):
    """A system of equations without a unique solution, or one that rounding makes meaningless."""


def solve(matrix: Matrix, right: Matrix, budget: Budget) -> Matrix:
    """Return (I - matrix)⁻¹ right, by Gaussian elimination of sparse rows.

    Args:
        matrix: a non-negative matrix whose powers have a finite sum. Elimination is then stable with pivots from the
            diagonal in any order; the order used here keeps the rows short.
        right: the right-hand side; its rows are those of `matrix`, or some of them.
        budget: counts the multiplications.

    Raises:
        SingularError: a pivot is so small that subtraction has cancelled two thirds of the digits.
        TooManyOperationsError: the budget is exceeded.
    """
    rows: Matrix = {a: {b: -x for b, x in row.items() if x} for a, row in matrix.items()}
    for a, row in rows.items():
        row[a] = 1 + row.get(a, Decimal(0))
    users: dict[int, set[int]] = {a: set() for a in rows}  # the rows with an entry in each column
    for a, row in rows.items():
        for b in row:
            users[b].add(a)
    out = {a: dict(right.get(a, {})) for a in rows}
    order: list[int] = []
    queue = [(0, a) for a in sorted(rows)]
    done: set[int] = set()
    while queue:
        cost, pivot = heapq.heappop(queue)
        if pivot in done:
            continue
        now = (len(rows[pivot]) - 1) * (len(users[pivot]) - 1)
        if queue and now > max(cost, queue[0][0]):
            heapq.heappush(queue, (now, pivot))
            continue
        done.add(pivot)
        order.append(pivot)
        head, tail = rows[pivot].pop(pivot), rows[pivot]
        if head < _CANCELLED:
            raise SingularError
        for b in tail:
            users[b].discard(pivot)
        users[pivot].discard(pivot)
        for a in users.pop(pivot):
            factor = rows[a].pop(pivot) / head
            budget.spend(1 + len(tail) + len(out[pivot]))
            for b, x in tail.items():
                add(rows, a, b, -factor * x)
                users[b].add(a)
            for c, x in out[pivot].items():
                add(out, a, c, -factor * x)
        tail[pivot] = head
    for pivot in reversed(order):
        head = rows[pivot].pop(pivot)
        for b, x in rows[pivot].items():  # eliminated later, so its solution is known
            budget.spend(len(out[b]))
            for c, y in out[b].items():
                add(out, pivot, c, -x * y)
        out[pivot] = {c: y / head for c, y in out[pivot].items() if y}
    return out


def add(matrix: Matrix, a: int, b: int, value: Decimal) -> None:
    """Add a value to the entry (a, b) of a matrix, in place."""
    row = matrix.setdefault(a, {})
    row[b] = row.get(b, Decimal(0)) + value


def chained(
    star: Matrix, between_cost: Matrix, last: Matrix, last_cost: Matrix, budget: Budget
) -> tuple[Matrix, Matrix]:
    """Return the matrix product `star last` (the weights of chains of steps that end with a last step) and their costs.

    The costs are star (between_cost star last + last_cost). No entry is negative, so nothing cancels in these products,
    and float64 is accurate enough; decimals are only needed for very small or very large entries.
    """
    values = [
        abs(x) for matrix in (star, between_cost, last, last_cost) for row in matrix.values() for x in row.values()
    ]
    if any(x and not _SMALLEST < x < _LARGEST for x in values):
        total = _multiply(star, last, budget)
        cost = _multiply(between_cost, total, budget)
        for a, row in last_cost.items():
            for b, x in row.items():
                add(cost, a, b, x)
        return total, _multiply(star, cost, budget)
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


def _multiply(left: Matrix, right: Matrix, budget: Budget) -> Matrix:
    out: Matrix = {}
    for a, row in left.items():
        for b, x in row.items():
            budget.spend(len(right.get(b, ())))
            for c, y in right.get(b, {}).items():
                add(out, a, c, x * y)
    return out


def product(values: Iterable[Decimal]) -> Decimal:
    """Return the product of the values; 1 if there are none."""
    result = Decimal(1)
    for value in values:
        result *= value
    return result


def log(value: Decimal) -> float:
    """Return the natural logarithm of a non-negative value; -inf for 0."""
    number = float(value)
    if number > 1e-300:
        return math.log(number)
    if not value:
        return -math.inf
    with localcontext() as context:
        context.prec = 25
        return float(value.ln())


def ratio(cost: Decimal, weight: Decimal) -> float:
    """Return cost / weight; infinity if it exceeds `INFINITE`."""
    quotient = cost / weight
    return math.inf if quotient > INFINITE else float(quotient)
