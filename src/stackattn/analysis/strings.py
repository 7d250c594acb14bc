"""Select strings to step through, and trace a model on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..config import FieldError
from ..languages import Language, get_language
from ..ops import AutomatonRun
from ..training.cfl import with_bos
from .real_stack import real_tops
from .traces import StackTrace, trace_forward

PAPER = {  # the strings of the paper's Appendix E
    "marked-reversal": "01011010001101110010#01001110110001011010",
    "dyck": "[()][[([(([]))[([[[(((([]))()))]]])]])]]",
}
PUBLISHED = {  # what `variant="published"` requires
    "dyck": ": it requires at least two outermost pairs of brackets",
    "padded-reversal": ": it requires at least one pair around the padding",
}
SAMPLED_RUNS = 3


@dataclass(frozen=True)
class SelectedString:
    """A string to step through."""

    ids: np.ndarray
    origin: str
    """Where the string comes from."""


@dataclass(frozen=True)
class TracedStack:
    """Trace of one stack on one string, with the best run of the automaton and some sampled ones, by name."""

    trace: StackTrace
    runs: list[tuple[str, AutomatonRun]]


@dataclass(frozen=True)
class TracedString:
    """A string of n symbols, with a model's predictions and stacks. Step 0 is BOS, which an LSTM does not read."""

    origin: str
    """Where the string comes from."""
    tokens: list[str]
    """BOS and the n symbols."""
    lengths: tuple[int, int]
    """Range of lengths of the language's distribution: the training lengths, extended to include this string."""
    seen_length: bool
    """Whether the length is in the range of the training lengths."""
    in_language: bool
    why_excluded: str
    """Why the published variant of the language excludes the string; otherwise empty. See `why_excluded`."""
    log_probs: Tensor
    """Logs of the model's next-symbol probabilities at each step, (n + 1, symbols and EOS)."""
    truth: list[np.ndarray | None]
    """The language's next-symbol distribution at each step; None where no string of `lengths` continues the prefix."""
    real: list[int] | None
    """Position of the symbol on top of a real stack after each symbol: see `real_tops`."""
    stacks: list[TracedStack]


def select_strings(
    language: Language, lengths: tuple[int, int], texts: Sequence[str] = (), samples: int | None = None, seed: int = 0
) -> list[SelectedString]:
    """Select the strings to step through.

    Args:
        language: the language.
        lengths: range of training lengths.
        texts: if given, these strings are selected.
        samples: number of sampled strings, with uniform lengths as in training (default: two, preceded by the paper's
            string for this language if it exists and its length is in range).
        seed: seed of the samples.

    Raises:
        ValueError: a text is empty or has a symbol that is not in the language.
    """
    if texts:
        given = [SelectedString(language.encode(text), "given") for text in texts]
        if not all(len(string.ids) for string in given):
            raise FieldError("texts", "expected at least one symbol, got the empty string")
        return given
    selected = []
    if samples is None:
        samples = 2
        text = PAPER.get(language.name, "")
        if text and set(text) <= set(language.symbols) and lengths[0] <= len(text) <= lengths[1]:
            selected.append(SelectedString(language.encode(text), "Appendix E of the paper"))
    generator = np.random.default_rng(seed)
    sizes = generator.choice(language.valid_lengths(max(1, lengths[0]), lengths[1]), samples)
    strings = language.sample_lengths(sizes, generator)
    return selected + [SelectedString(string, f"sample {i + 1}, seed {seed}") for i, string in enumerate(strings)]


def trace_string(
    model: nn.Module,
    language: Language,
    lengths: tuple[int, int],
    string: SelectedString,
    *,
    names: Sequence[str],
    seed: int = 0,
) -> TracedString:
    """Run a model on a string and trace the stacks with the given names.

    Args:
        model: a model of the language.
        language: the language.
        lengths: range of training lengths.
        string: the string.
        names: names of the stacks to trace: see `stack_names`.
        seed: seed of the sampled runs.
    """
    inputs = with_bos(language, torch.from_numpy(string.ids)[None])
    logits, traces = trace_forward(model, inputs)  # (1, n + 1, symbols and EOS)
    n = len(string.ids)
    extended = min(lengths[0], n), max(lengths[1], n)
    in_language = bool(language.contains(string.ids))
    return TracedString(
        origin=string.origin,
        tokens=["BOS", *(language.symbols[i] for i in string.ids)],
        lengths=extended,
        seen_length=lengths[0] <= n <= lengths[1],
        in_language=in_language,
        why_excluded="" if in_language else why_excluded(language, string.ids),
        log_probs=logits[0].double().log_softmax(-1).cpu(),
        truth=_true_distributions(language, extended, string.ids),
        real=real_tops(language, string.ids.tolist()),
        stacks=traced_stacks(traces, names, seed),
    )


def traced_stacks(traces: Sequence[StackTrace], names: Sequence[str], seed: int) -> list[TracedStack]:
    """The traces of the stacks with the given names, with some of their runs."""
    return [TracedStack(trace, some_runs(trace, seed)) for trace in traces if trace.name in names]


def some_runs(trace: StackTrace, seed: int = 0) -> list[tuple[str, AutomatonRun]]:
    """The best run and some sampled runs of a trace's first sequence, with their names."""
    samples = trace.sample_runs(SAMPLED_RUNS, torch.Generator().manual_seed(seed))[0]
    return [("best run", trace.best_runs()[0]), *((f"sampled run {i}", run) for i, run in enumerate(samples, 1))]


def why_excluded(language: Language, string: np.ndarray) -> str:
    """Explain why a published variant excludes a string of the plain variant; '' for any other excluded string."""
    parameters = (language.recipe or {}).get("parameters", {})
    if parameters.get("variant") != "published":
        return ""
    if not get_language(language.name, **{**parameters, "variant": "plain"}).contains(string):
        return ""
    return f" The variant “published” excludes it{PUBLISHED.get(language.name, '')}."


def _true_distributions(language: Language, lengths: tuple[int, int], string: np.ndarray) -> list[np.ndarray | None]:
    """Distribution after each prefix; None once no string of `lengths` continues the prefix."""
    prefixes = [string[:t] for t in range(len(string) + 1)]
    possible = np.asarray(language.prefix_log_prob(prefixes, lengths)) > -np.inf
    count = len(prefixes) if possible.all() else int(np.argmin(possible))
    rows = language.next_symbol_distribution(prefixes[:count], lengths) if count else []
    return [*rows, *[None] * (len(prefixes) - count)]
