"""Text generation: greedy decoding, sampling and beam search, for all models with `initial_state` and `extend`.

All functions take prompts (B, T) that begin with BOS and are padded on the right, and return a continuation of each
prompt. For a `Seq2SeqTransformer`, pass the state `model.initial_state(source, lengths)`. The model runs in evaluation
mode and without gradients, and returns to its previous mode afterwards.

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

from ..ops.immediate import immediate_checks, reads_values
from .transformer import Seq2SeqTransformer


@dataclass(frozen=True)
class Generated:
    """Continuation of one prompt."""

    tokens: list[int]
    """The new tokens, without EOS."""
    log_prob: float
    """Log-probability of the new tokens given the prompt, including EOS if finished."""
    finished: bool
    """Whether the model predicted EOS within the limit."""


def greedy(
    model: nn.Module,
    prompts: Tensor,
    state: Any = None,
    *,
    max_new_tokens: int,
    eos: int | None = None,
    lengths: Tensor | None = None,
) -> list[Generated]:
    """Generate the most probable token at every step.

    Args:
        model: a model with `extend`, and with `initial_state` if `state` is not given.
        prompts: (B, T), int64 or int32
            Tokens to read first.
        state: state before the prompts (default: the model's initial state; required for a `Seq2SeqTransformer`).
        max_new_tokens: largest number of new tokens, EOS included.
        eos: token that ends a sequence (default: none; every continuation has `max_new_tokens` tokens).
        lengths: (B,), optional
            Number of tokens of each prompt, at least 1; the rest is padding.

    Returns:
        One continuation per prompt.

    Raises:
        TypeError, ValueError: an argument is invalid, or the model's logits are nan.

    Examples::

        results = greedy(model, torch.full((8, 1), bos), eos=eos, max_new_tokens=50)
    """

    def choose(log_probs: Tensor, _: Tensor) -> Tensor:
        return log_probs.argmax(-1)

    return _extend_prompts(model, prompts, state, choose, max_new_tokens, eos, lengths)


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
    """Draw a random token at every step.

    Args:
        temperature: divisor of the logits, positive.
        top_k: draw from the `top_k` most probable tokens only.
        top_p: after `top_k`, draw from the smallest set of most probable tokens with at least this share of the
            remaining probability.
        generator: source of random numbers (default: PyTorch's generator on the CPU). With a seed, samples are
            reproducible, and each sample is independent of when the others finish.

    The other arguments, the results and the errors are those of `greedy`. Log-probabilities are those of the model,
    before temperature, `top_k` and `top_p`.

    Examples::

        generator = torch.Generator().manual_seed(0)
        sample(model, torch.full((8, 1), bos), eos=eos, max_new_tokens=50, top_p=0.9, generator=generator)
    """
    if not temperature > 0:
        raise ValueError(f"temperature: expected a positive number, got {temperature!r}; use `greedy` instead of 0")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k: expected a positive integer, got {top_k!r}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p: expected a number greater than 0 and at most 1, got {top_p!r}")
    device = generator.device if generator is not None else "cpu"

    def choose(log_probs: Tensor, rows: Tensor) -> Tensor:
        # Draw for finished prompts too, so that each sample is independent of when the others finish.
        uniform = torch.rand(prompts.shape[0], generator=generator, dtype=torch.float64, device=device)
        probs = (log_probs.double() / temperature).softmax(-1)
        return _draw(_cut(probs, top_k, top_p), uniform.to(rows.device, non_blocking=True)[rows])

    return _extend_prompts(model, prompts, state, choose, max_new_tokens, eos, lengths)


def _cut(probs: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Set the probabilities of excluded tokens to 0; the result is not normalised."""
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
    """Weights (B, V) and numbers (B,) in [0, 1) -> tokens (B,) with positive weights"""
    sums = weights.cumsum(-1)
    # The product of the total and a float64 below 1 is below the total, so some sum is greater. The first such sum
    # belongs to a token with a positive weight.
    return torch.searchsorted(sums, uniform[:, None] * sums[:, -1:], right=True)[:, 0]


def _extend_prompts(
    model: nn.Module,
    prompts: Tensor,
    state: Any,
    choose: Callable[[Tensor, Tensor], Tensor],
    max_new_tokens: int,
    eos: int | None,
    lengths: Tensor | None,
) -> list[Generated]:
    """Extend one hypothesis per prompt. `choose` takes log-probabilities (R, V) and the prompt of each row (R,)."""
    B, device = prompts.shape[0], prompts.device
    tokens_of: list[list[int]] = [[] for _ in range(B)]
    log_prob_of = [0.0] * B
    finished = [False] * B
    with _evaluating(model):
        log_probs, state = _read(model, prompts, state, lengths, eos, max_new_tokens)
        numbers = list(range(B))  # prompts that are still in the batch, and the same as a tensor (R,)
        rows = torch.arange(B, device=device)
        for step in range(max_new_tokens):
            tokens = choose(log_probs, rows)
            chosen = log_probs.gather(-1, tokens[:, None])[:, 0]
            for b, token, log_prob in zip(numbers, _on_host(tokens), _on_host(chosen), strict=True):
                if finished[b]:
                    continue
                log_prob_of[b] += log_prob
                if token == eos:
                    finished[b] = True
                else:
                    tokens_of[b].append(token)
            left = [i for i, b in enumerate(numbers) if not finished[b]]
            if not left or step + 1 == max_new_tokens:
                break
            # Dropping rows copies all others, so wait until an eighth has finished.
            if len(left) <= len(rows) * 7 / 8:
                index = _on_device(left, device)
                numbers = [numbers[i] for i in left]
                rows, tokens, state = rows[index], tokens[index], state.reorder(index)
            log_probs, state = _step(model, tokens[:, None], state)
    return [Generated(*result) for result in zip(tokens_of, log_prob_of, finished, strict=True)]


@dataclass(frozen=True)
class _Hypothesis:
    log_prob: float
    length: int  # predicted tokens, EOS included
    finished: bool
    row: int  # row of the state that `token` extends
    token: int
    before: _Hypothesis | None  # None if nothing is predicted yet

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
    """Search for the best continuation of each prompt, as in the paper.

    A beam holds up to `beam_size` hypotheses, finished and unfinished ones together. At every step, each unfinished
    hypothesis proposes its `beam_size` most probable next tokens, and the best hypotheses remain. Their score is the
    log-probability divided by the number of predicted tokens, EOS included. The search for a prompt ends when its best
    hypothesis is finished. At the limit, the search returns the best hypothesis, even if it is unfinished.

    Args:
        beam_size: largest number of hypotheses per prompt.

    The other arguments, the results and the errors are those of `greedy`.

    Examples::

        beam_search(translator, bos_column, translator.initial_state(source, lengths), eos=eos, beam_size=4)
    """
    if beam_size < 1:
        raise ValueError(f"beam_size: expected a positive integer, got {beam_size!r}")
    best = [_Hypothesis(0.0, 0, False, b, eos, None) for b in range(prompts.shape[0])]
    with _evaluating(model):
        log_probs, state = _read(model, prompts, state, lengths, eos, max_new_tokens)
        k = min(beam_size, log_probs.shape[-1])
        beams = {b: [hypothesis] for b, hypothesis in enumerate(best)}  # of the prompts whose search continues
        for step in range(max_new_tokens):
            top = log_probs.topk(k, dim=-1)
            proposals = enumerate(zip(_on_host(top.values), _on_host(top.indices), strict=True))
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
                state = state.reorder(_on_device(rows, prompts.device))
            tokens = _on_device([hypothesis.token for hypothesis in live], prompts.device)[:, None]
            log_probs, state = _step(model, tokens, state)
    return [hypothesis.result() for hypothesis in best]


def _advance(
    beam: list[_Hypothesis], proposals: Iterator[tuple[int, tuple[list[float], list[int]]]], eos: int, k: int
) -> list[_Hypothesis]:
    """Return the beam after one more step. Each unfinished hypothesis takes the next item of `proposals`: its row,
    log-probabilities and tokens."""
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
    """Evaluation mode without gradients; the modes of all modules are restored afterwards."""
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
    """Read the prompts, and return the log-probabilities (B, V) of the next token and the state."""
    if prompts.dim() != 2 or prompts.shape[1] == 0 or prompts.is_floating_point():
        got = f"{tuple(prompts.shape)} of {prompts.dtype}"
        raise ValueError(f"prompts: expected integers of shape (B, T) with T at least 1, got {got}")
    B, T = prompts.shape
    if lengths is not None and (
        lengths.shape != (B,) or lengths.is_floating_point() or not all(1 <= n <= T for n in _on_host(lengths))
    ):
        raise ValueError(f"lengths: expected {B} integers from 1 to {T}, got {_on_host(lengths)}")
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens: expected an integer of at least 0, got {max_new_tokens!r}")
    if state is None:
        if isinstance(model, Seq2SeqTransformer):
            raise ValueError("state: expected `model.initial_state(source, lengths)`, got None")
        state = model.initial_state(B)  # pyright: ignore
    log_probs, state = _step(model, prompts, state, lengths)
    V = log_probs.shape[-1]
    if eos is not None and not 0 <= eos < V:
        raise ValueError(f"eos: expected a token from 0 to {V - 1}, got {eos!r}")
    return log_probs, state


def _step(model: nn.Module, tokens: Tensor, state: Any, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
    """Read tokens (B, T), and return the log-probabilities (B, V) of the token after the last one and the state."""
    log_probs, after = _extend(model, tokens, state, lengths)
    nan = _has_nan(log_probs)
    if nan and not reads_values(log_probs.device):
        with immediate_checks():  # raises if a value is invalid; otherwise computes with more range
            log_probs, after = _extend(model, tokens, state, lengths)
        nan = _has_nan(log_probs)
    if nan:
        raise ValueError("model: expected logits that are numbers, got nan")
    return log_probs, after


def _extend(model: nn.Module, tokens: Tensor, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
    logits, state = model.extend(tokens, state, lengths)  # pyright: ignore
    last = tokens.shape[1] - 1 if lengths is None else lengths.long() - 1
    logits = logits[torch.arange(len(tokens), device=logits.device), last]
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)), state


def _on_host(x: Tensor) -> list[Any]:
    """The values of a tensor; waits for the device."""
    return x.tolist()


def _on_device(numbers: list[int], device: torch.device) -> Tensor:
    return torch.tensor(numbers, device=device)


def _has_nan(log_probs: Tensor) -> bool:
    """Whether a value is nan: no value is positive, so the sum is nan only if a value is. Waits for the device."""
    return bool(log_probs.sum().isnan())
