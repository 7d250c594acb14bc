"""Generation: greedy, sampling and beam search, for every model with `initial_state` and `extend`.

All three read prompts (B, T), BOS first and padded behind `lengths`, on top of a state: a fresh one for a language
model, `model.initial_state(source, lengths)` for `Seq2SeqTransformer`. They return what follows each prompt. The model
runs without dropout and without gradients, whatever its mode; a state that is handed in was made before that.

Examples::

    bos = torch.full((8, 1), BOS)
    greedy(model, bos, eos=EOS, max_new_tokens=50)
    sample(model, bos, eos=EOS, max_new_tokens=50, top_p=0.9, generator=torch.Generator().manual_seed(0))
    beam_search(translator, bos, translator.initial_state(source, lengths), eos=EOS, beam_size=4)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .transformer import Seq2SeqTransformer


@dataclass(frozen=True)
class Generated:
    """What follows one prompt."""

    tokens: list[int]
    """Without EOS."""
    log_prob: float
    """Of the tokens given the prompt, and of EOS if it came."""
    finished: bool
    """Whether EOS came within the limit."""


def greedy(
    model: nn.Module,
    prompts: Tensor,
    state: Any = None,
    *,
    max_new_tokens: int,
    eos: int | None = None,
    lengths: Tensor | None = None,
) -> list[Generated]:
    """The most probable token at every step.

    Args:
        model: with `extend`, and with `initial_state` if there is no `state`.
        prompts: (B, T)
            What is read first; the last token asks for the first new one.
        state: what came before the prompts, if it is not an empty state of the model.
        max_new_tokens: the limit, EOS included.
        eos: the token that ends a sequence; without it all run to the limit.
        lengths: (B,), optional
            Of the prompts, at least 1.
    """

    def choose(log_probs: Tensor, _: Tensor) -> Tensor:
        return log_probs.argmax(-1)

    return _one_by_one(model, prompts, state, choose, max_new_tokens, eos, lengths)


def sample(
    model: nn.Module,
    prompts: Tensor,
    state: Any = None,
    *,
    max_new_tokens: int,
    eos: int | None = None,
    lengths: Tensor | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> list[Generated]:
    """A random token at every step, from the model's distribution at `temperature`, cut to the `top_k` most probable
    tokens and then to the fewest that have `top_p` of what is left.

    Arguments as for `greedy`. With a seeded `generator` the samples are repeatable, and none of them depends on where
    the others in the batch end. Log-probabilities are the model's own, whatever the temperature and the cuts.
    """
    if not temperature > 0:
        raise ValueError(f"temperature: expected a positive number, got {temperature!r}; for the limit 0 use `greedy`")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k: expected a positive integer, got {top_k!r}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p: expected a number above 0 and up to 1, got {top_p!r}")
    device = generator.device if generator is not None else "cpu"

    def choose(log_probs: Tensor, rows: Tensor) -> Tensor:
        # One number for every prompt, also for those that have ended: nobody's luck depends on the others.
        uniform = torch.rand(prompts.shape[0], generator=generator, dtype=torch.float64, device=device)
        probs = (log_probs.double() / temperature).softmax(-1)
        return _draw(_cut(probs, top_k, top_p), uniform.to(rows.device)[rows])

    return _one_by_one(model, prompts, state, choose, max_new_tokens, eos, lengths)


def _cut(probs: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Zeros in place of the tokens that cannot be drawn; not normalised."""
    if top_k is not None and top_k < probs.shape[-1]:
        values, tokens = probs.topk(top_k, dim=-1)
        probs = torch.zeros_like(probs).scatter(-1, tokens, values)
    if top_p is not None and top_p < 1:
        values, tokens = probs.sort(dim=-1, descending=True, stable=True)
        before = values.cumsum(-1) - values
        values = values.where(before < top_p * values.sum(-1, keepdim=True), 0.0)
        probs = torch.zeros_like(probs).scatter(-1, tokens, values)
    return probs


def _draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """(B, V) weights and (B,) numbers in [0, 1) -> (B,) tokens, all of positive weight"""
    sums = weights.cumsum(-1)
    # Doubles below 1 times the total stay below it, so some sum is above: the first such one grew by its own weight.
    return torch.searchsorted(sums, uniform[:, None] * sums[:, -1:], right=True)[:, 0]


def _one_by_one(
    model: nn.Module,
    prompts: Tensor,
    state: Any,
    choose: Callable[[Tensor, Tensor], Tensor],
    max_new_tokens: int,
    eos: int | None,
    lengths: Tensor | None,
) -> list[Generated]:
    """One hypothesis for each prompt. `choose` takes log-probabilities (R, V) and the prompts they belong to (R,)."""
    B, device = prompts.shape[0], prompts.device
    tokens_of: list[list[int]] = [[] for _ in range(B)]
    log_prob_of = [0.0] * B
    finished = [False] * B
    with _evaluating(model):
        log_probs, state = _read(model, prompts, state, lengths, eos, max_new_tokens)
        rows = torch.arange(B, device=device)  # (R,): the prompts that are still in the batch
        for step in range(max_new_tokens):
            tokens = choose(log_probs, rows)
            chosen = log_probs.gather(-1, tokens[:, None])[:, 0]
            for b, token, log_prob in zip(rows.tolist(), tokens.tolist(), chosen.tolist(), strict=True):
                if finished[b]:
                    continue
                log_prob_of[b] += log_prob
                if token == eos:
                    finished[b] = True
                else:
                    tokens_of[b].append(token)
            left = [i for i, b in enumerate(rows.tolist()) if not finished[b]]
            if not left or step + 1 == max_new_tokens:
                break
            # To leave rows out is to copy the others: wait until an eighth has ended.
            if len(left) <= len(rows) * 7 / 8:
                index = torch.tensor(left, device=device)
                rows, tokens, state = rows[index], tokens[index], state.reorder(index)
            log_probs, state = _step(model, tokens[:, None], state)
    return [Generated(*result) for result in zip(tokens_of, log_prob_of, finished, strict=True)]


