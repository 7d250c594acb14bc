"""Greedy decoding, sampling and beam search, compared with known answers and full passes; invalid arguments."""

import math
from dataclasses import dataclass

import pytest
import torch
from generation_models import BOS, EOS, KINDS, Table, V, language_model, random_prompts, seq2seq_model
from torch import nn

from stackattn.models import (
    TransformerLM,
    TransformerLMConfig,
    beam_search,
    greedy,
    sample,
)
from stackattn.models.generation import _draw
from stackattn.nn import State


@dataclass(frozen=True)
class CopyState(State):
    source: torch.Tensor  # (B, T), EOS last
    read: torch.Tensor  # (B,)


class Copy(nn.Module):
    """Predicts each token of the source with a probability of at least 0.9."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def extend(self, tokens, state, lengths=None):
        self.rows.append(len(tokens))
        c = tokens.shape[1]
        wanted = state.source.gather(1, (state.read[:, None] + torch.arange(c)).clamp(max=state.source.shape[1] - 1))
        other = (0.1 * torch.linspace(0.5, 1.5, V)).expand(*wanted.shape, V) / V
        logits = other.scatter_add(-1, wanted[..., None], torch.full((*wanted.shape, 1), 0.9)).log()
        return logits, CopyState(state.source, state.read + c)


STRINGS = [[0, 1, 2, 3, 2, 1, 0], [], [3], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], [0, 3]]


def copies(strings):
    longest = max(map(len, strings))
    source = torch.tensor([string + [EOS] * (longest + 1 - len(string)) for string in strings])
    return CopyState(source, torch.zeros(len(strings), dtype=torch.long))


@pytest.mark.parametrize(
    "generate", [greedy, lambda *args, **options: sample(*args, top_k=1, **options), beam_search],
    ids=["greedy", "sample", "beam"],
)  # fmt: skip
def test_copies(generate):
    bos = torch.full((5, 1), BOS)
    found = generate(Copy(), bos, copies(STRINGS), eos=EOS, max_new_tokens=13)
    assert [result.tokens for result in found] == STRINGS
    assert all(result.finished for result in found)
    found = generate(Copy(), bos, copies(STRINGS), eos=EOS, max_new_tokens=12)
    assert [result.tokens for result in found] == STRINGS
    assert [result.finished for result in found] == [True, True, True, False, True]


def test_finished_prompts_leave_the_batch():
    strings = [[0] * n for n in range(32)]
    model = Copy()
    found = greedy(model, torch.full((32, 1), BOS), copies(strings), eos=EOS, max_new_tokens=100)
    assert [result.tokens for result in found] == strings
    needed = sum(len(string) + 1 for string in strings)
    assert needed <= sum(model.rows) <= needed * 8 / 7  # less than an eighth of the rows are finished at any time
    assert len(model.rows) == 32
    model = Copy()
    beam_search(model, torch.full((32, 1), BOS), copies(strings), eos=EOS, beam_size=1)
    assert sum(model.rows) == needed


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_greedy_equals_full_passes(kind):
    """Prompts of different lengths with garbage as padding, compared with one full pass per token and prompt."""
    model = language_model(kind, seed=1, eos_bias=-1.0)
    generator = torch.Generator().manual_seed(0)
    prompts, lengths = random_prompts(generator, 6)
    found = greedy(model, prompts, lengths=lengths, eos=EOS, max_new_tokens=6)
    for prompt, length, result in zip(prompts.tolist(), lengths.tolist(), found, strict=True):
        tokens, total = prompt[:length], 0.0
        while len(tokens) < length + 6:
            log_probs = model(torch.tensor([tokens]))[0, -1].log_softmax(-1)
            total += float(log_probs.max())
            tokens.append(int(log_probs.argmax()))
            if tokens[-1] == EOS:
                break
        finished = tokens[-1] == EOS
        assert result.tokens == tokens[length : len(tokens) - finished]
        assert result.finished == finished
        assert result.log_prob == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_samples_are_reproducible_and_independent(kind):
    model = language_model(kind, seed=2, eos_bias=1.0)
    prompts, lengths = random_prompts(torch.Generator().manual_seed(0), 16)

    def draw(seed, eos):
        generator = torch.Generator().manual_seed(seed)
        options = {"lengths": lengths, "max_new_tokens": 8, "temperature": 3.0, "top_p": 0.95}
        return sample(model, prompts, eos=eos, generator=generator, **options)

    found = draw(0, EOS)
    assert found == draw(0, EOS)
    assert found != draw(1, EOS)
    assert len({len(result.tokens) for result in found if result.finished}) > 1, "expected different lengths"
    # With eos=None, no prompt leaves the batch: the tokens before EOS must be the same.
    for ended, endless in zip(found, draw(0, None), strict=True):
        assert len(endless.tokens) == 8
        cut = endless.tokens.index(EOS) if EOS in endless.tokens else 8
        assert ended.tokens == endless.tokens[:cut]
    for prompt, length, result in zip(prompts.tolist(), lengths.tolist(), found, strict=True):
        new = result.tokens + [EOS] * result.finished
        log_probs = model(torch.tensor([prompt[:length] + new]))[0, length - 1 : -1].log_softmax(-1)
        assert result.log_prob == pytest.approx(sum(float(row[i]) for row, i in zip(log_probs, new, strict=True)))


P = [0.1, 0.35, 0.05, 0.2, 0.3]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, P),
        ({"temperature": 0.5}, [p**2 / 0.265 for p in P]),
        ({"top_k": 3}, [0, 0.35 / 0.85, 0, 0.2 / 0.85, 0.3 / 0.85]),
        ({"top_k": 9, "top_p": 1.0}, P),
        ({"top_p": 0.66}, [0, 0.35 / 0.85, 0, 0.2 / 0.85, 0.3 / 0.85]),
        ({"top_p": 0.64}, [0, 0.35 / 0.65, 0, 0, 0.3 / 0.65]),
        ({"top_p": 0.01}, [0, 1, 0, 0, 0]),
        # of the remaining three, 0.35 and 0.3 have a share of 0.76
        ({"top_k": 3, "top_p": 0.75}, [0, 0.35 / 0.65, 0, 0, 0.3 / 0.65]),
        ({"temperature": 0.5, "top_p": 0.7}, [0, 0.1225 / 0.2125, 0, 0, 0.09 / 0.2125]),
    ],
)
def test_sampled_frequencies(options, expected):
    n = 5_000
    model = Table({"": dict(zip("abcd$", P, strict=True))})
    generator = torch.Generator().manual_seed(0)
    found = sample(model, torch.full((n, 1), BOS), max_new_tokens=1, generator=generator, **options)
    for token, p in enumerate(expected):
        count = sum(result.tokens == [token] for result in found)
        if p in (0, 1):
            assert count == n * p
        assert abs(count - n * p) <= 5 * math.sqrt(n * p * (1 - p))


@pytest.mark.parametrize("total", [1.0, 1.0 + 2**-52, 1 / 3, 1.99999, 1e-300])
def test_impossible_tokens_are_never_drawn(total):
    weights = total * torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]], dtype=torch.float64).expand(4, -1)
    uniform = torch.tensor([0.0, 0.5 - 2**-54, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert _draw(weights, uniform).tolist() == [1, 1, 3, 3]


def test_generation_disables_dropout_and_restores_the_modes_of_modules():
    model = TransformerLM(
        TransformerLMConfig(
            input_size=V + 1, output_size=V, layers="1.superposition-3", d_model=8, heads=2, dropout=0.5
        )
    )
    model.train()
    model.embedding.eval()
    bos = torch.full((4, 1), BOS)
    first = greedy(model, bos, max_new_tokens=8)
    assert all(greedy(model, bos, max_new_tokens=8) == first for _ in range(3))
    assert len({result.log_prob for result in first}) == 1, "expected equal rows without dropout"
    assert model.training
    assert model.trunk.training
    assert not model.embedding.training
    assert not model.embedding.dropout.training


def test_the_given_state_does_not_change():
    model = language_model("1.superposition-3x2", seed=0)
    with torch.no_grad():
        _, state = model.extend(torch.tensor([[BOS, 1, 2]]), model.initial_state(1))
    whole = beam_search(model, torch.tensor([[BOS, 1, 2, 0]]), eos=EOS, max_new_tokens=5)
    for _ in range(2):
        [found] = beam_search(model, torch.tensor([[0]]), state, eos=EOS, max_new_tokens=5)
        assert found.tokens == whole[0].tokens
        assert found.log_prob == pytest.approx(whole[0].log_prob)


def test_no_prompts():
    model = language_model("2", seed=0)
    nothing = torch.zeros(0, 1, dtype=torch.long)
    assert greedy(model, nothing, max_new_tokens=3) == []
    assert beam_search(model, nothing, eos=EOS) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": torch.zeros(2, 0, dtype=torch.long)}, r"prompts: .*\(2, 0\)"),
        ({"prompts": torch.zeros(2, 1)}, "prompts: .*float32"),
        ({"lengths": torch.tensor([1, 0])}, r"lengths: expected 2 integers from 1 to 1, got \[1, 0\]"),
        ({"lengths": torch.tensor([1, 2])}, r"lengths: .*\[1, 2\]"),
        ({"lengths": torch.tensor([1])}, r"lengths: .*\[1\]"),
        ({"eos": V}, "eos: expected a token from 0 to 4, got 5"),
        ({"max_new_tokens": -1}, "max_new_tokens: .*-1"),
        ({"temperature": 0.0}, "temperature: .*`greedy`"),
        ({"top_k": 0}, "top_k: .*0"),
        ({"top_p": 1.5}, "top_p: .*1.5"),
    ],
)
def test_wrong_arguments(change, message):
    model = language_model("2", seed=0)
    arguments = {"prompts": torch.full((2, 1), BOS), "max_new_tokens": 2, **change}
    with pytest.raises(ValueError, match=message):
        sample(model, arguments.pop("prompts"), **arguments)


def test_other_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"state: .*initial_state\(source, lengths\)"):
        beam_search(seq2seq_model("seq2seq 1", 0), torch.full((2, 1), BOS), eos=EOS)
    with pytest.raises(ValueError, match=r"beam_size: .*0"):
        beam_search(language_model("2", 0), torch.full((2, 1), BOS), eos=EOS, beam_size=0)
    model = language_model("2", 0)
    with torch.no_grad():
        model.output.bias[0] = torch.nan
    with pytest.raises(ValueError, match="nan"):
        greedy(model, torch.full((2, 1), BOS), max_new_tokens=2)
