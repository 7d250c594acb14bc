"""Single runs of the nondeterministic stack: the best one (Viterbi) and exact samples, to see what a model learned."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from . import checks
from .pytorch.log_chart import Reduce, log_chart, log_sum

Choose = Callable[[np.ndarray], int]  # log weights of the candidates, of any shape -> the flat index of one


@dataclass(frozen=True)
class Operation:
    """One transition: what happens to the top of the stack, the state it leads to, and the symbol then on top.

    The symbol of a pop is None: the one that it uncovers was put there earlier.
    """

    kind: Literal["push", "replace", "pop"]
    state: int
    symbol: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} -> q{self.state}" if self.symbol is None else f"{self.kind} {self.symbol} -> q{self.state}"


@dataclass(frozen=True)
class AutomatonRun:
    """One operation per step, and the sum of their log weights."""

    operations: tuple[Operation, ...]
    log_weight: float

    def __str__(self) -> str:
        return ", ".join(map(str, self.operations))

    def stacks(self) -> list[list[tuple[int, int]]]:
        """The stack after each step, bottom first, as (step that pushed the element or -1 for the bottom, symbol)."""
        stack, stacks = [(-1, 0)], []
        for step, operation in enumerate(self.operations):
            pushed = step if operation.kind == "push" else stack.pop()[0]
            if operation.symbol is not None:
                stack.append((pushed, operation.symbol))
            stacks.append(list(stack))
        return stacks

    def listing(self, labels: Sequence[object] | None = None) -> str:
        """One line per step, indented by the depth of the element it touches, so that a push and its pop line up.

        `labels` (such as the tokens read, or their numbers) stand in for the step numbers.
        """
        texts = [str(label) for label in (range(len(self.operations)) if labels is None else labels)]
        if len(texts) != len(self.operations):
            raise ValueError(f"labels: expected one for each of the {len(self.operations)} steps, got {len(texts)}")
        width, lines, before = max(map(len, texts), default=0), [], 1
        for label, operation, stack in zip(texts, self.operations, self.stacks(), strict=True):
            depth = max(before, len(stack)) - 1
            lines.append(f"{label:>{width}}  {'  ' * depth}{operation}")
            before = len(stack)
        return "\n".join(lines)


def best_runs(
    log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None = None
) -> list[AutomatonRun]:
    """The run of the largest weight of each sequence; among equals always the same one.

    Log weights (B,T,Q,S,Q,S), (B,T,Q,S,Q,S), (B,T,Q,S,Q), where -inf forbids a transition; steps from lengths[b] on are
    not read. ValueError if a sequence has no run at all.
    """
    return [
        _Tracer(b, transitions, torch.amax).run(lambda candidates: int(candidates.argmax()))
        for b, transitions in _sequences(log_push, log_replace, log_pop, lengths)
    ]


def sample_runs(
    log_push: Tensor,
    log_replace: Tensor,
    log_pop: Tensor,
    num_samples: int,
    lengths: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> list[list[AutomatonRun]]:
    """`num_samples` independent runs of each sequence, drawn exactly in proportion to their weights.

    Arguments as for `best_runs`. A seeded `generator` makes the samples repeatable.
    """
    if not isinstance(num_samples, int) or isinstance(num_samples, bool):
        raise TypeError(f"num_samples: expected an integer, got {num_samples!r}")
    if num_samples < 1:
        raise ValueError(f"num_samples: expected at least 1, got {num_samples}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator: expected a torch.Generator or None, got {type(generator).__name__}")
    device = generator.device if generator is not None else "cpu"
    samples = []
    for b, transitions in _sequences(log_push, log_replace, log_pop, lengths):
        tracer = _Tracer(b, transitions, log_sum)
        shape = (num_samples, tracer.length + 1)  # one choice per operation, and one of where the run ends
        uniforms = torch.rand(shape, generator=generator, dtype=torch.float64, device=device).tolist()
        samples.append([tracer.run(_sampler(iter(row))) for row in uniforms])
    return samples


def _sampler(uniforms: Iterator[float]) -> Choose:
    def choose(candidates: np.ndarray) -> int:
        cumulative = np.exp(candidates - candidates.max()).cumsum()
        return int(cumulative.searchsorted(next(uniforms) * cumulative[-1], side="right"))

    return choose


def _sequences(
    log_push: Tensor, log_replace: Tensor, log_pop: Tensor, lengths: Tensor | None
) -> Iterator[tuple[int, tuple[Tensor, Tensor, Tensor]]]:
    """Each batch index with its log weights, cut to its length, in float64 and with a batch axis of 1."""
    checks.check_transitions(log_push, log_replace, log_pop, lengths)
    lengths = checks.copy_lengths(lengths, log_push.shape[1])
    inputs = {"log_push": log_push, "log_replace": log_replace, "log_pop": log_pop}
    for name, x in inputs.items():
        checks.check_numbers(name, x.detach(), lengths, minus_infinity=True)
    B, T = log_push.shape[:2]
    for b, end in enumerate([T] * B if lengths is None else lengths.tolist()):
        push, replace, pop = (x[b : b + 1, :end].detach().to("cpu", torch.float64) for x in inputs.values())
        yield b, (push, replace, pop)


class _Tracer:
    """Walks back through the chart of one sequence, letting `choose` decide between the terms of every sum."""

    def __init__(self, index: int, transitions: tuple[Tensor, Tensor, Tensor], reduce: Reduce) -> None:
        chart = log_chart(*transitions, reduce)
        self.push, self.replace, self.pop = (x[0].numpy() for x in transitions)
        self.D, self.P, self.F, alpha = (np.ascontiguousarray(x[0].numpy()) for x in chart)
        self.length, self.num_states, self.num_symbols = self.push.shape[:3]
        if alpha[self.length].max() == -np.inf:
            raise ValueError(f"sequence {index} has no run: every run dies within its {self.length} steps")

    def run(self, choose: Choose) -> AutomatonRun:
        Q, S = self.num_states, self.num_symbols
        operations: list[Operation] = [Operation("pop", 0)] * self.length
        returns = []  # (k, t, u, y, r): a stretch P[k -> t][u, y -> r] whose operations are still to be found
        t = self.length
        c, r, y = _unravel(choose(self.F[: t + 1, t]), Q, S)  # the run so far is F[c-1 -> t][r, y]
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
            while j < t - 1:  # the rest of the stretch is D[j -> t][p, w -> r]
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
