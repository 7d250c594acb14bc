"""Compiled models give the same outputs and gradients as uncompiled ones."""

import warnings

import pytest
import torch
from subjects import MODELS, Subject, lm, lstm, make
from torch.nn.functional import cross_entropy

from stackattn.models import LSTMLM

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    with warnings.catch_warnings():  # the compiler's imports and fallbacks emit unrelated warnings
        warnings.simplefilter("ignore")
        yield


def forward_and_gradients(call, subject, x, lengths):
    arguments = (x, lengths) if subject.source is None else (subject.source[0], x, subject.source[1], lengths)
    logits = call(*arguments)
    real = torch.arange(x.shape[1]) < lengths[:, None] if lengths is not None else torch.ones_like(x, dtype=torch.bool)
    loss = cross_entropy(logits[real], (x % 3)[real])
    return logits[real], torch.autograd.grad(loss, list(subject.module.parameters()))


def compare(subject, backend, *runs):
    """Compare a forward pass and gradients with and without compilation; transformers compile without graph breaks."""
    fullgraph = not isinstance(subject.module, LSTMLM)
    compiled = torch.compile(subject.module, backend=backend, fullgraph=fullgraph)
    for T, lengths in runs:
        x = subject.inputs(3, T)
        expected = forward_and_gradients(subject.module, subject, x, lengths)
        found = forward_and_gradients(compiled, subject, x, lengths)
        for one, other in zip((found[0], *found[1]), (expected[0], *expected[1]), strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("Tf, tied", "Seq2Seq")])
def test_traced(name):
    """Test everything except code generation, which takes the longest."""
    compare(make(name).with_source(3), "aot_eager", (4, torch.tensor([4, 3, 1])))


@pytest.mark.full
@pytest.mark.parametrize(
    "build", [lambda: lm("nondeterministic-1-2-2"), lambda: lstm("superposition-2")], ids=["Tf+Nd", "LSTM+Sup"]
)
def test_compiled(build):
    torch.manual_seed(0)
    compare(Subject(build().double().eval(), False), "inductor", (3, None))


def test_several_lengths():
    compare(make("Tf+Nd"), "aot_eager", (4, None), (5, None), (7, None))
