"""Models that generate text: small random ones, and tables of probabilities."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from stackattn import models
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
    """Return a model in float64, in which rounding errors are too small to change the order of scores."""
    torch.manual_seed(seed)
    if kind.startswith("lstm"):
        stack = kind.partition("+")[2] or None
        model = models.LSTMLM(
            models.LSTMConfig(input_size=V + 1, output_size=V, hidden_size=8, stack=stack, init_range=1.5)
        )
    else:
        model = models.TransformerLM(
            models.TransformerLMConfig(
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
    config = models.Seq2SeqConfig(
        input_size=V + 1, output_size=V, layers=layers, d_model=8, heads=2, hidden_size=8, init_range=1.5
    )
    return models.Seq2SeqTransformer(config).double().eval()


def random_prompts(generator, batch):
    lengths = torch.randint(1, 4, (batch,), generator=generator)
    prompts = torch.randint(0, V - 1, (batch, int(lengths.max())), generator=generator)
    prompts[:, 0] = BOS
    return prompts, lengths


@dataclass(frozen=True)
class Prefixes(State):
    tokens: torch.Tensor  # (B, steps so far)


class Table(nn.Module):
    """A model that looks up token probabilities by the text so far, first `""`; after unknown text, EOS is certain."""

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
