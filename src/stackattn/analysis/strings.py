"""One string, seen by one model: what the report's stepper shows. Plain lists, ready to become JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..languages import Language, get_language
from ..ops import AutomatonRun
from .real_stack import real_tops
from .traces import NondeterministicTrace, StackTrace, watch_stacks

PAPER = {  # the strings of the paper's Appendix E
    "marked-reversal": "01011010001101110010#01001110110001011010",
    "dyck": "[()][[([(([]))[([[[(((([]))()))]]])]])]]",
}
PUBLISHED = {  # what `variant="published"` asks for
    "dyck": ": there must be two outermost pairs of brackets or more",
    "padded-reversal": ": there must be a pair around the padding",
}
SAMPLED_RUNS = 3
LONGEST_SPLIT = 128  # beyond so many symbols the page gets too large to keep states and symbols apart


@dataclass(frozen=True)
class ChosenString:
    ids: np.ndarray
    source: str  # where it is from


def choose_strings(
    language: Language, lengths: tuple[int, int], texts: Sequence[str] = (), samples: int | None = None, seed: int = 0
) -> list[ChosenString]:
    """The given texts; or `samples` strings of the language, lengths uniform as in training; or, if neither is given,
    the paper's string for this language, if there is one, and two samples."""
    if texts:
        given = [ChosenString(language.encode(text), "given") for text in texts]
        if not all(len(string.ids) for string in given):
            raise ValueError("the empty string has no steps to see: expected at least one symbol")
        return given
    chosen = []
    if samples is None:
        samples = 2
        text = PAPER.get(language.name, "")
        if text and set(text) <= set(language.symbols) and lengths[0] <= len(text) <= lengths[1]:
            chosen.append(ChosenString(language.encode(text), "Appendix E of the paper"))
    generator = np.random.default_rng(seed)
    sizes = generator.choice(language.valid_lengths(max(1, lengths[0]), lengths[1]), samples)
    strings = language.sample_lengths(sizes, generator)
    return chosen + [ChosenString(string, f"sample {i + 1}, seed {seed}") for i, string in enumerate(strings)]


def with_bos(language: Language, strings: Tensor) -> Tensor:
    """(B, n) -> (B, n + 1): BOS, whose number comes after those of the symbols, in front."""
    return torch.cat([strings.new_full((len(strings), 1), len(language.symbols)), strings], dim=1)


def some_runs(trace: StackTrace, seed: int = 0) -> list[tuple[str, AutomatonRun]]:
    """The best run and a few sampled ones of a trace's first sequence, with their names."""
    samples = trace.sample_runs(SAMPLED_RUNS, torch.Generator().manual_seed(seed))[0]
    return [("best run", trace.best_runs()[0]), *((f"sampled run {i}", run) for i, run in enumerate(samples, 1))]


def describe_string(
    model: nn.Module, language: Language, lengths: tuple[int, int], string: ChosenString, *, seed: int = 0, split: bool
) -> dict[str, Any]:
    """Everything about a string. Step 0 reads BOS; weights are in thousandths, to keep the page small."""
    inputs = with_bos(language, torch.from_numpy(string.ids)[None])
    with torch.no_grad():
        log_probs = model.eval()(inputs)[0].double().log_softmax(-1)  # (n + 1, V + 1)
    n = len(string.ids)
    unusual = not lengths[0] <= n <= lengths[1]
    lengths = min(lengths[0], n), max(lengths[1], n)
    truth = _true_distributions(language, lengths, string.ids)
    real = real_tops(language, string.ids.tolist())
    return {
        "tokens": ["BOS", *(language.symbols[i] for i in string.ids)],
        "source": string.source,
        "lengths": list(lengths),
        "unusual": unusual,  # of a length that training did not have
        "belongs": bool(language.contains(string.ids)),
        "foreign": why_foreign(language, string.ids),
        "model": _thousandths(log_probs.exp()),
        "truth": [None if row is None else _thousandths(row) for row in truth],
        "lost": [None if row is None else _divergence(row, log_probs[t]) for t, row in enumerate(truth)],
        "real": None if real is None else [-1, *(top + 1 if top >= 0 else -1 for top in real)],  # numbers of tokens
        "stacks": [_describe_stack(trace, seed, split and n <= LONGEST_SPLIT) for trace in watch_stacks(model, inputs)],
    }


