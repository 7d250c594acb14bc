"""torch.compile on every model: the same numbers and gradients."""

import warnings

import pytest
import torch
from subjects import MODELS, make
from torch.nn.functional import cross_entropy

pytestmark = pytest.mark.slow
TRANSFORMERS = [name for name in MODELS if not name.startswith("LSTM")]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    with warnings.catch_warnings():  # what the compiler's own imports and fallbacks say is not about us
        warnings.simplefilter("ignore")
        yield


def forward_and_gradients(call, subject, x, lengths):
    arguments = (x, lengths) if subject.source is None else (subject.source[0], x, subject.source[1], lengths)
    logits = call(*arguments)
    real = torch.arange(x.shape[1]) < lengths[:, None] if lengths is not None else torch.ones_like(x, dtype=torch.bool)
    loss = cross_entropy(logits[real], (x % 3)[real])
    return logits[real], torch.autograd.grad(loss, list(subject.module.parameters()))


@pytest.mark.parametrize("name", MODELS)
def test_compiled(name):
    """Transformers without a break in the graph; two lengths, so that one shape is not all that works."""
    subject = make(name).rows(3)
    compiled = torch.compile(subject.module, fullgraph=name in TRANSFORMERS)
    for T, lengths in ((5, None), (5, torch.tensor([5, 3, 1])), (6, None)):
        x = subject.inputs(3, T)
        expected = forward_and_gradients(subject.module, subject, x, lengths)
        found = forward_and_gradients(compiled, subject, x, lengths)
        torch.testing.assert_close(found[0], expected[0], atol=1e-9, rtol=1e-7)
        for one, other in zip(found[1], expected[1], strict=True):
            torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-7)
