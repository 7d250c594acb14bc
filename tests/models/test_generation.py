"""Text generation, compared with naive searches and on models with known answers."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from stackattn.models import (
    LSTMLM,
    LSTMConfig,
    Seq2SeqConfig,
    Seq2SeqTransformer,
    TransformerLM,
    TransformerLMConfig,
    beam_search,
    greedy,
    sample,
)
from stackattn.models.generation import _draw
from stackattn.nn import State

V, EOS, BOS = 5, 4, 5
KINDS = [
    "2",
    "1.superposition-3x2",
    "nondeterministic-2-2-2.1",
    "lstm",
    "lstm+superposition-2",
    "lstm+nondeterministic-2-2-2",
]
SEQ2SEQ = ["seq2seq 1", "seq2seq superposition-3", "seq2seq nondeterministic-2-2-2"]


def language_model(kind: str, seed: int, eos_bias: float = 0.0):
    """A model in float64: a full pass and single steps differ far less than random scores do."""
    torch.manual_seed(seed)
    if kind.startswith("lstm"):
        stack = kind.partition("+")[2] or None
        model = LSTMLM(LSTMConfig(input_size=V + 1, output_size=V, hidden_size=8, stack=stack, init_range=1.5))
    else:
        model = TransformerLM(
            TransformerLMConfig(
                input_size=V + 1, output_size=V, layers=kind, d_model=8, heads=2, hidden_size=8, init_range=1.0
            )
        )
    with torch.no_grad():
        nn.init.normal_(model.output.bias)  # otherwise the LSTM's first prediction is uniform, which gives ties
        model.output.weight *= 3  # makes predictions depend on earlier tokens
        model.output.bias[EOS] += eos_bias
    return model.double().eval()


def seq2seq_model(kind: str, seed: int):
    torch.manual_seed(seed)
    layers = kind.split()[1]
    config = Seq2SeqConfig(
        input_size=V + 1, output_size=V, layers=layers, d_model=8, heads=2, hidden_size=8, init_range=1.5
    )
    return Seq2SeqTransformer(config).double().eval()


def naive_beam_search(full_pass, beam_size, limit):
    """Literal beam search; `full_pass` maps lists of tokens to the log-probabilities of the next tokens."""
    k = min(beam_size, V)
    beam = [([], 0.0)]  # tokens with eos, log-probability
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
    """Compare the batched search with the naive one for each prompt; returns the cases that occurred."""
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


def random_prompts(generator, batch):
    lengths = torch.randint(1, 4, (batch,), generator=generator)
    prompts = torch.randint(0, V - 1, (batch, int(lengths.max())), generator=generator)
    prompts[:, 0] = BOS
    return prompts, lengths


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
    assert sum(not finished for _, finished, _ in seen) >= 50, "some hit the limit"
    assert sum(passed_over for _, _, passed_over in seen) >= 10, "some of them with finished hypotheses below"
    assert len({length for length, finished, _ in seen if finished}) >= 5, "some end sooner than others"


@dataclass(frozen=True)
class Prefixes(State):
    tokens: torch.Tensor  # (B, steps so far)


class Table(nn.Module):
    """Next-token probabilities by the text predicted so far, initially `""`; eos has probability 1 after other text."""

    def __init__(self, table: dict[str, dict[str, float]]):
        super().__init__()
        self.table = table
        self.rows = []  # number of rows of each call

    def initial_state(self, batch_size):
        return Prefixes(torch.zeros(batch_size, 0, dtype=torch.long))

    def extend(self, tokens, state, lengths=None):
        self.rows.append(len(tokens))
        tokens = torch.cat([state.tokens, tokens], dim=1)
        logits = torch.full((len(tokens), V), -torch.inf, dtype=torch.float64)
        for row, prefix in zip(logits, tokens.tolist(), strict=True):
            for letter, p in self.table.get("".join("abcd"[i] for i in prefix[1:]), {"$": 1.0}).items():
                row["abcd$".index(letter)] = math.log(p)
        return logits[:, None], Prefixes(tokens)


def search(table, **options):
    model = Table(table)
    [result] = beam_search(model, torch.tensor([[BOS]]), eos=EOS, **options)
    return "".join("abcd"[i] for i in result.tokens), result.finished, math.exp(result.log_prob), model


def test_beam_search_continues_while_the_best_hypothesis_is_unfinished():
    # "" finishes at once with 0.4, less than "a" (0.6); "ab$" has 0.6 * 0.5 * 0.9 = 0.27, a mean of 0.646.
    table = {"": {"$": 0.4, "a": 0.6}, "a": {"b": 0.5, "c": 0.3, "$": 0.2}, "ab": {"$": 0.9, "a": 0.1}}
    assert search(table, beam_size=2)[:3] == ("ab", True, pytest.approx(0.27))
    # If "$" has probability 0.7, the search ends at once.
    table[""] = {"$": 0.7, "a": 0.3}
    assert search(table, beam_size=2)[:2] == ("", True)


def test_beam_search_ends_when_a_finished_hypothesis_is_best():
    # After one step "a" (0.55) leads; after two the frozen "$" (0.45) beats every continuation of "a" (sqrt 0.17).
    table = {"": {"$": 0.45, "a": 0.55}, "a": {"a": 0.3, "b": 0.3, "c": 0.4}}
    text, finished, p, _ = search({**table, "a": {"a": 0.3, "b": 0.34, "c": 0.36}}, beam_size=2)
    assert (text, finished, p) == ("", True, pytest.approx(0.45))


def test_beam_search_returns_an_unfinished_hypothesis_at_the_limit():
    table = {"": {"$": 0.4, "a": 0.6}, "a": {"b": 0.9, "a": 0.1}, "ab": {"b": 0.9, "a": 0.1}}
    assert search(table, beam_size=2, max_new_tokens=2)[:3] == ("ab", False, pytest.approx(0.54))
    # eos may be the last allowed token.
    assert search({"": {"a": 1.0}}, beam_size=2, max_new_tokens=2)[:2] == ("a", True)
    assert search({"": {"a": 1.0}}, beam_size=2, max_new_tokens=1)[:2] == ("a", False)
    assert search({"": {"a": 1.0}}, beam_size=2, max_new_tokens=0)[:3] == ("", False, 1.0)


def test_beam_search_extends_only_unfinished_hypotheses():
    table = {"": {"$": 0.4, "a": 0.6}, "a": {"b": 0.9, "a": 0.1}, "ab": {"b": 0.9, "a": 0.1}}
    model = search(table, beam_size=2, max_new_tokens=3)[3]
    assert model.rows == [1, 1, 1], "the finished hypothesis takes the other place of the beam"


@dataclass(frozen=True)
class CopyState(State):
    source: torch.Tensor  # (B, T), eos last
    read: torch.Tensor  # (B,)


class Copy(nn.Module):
    """Predicts the source, token by token, with probability 0.9 each."""

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
    assert needed <= sum(model.rows) <= needed * 8 / 7
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
    assert len({len(result.tokens) for result in found if result.finished}) > 1, "some end before others"
    # Without eos no prompt leaves the batch: the tokens before eos must be the same.
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


def test_without_dropout_and_gradients():
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
    assert len({result.log_prob for result in first}) == 1, "every row is the same without dropout"
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
