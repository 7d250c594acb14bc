"""The check of the Triton backend at its first use, with stand-ins for its kernels: one warning, then `torch`."""

import sys
import types
import warnings

import pytest
import torch
from stacks import Nondeterministic, Superposition
from torch._subclasses.fake_tensor import FakeTensorMode

import stackattn
from stackattn.ops import triton_backend
from stackattn.ops.pytorch import operators, window
from stackattn.ops.triton_backend import availability

STACK = Nondeterministic(2, 2)
SIZES = "Q = 2 and S = 2"
# operator, inputs, the description in the warning, and the functions of the forward and backward pass
OPERATORS = {
    "superposition": (
        stackattn.superposition_weights,
        Superposition().inputs(2, 6),
        "Q = 1 and S = 1 on cpu",
        (operators.superposition, operators.superposition_backward),
    ),
    "nondeterministic": (
        stackattn.nondeterministic_weights,
        STACK.inputs(2, 6),
        f"{SIZES} on cpu",
        (operators.nondeterministic, operators.nondeterministic_backward),
    ),
    "window": (
        lambda *inputs, **options: stackattn.nondeterministic_weights(*inputs, window=3, **options),
        STACK.inputs(2, 6),
        f"{SIZES} with a window on cpu",
        (window.forward, window.backward),
    ),
}


@pytest.fixture
def use(monkeypatch):
    """A function that replaces the Triton kernels by the `torch` backend, optionally with one function changed."""

    def install(replaced=None, by=None):
        for plain in (operators, window):
            name = plain.__name__.rpartition(".")[2]
            module = types.ModuleType(name)
            vars(module).update({key: by if by and x is replaced else x for key, x in vars(plain).items()})
            monkeypatch.setitem(sys.modules, f"{triton_backend.__name__}.{name}", module)
            monkeypatch.setattr(triton_backend, name, module, raising=False)

    monkeypatch.setattr(availability, "require", lambda device: None)
    availability._agrees.cache_clear()
    yield install
    availability._agrees.cache_clear()


def raises(error):
    def call(*_, **__):
        raise error

    return call


def changed(function, factor):
    """The function, with its first result or last gradient multiplied by a factor."""

    def call(*args, **options):
        results = function(*args, **options)
        if isinstance(results, torch.Tensor):
            return factor * results
        at = len(results) - 1 if function.__name__.endswith("backward") else 0
        return *results[:at], factor * results[at], *results[at + 1 :]

    return call


FAULTS = {
    "mismatch": (lambda function: changed(function, 1 + 1e-6), "a tiny problem has a relative error of 1.0e-06"),
    "nan": (lambda function: changed(function, torch.nan), "a tiny problem has a relative error of nan"),
    "compile error": (
        lambda _: raises(SystemError("ptxas exited with code 255\nand a long listing")),
        "SystemError: ptxas exited with code 255. Please",
    ),
    "launch error": (
        lambda _: raises(RuntimeError("Triton Error [CUDA]: out of resources")),
        "RuntimeError: Triton Error [CUDA]: out of resources. Please",
    ),
}


def results(operator, inputs, backend):
    inputs = [x.clone().requires_grad_() for x in inputs]
    weights = operator(*inputs, backend=backend)
    return [weights.detach(), *torch.autograd.grad(weights.square().sum(), inputs)]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", [0, 1], ids=["forward", "backward"])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_kernel_that_fails_gives_one_warning_and_the_results_of_torch(use, name, at, fault):
    operator, inputs, called, functions = OPERATORS[name]
    fault, reason = FAULTS[fault]
    use(functions[at], fault(functions[at]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [results(operator, inputs, "triton") for _ in range(3)]
    assert [x.category for x in caught] == [RuntimeWarning]
    assert caught[0].filename == __file__
    assert f"uses its `torch` backend instead of 'triton' for {called}: {reason}" in str(caught[0].message)
    expected = results(operator, inputs, "torch")
    assert all(torch.equal(x, y) for tensors in found for x, y in zip(tensors, expected, strict=True))


@pytest.mark.parametrize("name", OPERATORS)
def test_kernels_that_agree_are_used_without_a_warning(use, name):
    operator, inputs, _, (forward, _) = OPERATORS[name]
    calls = []
    use(forward, lambda *args, **options: calls.append(args) or forward(*args, **options))
    results(operator, inputs, "triton")  # a warning would fail the test
    assert len(calls) == 2  # one by the check and one by the caller


def with_a_default_device(function, x):
    with torch.device("meta"):
        function(x)


def traced(function, x):
    with FakeTensorMode() as mode:
        function(mode.from_tensor(x))


@pytest.mark.parametrize(
    "call", [with_a_default_device, traced, lambda function, x: torch.func.vmap(function)(x[None])]
)
def test_the_first_use_may_be_in_any_context(use, call):
    """In these contexts, comparing numbers would fail."""
    use()
    call(lambda x: stackattn.superposition_weights(x, backend="triton"), torch.rand(2, 6, 3).softmax(-1))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("__version__ = '3.6.1'", "expected Triton 3.7 or newer, found 3.6.1. Each version of PyTorch needs its own"),
        ("raise OSError('no libcuda')", "Triton cannot be imported (OSError: no libcuda). Reinstall PyTorch"),
        ("__version__ = '3.10.0+git1'", "available"),
    ],
)
def test_the_installed_version(monkeypatch, tmp_path, content, expected):
    (tmp_path / "triton.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    availability.status.cache_clear()
    try:
        assert availability.status().startswith(expected)
    finally:
        availability.status.cache_clear()
        sys.modules.pop("triton", None)
