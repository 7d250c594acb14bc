"""The check of the Triton backend at its first use, with stand-ins for its kernels: one warning, then `torch`."""

import sys
import types
import warnings

import pytest
import torch

from stackattn import superposition_weights
from stackattn.ops import triton_backend
from stackattn.ops.pytorch import operators as plain
from stackattn.ops.triton_backend import availability

FUNCTIONS = ("nondeterministic", "nondeterministic_backward", "superposition", "superposition_backward")


def broken(*_):
    raise SystemError("ptxas exited with code 255\nand a long listing")


def slightly_wrong(*inputs):
    return plain.superposition(*inputs) + 1e-6


def wrong_gradient(*inputs):
    return plain.superposition_backward(*inputs) * 1.001


@pytest.fixture
def use(monkeypatch):
    """Installs the `torch` backend in place of the Triton kernels, with some functions replaced."""

    def install(**replaced):
        module = types.ModuleType("operators")
        for name in FUNCTIONS:
            setattr(module, name, replaced.get(name, getattr(plain, name)))
        monkeypatch.setitem(sys.modules, f"{triton_backend.__name__}.operators", module)
        monkeypatch.setattr(triton_backend, "operators", module, raising=False)

    monkeypatch.setattr(availability, "require", lambda device: None)
    availability._agrees.cache_clear()
    yield install
    availability._agrees.cache_clear()


@pytest.mark.parametrize(
    ("replaced", "reason"),
    [
        ({"nondeterministic": broken}, "SystemError: ptxas exited with code 255. Please"),
        ({"superposition_backward": broken}, "SystemError: ptxas exited with code 255. Please"),
        ({"superposition": slightly_wrong}, "a tiny problem has a relative error of "),
        ({"superposition_backward": wrong_gradient}, "a tiny problem has a relative error of 1.0e-03"),
    ],
)
def test_a_kernel_that_fails_gives_one_warning_and_the_results_of_torch(use, replaced, reason):
    use(**replaced)
    actions = torch.rand(2, 6, 3).softmax(-1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [superposition_weights(actions, backend="triton") for _ in range(3)]
    assert [x.category for x in caught] == [RuntimeWarning]
    assert caught[0].filename == __file__
    assert "uses its `torch` backend instead of 'triton' for 1 states and 1 symbols on cpu: " in str(caught[0].message)
    assert reason in str(caught[0].message)
    for weights in results:
        assert torch.equal(weights, superposition_weights(actions, backend="torch"))


def test_kernels_that_agree_are_used_without_a_warning(use):
    calls = []
    use(superposition=lambda *inputs: calls.append(inputs) or plain.superposition(*inputs))
    superposition_weights(torch.rand(2, 6, 3).softmax(-1), backend="triton")  # a warning would fail the test
    assert len(calls) == 2  # of the check and of the caller
