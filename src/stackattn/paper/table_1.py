"""The paper's Table 1 (parallel time), by counting the dependent steps of this package's operators.

With unlimited processors, an operation on tensors takes one step for each product or function of its elements, and
the sum (or maximum) of k numbers takes log2(k) steps, rounded up. The functions inside softmax and logsumexp are not
counted, apart from softmax's division. The parallel time of an algorithm is the length of the longest chain of
operations in which each one needs the result of the one before. The chain is counted while the `torch` backend runs;
the `cpp` kernel computes the same recurrences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from ..ops.pytorch.operators import nondeterministic, superposition
from .tables import fitted_exponent, publish

LENGTHS = (16, 32, 64, 128)
PAPER = {  # complexity of the paper's implementation, and the lowest complexity that the paper names
    "softmax": ("O(log n)", "O(log n)"),
    "superposition": ("O(n)", "O((log n)^2)"),
    "nondeterministic": ("O(n^2)", "O((log n)^2)"),
}
OURS = {"softmax": "O(log n)", "superposition": "O(n log n)", "nondeterministic": "O(n log n)"}
STATES, SYMBOLS = 2, 3


class DependentSteps(TorchDispatchMode):
    """Counts the steps of the longest chain of dependent operations that run inside this context.

    Writing to a part of a tensor counts as writing to all of it: loops that fill a tensor step by step are counted as
    a chain. Views take no step.

    Example:
        >>> with DependentSteps() as counted:
        ...     y = torch.ones(8).exp().sum()
        >>> counted.steps  # ones, exp, and log2(8) for the sum
        5
    """

    def __init__(self) -> None:
        super().__init__()
        self._after: dict[int, int] = {}  # steps after which the content of a storage is complete
        self._kept: list[Tensor] = []  # keeps the storages alive, so that no address is used twice

    @property
    def steps(self) -> int:
        """Length of the longest chain so far."""
        return max(self._after.values(), default=0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        read, outputs = _tensors([args, kwargs]), _tensors(result)
        written = {_storage(x) for x in _written(func, args, kwargs)}
        storages = {_storage(x) for x in read}
        if not written and outputs and all(_storage(x) in storages for x in outputs):
            return result  # a view
        needed = storages - written if func is torch.ops.aten.copy_.default else storages
        end = max((self._after.get(key, 0) for key in needed), default=0) + _steps(func, read, outputs)
        for x in outputs:
            self._after[_storage(x)] = max(end, self._after.get(_storage(x), 0))
            self._kept.append(x)
        return result


def show(out: Path, lengths: Sequence[int] = LENGTHS) -> int:
    """Count the steps for each length, print the table, write it to `out` as `table-1`, and return an exit code."""
    header = ["task", "attention", *(f"n = {n}" for n in lengths), "exponent", "ours", "paper", "paper, theoretical"]
    rows = []
    for name, run in ATTENTION.items():
        counts = [count_steps(run, n) for n in lengths]
        exponent = fitted_exponent(lengths[-2:], counts[-2:])
        rows.append(["parallel time", name, *map(str, counts), f"{exponent:.2f}", OURS[name], *PAPER[name]])
    notes = (
        "Dependent steps of a forward pass with unlimited processors: one for each operation on tensors, log2(k) "
        "for a sum of k numbers. Exponent: slope of log steps against log n between the two largest n. The paper's "
        "superposition stack is updated in O(1) per step; ours adds up weights in a matrix product, which takes "
        "O(log n). The paper's nondeterministic stack sums over the times of pushes one after the other; ours sums in "
        "a matrix product, as parallel CKY does, which the paper gives as O(n log n)."
    )
    return publish("table-1", header, rows, notes, out)


def count_steps(run: Callable[[int], object], n: int) -> int:
    """Number of dependent steps of `run(n)`."""
    with DependentSteps() as counted, torch.no_grad():
        run(n)
    return counted.steps


def _softmax(n: int) -> Tensor:
    queries, keys, values = torch.ones(3, n, 8).unbind()
    return torch.softmax(queries @ keys.T, -1) @ values


def _superposition(n: int) -> Tensor:
    return superposition(torch.full((1, n, 3), 1 / 3), None)


def _nondeterministic(n: int) -> Tensor:
    transitions = torch.zeros(1, n, STATES, SYMBOLS, STATES, SYMBOLS)
    return nondeterministic(transitions, transitions, transitions[..., 0], None)[0]


ATTENTION: Mapping[str, Callable[[int], Tensor]] = {
    "softmax": _softmax,
    "superposition": _superposition,
    "nondeterministic": _nondeterministic,
}


def _tensors(values: Any) -> list[Tensor]:
    return [x for x in tree_flatten(values)[0] if isinstance(x, Tensor)]


def _storage(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Arguments that the operation changes."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    changed = (a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    return _tensors([given.get(name) for name in changed])


def _steps(func: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """One step for products and functions of elements, and log2 of the number of terms for each sum or maximum."""
    name = func._schema.name.removeprefix("aten::").rstrip("_")
    if name in ("mm", "bmm", "baddbmm", "addmm"):
        terms = inputs[-1].shape[-2]
        return 1 + math.ceil(math.log2(max(1, terms)))
    if name == "_softmax":  # a maximum, a sum and a division
        return 1 + 2 * math.ceil(math.log2(max(1, inputs[0].shape[-1])))
    if name in ("sum", "amax", "amin", "max", "min", "logsumexp", "all", "any"):
        terms = inputs[0].numel() // max(1, outputs[0].numel())
        return math.ceil(math.log2(max(1, terms)))
    return 1
