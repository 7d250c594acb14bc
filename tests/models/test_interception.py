"""Hooks and autocast work with the fused operators of a training step as with ordinary ones."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy

from stackattn.models import build_model
from stackattn.paper.models import paper_config

MODELS = ["Tf", "Tf+Sup", "Tf+Nd", "LSTM+Sup", "LSTM+Nd"]


@pytest.fixture(params=MODELS)
def step(request):
    """A function that returns the loss and the gradients of a float32 training step, with dropout in transformers."""
    torch.manual_seed(0)
    config = paper_config("dyck", request.param)
    model = build_model(config).train()
    text = torch.randint(config.output_size, (2, 8))

    def run():
        torch.manual_seed(1)  # for dropout
        loss = cross_entropy(model(text).flatten(0, 1).float(), text.flatten())
        return loss, torch.autograd.grad(loss, list(model.parameters()))

    run.model = model
    return run


def assert_equal(found, expected):
    assert torch.equal(found[0], expected[0])
    assert all(torch.equal(a, b) for a, b in zip(found[1], expected[1], strict=True))


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # tokens have no gradient
def test_module_hooks(step):
    expected, seen = step(), set()
    modules = {name: module for name, module in step.model.named_modules() if not isinstance(module, nn.ModuleList)}
    for name, module in modules.items():
        module.register_forward_hook(lambda *_, name=name: seen.add(("forward", name)) and None)
        module.register_full_backward_hook(lambda *_, name=name: seen.add(("backward", name)) and None)
    assert_equal(step(), expected)
    # The stack of an LSTM is part of its loop over time and is not called as a module.
    called = [name for name in modules if not name.startswith("stack")]
    assert seen == {(kind, name) for kind in ("forward", "backward") for name in called}


def test_hooks_on_saved_tensors(step):
    """Each saved tensor is copied and read back, as in activation offloading."""
    expected, packed = step(), []
    with saved_tensors_hooks(lambda x: packed.append(x.shape) or x.clone(), lambda x: x.clone()):
        found = step()
    assert packed
    assert_equal(found, expected)


def test_autocast(step):
    expected, gradients = step()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, rounded = step()
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0)
    assert all(x.dtype == torch.float32 and x.isfinite().all() for x in rounded)
    assert any(not torch.equal(a, b) for a, b in zip(rounded, gradients, strict=True))
