"""Beam search, compared with a naive search, and tested on tables of probabilities."""

import math

import pytest
import torch
from generation_models import BOS, EOS, KINDS, SEQ2SEQ, Table, V, language_model, random_prompts, seq2seq_model

from stackattn.models import (
    beam_search,
)


def naive_beam_search(full_pass, beam_size, limit):
    """Search by the definition; `full_pass` maps lists of tokens to the log-probabilities of the next tokens.

    Returns the tokens, their log-probability, whether the hypothesis is finished, and whether, at the limit, the beam
    also contains a finished hypothesis, which has a lower score.
    """
    k = min(beam_size, V)
    beam = [([], 0.0)]  # tokens with EOS, log-probability
    for _ in range(limit):
        candidates = [(tokens, total) for tokens, total in beam if tokens[-1:] == [EOS]]
        unfinished = [(tokens, total) for tokens, total in beam if tokens[-1:] != [EOS]]
        rows = full_pass([tokens for tokens, _ in unfinished])
        for (tokens, total), row in zip(unfinished, rows, strict=True):
            best = sorted(range(V), key=row.__getitem__, reverse=True)[:k]
            candidates += [([*tokens, token], total + row[token]) for token in best]
        candidates.sort(key=lambda candidate: candidate[1] / len(candidate[0]), reverse=True)
        beam = candidates[:k]
        if beam[0][0][-1] == EOS:
            return beam[0][0][:-1], beam[0][1], True, False
    passed_over = any(tokens[-1] == EOS for tokens, _ in beam)
    return *next((tokens, total) for tokens, total in beam if tokens[-1:] != [EOS]), False, passed_over


@torch.no_grad()
def compare(model, prompts, lengths, limit, beam_size, source=None, source_lengths=None):
    """Compare both searches for each prompt; return the number of tokens, `finished` and `passed_over` for each."""
    state = None if source is None else model.initial_state(source, source_lengths)
    found = beam_search(model, prompts, state, lengths=lengths, eos=EOS, beam_size=beam_size, max_new_tokens=limit)
    seen = []
    for b, result in enumerate(found):

        def full_pass(hypotheses, b=b):
            prompt = prompts[b, : lengths[b]].tolist()
            inputs = torch.tensor([prompt + tokens for tokens in hypotheses])
            if source is None:
                logits = model(inputs)
            else:
                alone = source[b, : source_lengths[b]].expand(len(inputs), -1)
                logits = model(alone, inputs)
            return logits[:, -1].log_softmax(-1).tolist()

        tokens, total, finished, passed_over = naive_beam_search(full_pass, beam_size, limit)
        assert (result.tokens, result.finished) == (tokens, finished)
        assert result.log_prob == pytest.approx(total, abs=1e-9)
        seen.append((len(tokens), finished, passed_over))
    return seen


def check_beam_search(seeds):
    seen = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        beam_size, limit = 1 + seed % 7, 3 + seed % 8
        kind = (KINDS + SEQ2SEQ)[seed % 9]
        if kind in KINDS:
            model = language_model(kind, seed, eos_bias=seed % 4 - 1.0)
            seen += compare(model, *random_prompts(generator, 3), limit, beam_size)
        else:
            source, source_lengths = random_prompts(generator, 3)
            prompts = torch.full((3, 1), BOS)
            model = seq2seq_model(kind, seed)
            seen += compare(model, prompts, torch.ones(3).long(), limit, beam_size, source, source_lengths)
    return seen


def test_beam_search_equals_naive_search():
    seen = check_beam_search(range(108))
    assert sum(not finished for _, finished, _ in seen) >= 50, "expected some searches to reach the limit"
    assert sum(passed_over for _, _, passed_over in seen) >= 10, "expected some beams with a finished hypothesis"
    assert len({length for length, finished, _ in seen if finished}) >= 5, "expected results of different lengths"


def search(table, **options):
    model = Table(table)
    [result] = beam_search(model, torch.tensor([[BOS]]), eos=EOS, **options)
    return "".join("abcd"[i] for i in result.tokens), result.finished, math.exp(result.log_prob), model


def test_beam_search_continues_while_the_best_hypothesis_is_unfinished():
    # "$" has probability 0.4, less than "a" (0.6); "ab$" has 0.6 * 0.5 * 0.9 = 0.27, a geometric mean of 0.646.
    table = {"": {"$": 0.4, "a": 0.6}, "a": {"b": 0.5, "c": 0.3, "$": 0.2}, "ab": {"$": 0.9, "a": 0.1}}
    assert search(table, beam_size=2)[:3] == ("ab", True, pytest.approx(0.27))
    # If "$" has probability 0.7, the search ends at once.
    table[""] = {"$": 0.7, "a": 0.3}
    assert search(table, beam_size=2)[:2] == ("", True)


def test_beam_search_ends_when_a_finished_hypothesis_is_best():
    # After one step, "a" (0.55) is best; after two, "$" (0.45) is better than "ac" (sqrt(0.55 * 0.36) = 0.445).
    table = {"": {"$": 0.45, "a": 0.55}, "a": {"a": 0.3, "b": 0.34, "c": 0.36}}
    text, finished, p, _ = search(table, beam_size=2)
    assert (text, finished, p) == ("", True, pytest.approx(0.45))


def test_beam_search_returns_an_unfinished_hypothesis_at_the_limit():
    table = {"": {"$": 0.4, "a": 0.6}, "a": {"b": 0.9, "a": 0.1}, "ab": {"b": 0.9, "a": 0.1}}
    assert search(table, beam_size=2, max_new_tokens=2)[:3] == ("ab", False, pytest.approx(0.54))
    # EOS may be the last allowed token.
    assert search({"": {"a": 1.0}}, beam_size=2, max_new_tokens=2)[:2] == ("a", True)
    assert search({"": {"a": 1.0}}, beam_size=2, max_new_tokens=1)[:2] == ("a", False)
    assert search({"": {"a": 1.0}}, beam_size=2, max_new_tokens=0)[:3] == ("", False, 1.0)


def test_beam_search_extends_only_unfinished_hypotheses():
    table = {"": {"$": 0.4, "a": 0.6}, "a": {"b": 0.9, "a": 0.1}, "ab": {"b": 0.9, "a": 0.1}}
    model = search(table, beam_size=2, max_new_tokens=3)[3]
    assert model.rows == [1, 1, 1], "expected one row: the other hypothesis in the beam is finished"
