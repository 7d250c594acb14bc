"""Each of the six architectures learns a small language in at most 400 steps: marked reversal, w # reversed(w).

The tokens after the mark # are determined by w. The lengths of w, from 1 to 4, and its letters are uniform, so the
lowest possible cross-entropy is (ln 4 + mean length * ln 2) / mean number of predictions = 0.446 nats per prediction. A
model that knows lengths and frequencies but not the order also needs ln 2 nats for each letter after the mark.
"""

from itertools import product
from math import log

import pytest
import torch
from torch.nn.functional import cross_entropy

from stackattn.models import LSTMLM, LSTMConfig, TransformerLM, TransformerLMConfig

MARK, EOS, BOS = 2, 3, 3  # EOS is an output and BOS an input: one id for both, as in the paper's models
PAD = -100
WORDS = [list(word) for n in range(1, 5) for word in product((0, 1), repeat=n) for _ in range(2 ** (4 - n))]
TEXTS = [[*word, MARK, *reversed(word)] for word in WORDS]
BEST = (log(4) + 2.5 * log(2)) / (2 * 2.5 + 2)
BOUND = BEST + 0.1

SIZES = {"input_size": 4, "output_size": 4}
MODELS = {
    "LSTM": lambda: LSTMLM(LSTMConfig(**SIZES, hidden_size=40)),
    "LSTM+Sup": lambda: LSTMLM(LSTMConfig(**SIZES, hidden_size=20, stack="superposition-4")),
    "LSTM+Nd": lambda: LSTMLM(
        LSTMConfig(**SIZES, hidden_size=20, stack="nondeterministic-2-2-3", stack_init="uniform")
    ),
    "Tf": lambda: transformer("3"),
    "Tf+Sup": lambda: transformer("1.superposition-16.1"),
    "Tf+Nd": lambda: transformer("1.nondeterministic-2-3-5.1"),
}


def transformer(layers):
    return TransformerLM(TransformerLMConfig(**SIZES, layers=layers, d_model=24, heads=4, hidden_size=48, dropout=0.0))


def batch():
    """Return inputs, targets and lengths of all texts; each length occurs equally often."""
    T = max(map(len, TEXTS)) + 1
    inputs, targets = torch.full((len(TEXTS), T), 10**6), torch.full((len(TEXTS), T), PAD)
    for b, text in enumerate(TEXTS):
        inputs[b, : len(text) + 1] = torch.tensor([BOS, *text])
        targets[b, : len(text) + 1] = torch.tensor([*text, EOS])
    return inputs, targets, (targets != PAD).sum(1)


def test_the_best_cross_entropy_is_the_entropy_of_the_texts():
    lengths = torch.tensor([len(word) for word in WORDS])
    assert [(lengths == n).sum() for n in range(1, 5)] == [16] * 4
    predictions = sum(len(text) + 1 for text in TEXTS)
    entropy = sum(log(4) + len(word) * log(2) for word in WORDS)
    assert entropy / predictions == pytest.approx(BEST)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_learns(name):
    torch.manual_seed(0)
    model = MODELS[name]()
    inputs, targets, lengths = batch()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(400):
        loss = cross_entropy(model(inputs, lengths).flatten(0, 1), targets.flatten(), ignore_index=PAD)
        losses.append(loss.item())
        if losses[-1] < BOUND:
            break
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    assert losses[0] > 1.0
    assert losses[-1] < BOUND, f"{losses[-1]:.3f} after {len(losses)} steps; expected less than {BOUND:.3f}"