def why_foreign(language: Language, string: np.ndarray) -> str:
    """A reader may be surprised that the published variants leave out some strings of their languages."""
    parameters = (language.recipe or {}).get("parameters", {})
    if parameters.get("variant") != "published" or language.contains(string):
        return ""
    if not get_language(language.name, **{**parameters, "variant": "plain"}).contains(string):
        return ""
    return f" Its variant “published” leaves it out{PUBLISHED.get(language.name, '')}."


def _true_distributions(language: Language, lengths: tuple[int, int], string: np.ndarray) -> list[np.ndarray | None]:
    """What may follow each prefix; None from where on no string of the language goes on like this."""
    prefixes = [string[:t] for t in range(len(string) + 1)]
    possible = np.asarray(language.prefix_log_prob(prefixes, lengths)) > -np.inf
    count = len(prefixes) if possible.all() else int(np.argmin(possible))
    rows = language.next_symbol_distribution(prefixes[:count], lengths) if count else []
    return [*rows, *[None] * (len(prefixes) - count)]


def _divergence(truth: np.ndarray, log_model: Tensor) -> float:
    """Nats that the model loses here: the Kullback-Leibler divergence of the true distribution from its own."""
    positive = truth > 0
    return round(float((truth[positive] * (np.log(truth[positive]) - log_model.numpy()[positive])).sum()), 4)


def _describe_stack(trace: StackTrace, seed: int, split: bool) -> dict[str, Any]:
    first = trace.first
    tops, contents, actions = trace.tops()[0], trace.contents()[0], trace.actions()[0]
    nondeterministic = isinstance(trace, NondeterministicTrace)
    found: dict[str, Any] = {
        "name": trace.name,
        "kind": "nondeterministic" if nondeterministic else "superposition",
        "actionNames": list(trace.ACTIONS),
        "actions": [None] * first + _thousandths(actions),
        "tops": _with_unread(tops, first),
        "contents": [[0] * first] * first + _rows(contents, first),
        "heights": [0.0] * first + [round(x, 3) for x in contents.sum(-1).tolist()],
        "runs": [_describe_run(name, run, trace, first) for name, run in some_runs(trace, seed)],
    }
    if nondeterministic and split:
        weights = trace.weights()[0]  # (T, T + 1, Q, S)
        found["split"] = [
            {"state": q, "symbol": s, "tops": _with_unread(weights[:, :, q, s], first, int(q == s == 0))}
            for q in range(weights.shape[2])
            for s in range(weights.shape[3])
        ]
    return found


def _describe_run(name: str, run: AutomatonRun, trace: StackTrace, first: int) -> dict[str, Any]:
    """Each step as its action (a place in the ACTIONS), the state and the symbol; None where nothing is read."""
    kinds = ("push", "replace", "pop")
    steps = [
        [kinds.index(step.kind), step.state, -1 if step.symbol is None else step.symbol] for step in run.operations
    ]
    share = float(np.exp(run.log_weight - trace.log_totals()[0].item()))
    return {"name": name, "share": float(f"{share:.3g}"), "steps": [None] * first + steps}


def _with_unread(tops: Tensor, first: int, bottom: int = 1) -> list[list[int]]:
    """Weights by token: a BOS that is not read leaves the bottom on top, and is never pushed."""
    if first:
        tops = torch.cat([tops[:, :1], torch.zeros_like(tops[:, :1]), tops[:, 1:]], dim=1)
    return [[1000 * bottom]] * first + _rows(tops, 0, 1 + first)


def _rows(x: Tensor, first: int, extra: int = 0) -> list[list[int]]:
    """The rows of a lower triangle with `extra` columns more, in thousandths, without the zeros at their ends."""
    found = []
    for t, row in enumerate(_thousandths(x)):
        row = [0] * first + row[: t + 1 + extra]
        while row and row[-1] == 0:
            row.pop()
        found.append(row)
    return found


def _thousandths(x: Tensor | np.ndarray) -> Any:
    return (torch.as_tensor(x) * 1000).round().long().tolist()