@dataclass(frozen=True)
class _Hypothesis:
    log_prob: float
    length: int  # predicted tokens, EOS included
    finished: bool
    row: int  # of the state that `token` extends
    token: int
    before: _Hypothesis | None  # None: nothing is predicted yet

    @property
    def score(self) -> float:
        return self.log_prob / self.length

    def result(self) -> Generated:
        tokens: list[int] = []
        last = self
        while last.before is not None:
            if not last.finished:
                tokens.append(last.token)
            last = last.before
        return Generated(tokens[::-1], self.log_prob, self.finished)


def beam_search(
    model: nn.Module,
    prompts: Tensor,
    state: Any = None,
    *,
    eos: int,
    beam_size: int = 4,
    max_new_tokens: int = 256,
    lengths: Tensor | None = None,
) -> list[Generated]:
    """The paper's beam search, for all prompts at once. Arguments as for `greedy`.

    A beam holds up to `beam_size` hypotheses, finished (by EOS) and unfinished together. At every step each unfinished
    one proposes its `beam_size` best next tokens, and the best of all stay: by log-probability divided by the number
    of predicted tokens, EOS included. The search for a prompt ends when the best one is finished. At the limit it
    returns the best unfinished one, even if there are finished ones below it.
    """
    if beam_size < 1:
        raise ValueError(f"beam_size: expected a positive integer, got {beam_size!r}")
    best = [_Hypothesis(0.0, 0, False, b, eos, None) for b in range(prompts.shape[0])]
    with _evaluating(model):
        log_probs, state = _read(model, prompts, state, lengths, eos, max_new_tokens)
        k = min(beam_size, log_probs.shape[-1])
        beams = {b: [hypothesis] for b, hypothesis in enumerate(best)}  # of the prompts whose search goes on
        for step in range(max_new_tokens):
            top = log_probs.topk(k, dim=-1)
            proposals = enumerate(zip(top.values.tolist(), top.indices.tolist(), strict=True))
            for b in list(beams):
                beams[b] = _advance(beams[b], proposals, eos, k)
                best[b] = beams[b][0]
                if best[b].finished:
                    del beams[b]
            if not beams or step + 1 == max_new_tokens:
                break
            live = [hypothesis for beam in beams.values() for hypothesis in beam if not hypothesis.finished]
            rows = [hypothesis.row for hypothesis in live]
            if rows != list(range(len(log_probs))):
                state = state.reorder(torch.tensor(rows, device=prompts.device))
            tokens = torch.tensor([[hypothesis.token] for hypothesis in live], device=prompts.device)
            log_probs, state = _step(model, tokens, state)
    return [hypothesis.result() for hypothesis in best]


def _advance(
    beam: list[_Hypothesis], proposals: Iterator[tuple[int, tuple[list[float], list[int]]]], eos: int, k: int
) -> list[_Hypothesis]:
    """The beam after one more step. Its unfinished hypotheses take the next of `proposals`: row, log-probabilities and
    tokens."""
    new: list[_Hypothesis] = []
    for hypothesis in beam:
        if hypothesis.finished:
            new.append(hypothesis)
            continue
        row, (log_probs, tokens) = next(proposals)
        new += [
            _Hypothesis(hypothesis.log_prob + log_prob, hypothesis.length + 1, token == eos, row, token, hypothesis)
            for log_prob, token in zip(log_probs, tokens, strict=True)
        ]
    return sorted(new, key=lambda hypothesis: hypothesis.score, reverse=True)[:k]


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def _read(
    model: nn.Module, prompts: Tensor, state: Any, lengths: Tensor | None, eos: int | None, max_new_tokens: int
) -> tuple[Tensor, Any]:
    """Log-probabilities (B, V) of what follows the prompts, and the state behind them."""
    if prompts.dim() != 2 or prompts.shape[1] == 0 or prompts.is_floating_point():
        got = f"{tuple(prompts.shape)} of {prompts.dtype}"
        raise ValueError(f"prompts: expected tokens (B, T), at least BOS in each, got {got}")
    B, T = prompts.shape
    if lengths is not None and (
        lengths.shape != (B,) or lengths.is_floating_point() or not all(1 <= n <= T for n in lengths.tolist())
    ):
        raise ValueError(f"lengths: expected {B} integers from 1 to {T}, got {lengths.tolist()}")
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens: expected a whole number, got {max_new_tokens!r}")
    if state is None:
        if isinstance(model, Seq2SeqTransformer):
            raise ValueError("state: expected `model.initial_state(source, lengths)`, got None")
        state = model.initial_state(B)  # pyright: ignore
    logits, state = model.extend(prompts, state, lengths)  # pyright: ignore
    V = logits.shape[-1]
    if eos is not None and not 0 <= eos < V:
        raise ValueError(f"eos: expected one of the {V} tokens that the model predicts, got {eos!r}")
    last = T - 1 if lengths is None else lengths.long() - 1
    return _log_probs(logits[torch.arange(B, device=logits.device), last]), state


def _step(model: nn.Module, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
    logits, state = model.extend(tokens, state)  # pyright: ignore
    return _log_probs(logits[:, 0]), state


def _log_probs(logits: Tensor) -> Tensor:
    log_probs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    if log_probs.sum().isnan():  # none is above 0, so only nan gives nan
        raise ValueError("the model's logits are nan")
    return log_probs
