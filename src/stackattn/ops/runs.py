"""Single runs of the nondeterministic stack: the best one (Viterbi) and exact samples."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from . import checks
from .memory import names_argument
from .pytorch.log_chart import Reduce, log_chart, log_sum

Choose = Callable[[np.ndarray], int]  # log weights of the candidates, of any shape -> the flat index of the chosen one


@dataclass(frozen=True)
class Operation:
    """One transition: its kind, the state it leads to, and the symbol that it puts on top (None for a pop)."""

    kind: Literal["push", "replace", "pop"]
    state: int
    symbol: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} -> q{self.state}" if self.symbol is None else f"{self.kind} {self.symbol} -> q{self.state}"


@dataclass(frozen=True)
class AutomatonRun:
    """A run of the automaton: one operation per step, and the sum of their log weights.

    Examples::

        >>> from stackattn import AutomatonRun, Operation
        >>> run = AutomatonRun((Operation("push", 0, 1), Operation("pop", 0)), log_weight=-1.5)
        >>> run.stacks()
        [[(-1, 0), (0, 1)], [(-1, 0)]]
        >>> print(run.listing(["a", "b"]))
        a    push 1 -> q0
        b    pop -> q0
    """

    operations: tuple[Operation, ...]
    log_weight: float

    def __str__(self) -> str:
        return ", ".join(map(str, self.operations))

    def stacks(self) -> list[list[tuple[int, int]]]:
        """The stack after each step, bottom first, as pairs (step that pushed the element, or -1; symbol)."""
        stack, stacks = [(-1, 0)], []
        for step, operation in enumerate(self.operations):
            pushed = step if operation.kind == "push" else stack.pop()[0]
            if operation.symbol is not None:
                stack.append((pushed, operation.symbol))
            stacks.append(list(stack))
        return stacks

    def listing(self, labels: Sequence[object] | None = None) -> str:
        """One line per step, indented by the depth of the affected element, so that a push and its pop are aligned.

        `labels` (for example the input tokens) replace the step numbers.

        Raises:
            ValueError: there is not exactly one label for each step.
        """
        texts = [str(label) for label in (range(len(self.operations)) if labels is None else labels)]
        if len(texts) != len(self.operations):
            raise ValueError(f"labels: expected {len(self.operations)}, one for each step, got {len(texts)}")
        width, lines, before = max(map(len, texts), default=0), [], 1
        for label, operation, stack in zip(texts, self.operations, self.stacks(), strict=True):
            depth = max(before, len(stack)) - 1
            lines.append(f"{label:>{width}}  {'  ' * depth}{operation}")
            before = len(stack)
        return "\n".join(lines)


@names_argument("log_push")
def best_runs(
    log_push: Tensor,
    log_replace: Tensor,
    log_pop: Tensor,
    lengths: Tensor | None = None,
    *,
    window: int | None = None,
) -> list[AutomatonRun]:
    """For each sequence, the run with the largest weight. Ties are broken deterministically.

    Args:
        log_push, log_replace, log_pop, lengths, window: as in `nondeterministic_weights`.

    Returns:
        One run for each sequence.

    Raises:
        TypeError, ValueError: as in `nondeterministic_weights`.
        ValueError: a sequence has no run: all are forbidden or pop the bottom or an element that left the window.

    Examples::

        >>> import torch
        >>> from stackattn import best_runs
        >>> log_push, log_replace = torch.zeros(2, 1, 3, 1, 2, 1, 2)
        >>> log_pop = torch.zeros(1, 3, 1, 2, 1)
        >>> log_push[:, 0, ..., 1] = 1.0
        >>> log_pop[:, 2] = 2.0
        >>> print(best_runs(log_push, log_replace, log_pop)[0].operations[-1])
        pop -> q0
    """
    return [
        _Tracer(b, transitions, torch.amax, window).run(lambda candidates: int(candidates.argmax()))
        for b, transitions in _sequences(log_push, log_replace, log_pop, lengths, window)
    ]


@names_argument("log_push")
def sample_runs(
    log_push: Tensor,
    log_replace: Tensor,
    log_pop: Tensor,
    num_samples: int,
    lengths: Tensor | None = None,
    generator: torch.Generator | None = None,
    *,
    window: int | None = None,
) -> list[list[AutomatonRun]]:
    """Independent samples of the runs of each sequence, with probabilities proportional to their weights.

    Args:
        log_push, log_replace, log_pop, lengths: as in `best_runs`.
        num_samples: number of runs of each sequence.
        generator: source of randomness (default: PyTorch's global generator).
        window: as in `best_runs`.

    Returns:
        `num_samples` runs for each sequence.

    Raises:
        TypeError, ValueError: as in `best_runs`, or `num_samples` is not a positive integer, or `generator` is not a
            torch.Generator.

    Examples::

        >>> import torch
        >>> from stackattn import sample_runs
        >>> log_push, log_pop = torch.zeros(1, 3, 1, 2, 1, 2), torch.zeros(1, 3, 1, 2, 1)
        >>> runs = sample_runs(log_push, log_push, log_pop, num_samples=5, generator=torch.Generator().manual_seed(0))
        >>> len(runs), len(runs[0]), len(runs[0][0].operations)
        (1, 5, 3)
    """
    if not isinstance(num_samples, int) or isinstance(num_samples, bool):
        raise TypeError(f"num_samples: expected an integer, got {num_samples!r}")
    if num_samples < 1:
        raise ValueError(f"num_samples: expected at least 1, got {num_samples}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator: expected a torch.Generator or None, got {type(generator).__name__}")
    device = generator.device if generator is not None else "cpu"
    samples = []
    for b, transitions in _sequences(log_push, log_replace, log_pop, lengths, window):
        tracer = _Tracer(b, transitions, log_sum, window)
        shape = (num_samples, tracer.length + 1)  # one choice per operation, and one for the end of the run
        uniforms = torch.rand(shape, generator=generator, dtype=torch.float64, device=device).tolist()
        samples.append([tracer.run(_sampler(iter(row))) for row in uniforms])
    return samples


def _sampler(uniforms: Iterator[float]) -> Choose:
    def choose(candidates: np.ndarray) -> int:
        cumulative = np.exp(candidates - candidates.max()).cumsum()
        return int(cumulative.searchsorted(next(uniforms) * cumulative[-1], side="right"))

    return choose


def _sequences(
    log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None, window: int | None
) -> Iterator[tuple[int, tuple[Tensor, Tensor, Tensor]]]:
    """Each batch index with its log weights, truncated to its length, in float64, with a batch axis of size 1."""
    checks.check_transitions(log_push, log_replace, log_pop, lengths)
    checks.check_limit("window", window)
    lengths = checks.copy_lengths(lengths, log_push.shape[1])
    inputs = {"log_push": log_push, "log_replace": log_replace, "log_pop": log_pop}
    for name, x in inputs.items():
        checks.check_numbers(name, x.detach(), lengths, minus_infinity=True)
    B, T = log_push.shape[:2]
    for b, end in enumerate([T] * B if lengths is None else lengths.tolist()):
        push, replace, pop = (x[b : b + 1, :end].detach().to("cpu", torch.float64) for x in inputs.values())
        yield b, (push, replace, pop)


class _Tracer:
    """Traces runs backwards through the chart of one sequence; `choose` selects one term of each sum."""

    def __init__(
        self, index: int, transitions: tuple[Tensor, Tensor, Tensor], reduce: Reduce, window: int | None
    ) -> None:
        chart = log_chart(*transitions, reduce, window)
        self.push, self.replace, self.pop = (x[0].numpy() for x in transitions)
        self.D, self.P, self.F, alpha = (np.ascontiguousarray(x[0].numpy()) for x in chart)
        self.length, self.num_states, self.num_symbols = self.push.shape[:3]
        if alpha[self.length].max() == -np.inf:
            hint = "allow more transitions" if window is None else "allow more transitions, or use a larger window"
            raise ValueError(f"sequence {index}: expected a run of length {self.length}, got none; {hint}")

    def run(self, choose: Choose) -> AutomatonRun:
        Q, S = self.num_states, self.num_symbols
        operations: list[Operation] = [Operation("pop", 0)] * self.length
        returns = []  # (k, t, u, y, r): a part P[k -> t][u, y -> r] whose operations are not known yet
        t = self.length
        c, r, y = _unravel(choose(self.F[: t + 1, t]), Q, S)  # the run up to t is in F[c-1 -> t][r, y]
        while t > 0:
            if c == t:
                operations[t - 1] = Operation("push", r, y)
                c, r, y = _unravel(choose(self.F[:t, t - 1] + self.push[t - 1, :, :, r, y]), Q, S)
                t -= 1
                continue
            replaced = self.F[c, t - 1] + self.replace[t - 1, :, :, r, y]  # (Q, S)
            popped = self.F[c, c : t - 1, :, y] + self.P[c : t - 1, t, :, y, r]  # (k, Q)
            choice = choose(np.concatenate([replaced.ravel(), popped.ravel()]))
            if choice < Q * S:
                operations[t - 1] = Operation("replace", r, y)
                t, (r, y) = t - 1, divmod(choice, S)
            else:
                k, u = divmod(choice - Q * S, Q)
                returns.append((c + k, t, u, y, r))
                t, r = c + k, u
        while returns:
            k, t, u, y, r = returns.pop()
            p, w = divmod(choose(self.push[k, u, y] + self.D[k + 1, t, :, :, r]), S)
            operations[k] = Operation("push", p, w)
            j = k + 1
            while j < t - 1:  # the rest of the part is D[j -> t][p, w -> r]
                replaced = self.replace[j, p, w] + self.D[j + 1, t, :, :, r]  # (Q, S)
                popped = self.P[j, j + 2 : t, p, w] + self.D[j + 2 : t, t, :, w, r]  # (k, Q)
                choice = choose(np.concatenate([replaced.ravel(), popped.ravel()]))
                if choice < Q * S:
                    p, w = divmod(choice, S)
                    operations[j] = Operation("replace", p, w)
                    j += 1
                else:
                    k, o = divmod(choice - Q * S, Q)
                    returns.append((j, j + 2 + k, p, w, o))
                    j, p = j + 2 + k, o
            operations[t - 1] = Operation("pop", r)
        return AutomatonRun(tuple(operations), self._log_weight(operations))

    def _log_weight(self, operations: list[Operation]) -> float:
        q, symbols, terms = 0, [0], []
        for step, operation in enumerate(operations):
            x = symbols[-1] if operation.kind == "push" else symbols.pop()
            table = {"push": self.push, "replace": self.replace, "pop": self.pop}[operation.kind]
            if operation.symbol is None:
                terms.append(table[step, q, x, operation.state])
            else:
                terms.append(table[step, q, x, operation.state, operation.symbol])
                symbols.append(operation.symbol)
            q = operation.state
        return math.fsum(terms)


def _unravel(index: int, Q: int, S: int) -> tuple[int, int, int]:
    rest, y = divmod(index, S)
    return *divmod(rest, Q), y
