"""More steps than memory allows: an error that names the argument and the bytes, and unchanged states."""

import re

import pytest
import torch

import stackattn
from stackattn.nn import StackSpec, parse_layers
from stackattn.ops.dispatch import kernel
from stackattn.ops.memory import names_argument

STEPS = 10**12
BACKENDS = ["torch", pytest.param("cpp", marks=pytest.mark.skipif(kernel is None, reason="needs the kernel"))]
MESSAGE = (
    rf": expected sequences that fit into memory, got B = 1 and T = {STEPS}, for which (more than )?\d+ bytes could "
    "not be allocated; use shorter or fewer sequences$"
)


def zeros(*shape):
    """A tensor that uses the memory of one number."""
    return torch.zeros(()).expand(1, *shape)


def transitions(T):
    return zeros(T, 1, 2, 1, 2), zeros(T, 1, 2, 1, 2), zeros(T, 1, 2, 1)


CALLS = {
    "weights": ("log_push", lambda T, b: stackattn.nondeterministic_weights(*transitions(T), backend=b)),
    "windowed weights": (
        "log_push",
        lambda T, b: stackattn.nondeterministic_weights(*transitions(T), window=8, backend=b),
    ),
    "readings": (
        "log_push",
        lambda T, b: stackattn.nondeterministic_readings(*transitions(T), zeros(T + 1, 5), backend=b),
    ),
    "windowed readings": (
        "log_push",
        lambda T, b: stackattn.nondeterministic_readings(*transitions(T), zeros(T + 1, 5), window=8, backend=b),
    ),
    "superposition weights": ("actions", lambda T, b: stackattn.superposition_weights(zeros(T, 3), backend=b)),
    "weights to a depth": ("actions", lambda T, b: stackattn.superposition_weights(zeros(T, 3), depth=4, backend=b)),
    "superposition readings": (
        "actions",
        lambda T, b: stackattn.superposition_readings(zeros(T, 3), zeros(T, 5), backend=b),
    ),
    "readings to a depth": (
        "actions",
        lambda T, b: stackattn.superposition_readings(actions=zeros(T, 3), values=zeros(T, 5), depth=4, backend=b),
    ),
}
STATES = {
    "superposition": (
        "actions",
        lambda b: stackattn.SuperpositionState.empty(1, backend=b),
        lambda state, T: state.extend(zeros(T, 3)),
    ),
    "nondeterministic": (
        "log_push",
        lambda b: stackattn.NondeterministicState.empty(1, 1, 2, backend=b),
        lambda state, T: state.extend(*transitions(T)),
    ),
    "depth": (
        "actions",
        lambda b: stackattn.SuperpositionReadingState.empty(1, 5, depth=4, backend=b),
        lambda state, T: state.extend(zeros(T, 3), zeros(T, 5)),
    ),
    "window": (
        "log_push",
        lambda b: stackattn.NondeterministicReadingState.empty(torch.zeros(1, 5), 1, 2, window=4, backend=b),
        lambda state, T: state.extend(*transitions(T), zeros(T, 5)),
    ),
    "stratified": (
        "push",
        lambda b: stackattn.StratifiedState.empty(1),
        lambda state, T: state.extend(zeros(T), zeros(T)),
    ),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CALLS)
def test_operators_name_the_argument_and_the_bytes(name, backend):
    argument, call = CALLS[name]
    with pytest.raises(MemoryError, match="^" + argument + MESSAGE):
        call(STEPS, backend)


@pytest.mark.parametrize("call", [stackattn.stratified_weights, stackattn.stratified_readings, stackattn.best_runs])
def test_operators_without_a_kernel(call):
    stratified = (zeros(STEPS), zeros(STEPS), zeros(STEPS, 2))[: 2 if call is stackattn.stratified_weights else 3]
    argument, inputs = ("log_push", transitions(STEPS)) if call is stackattn.best_runs else ("push", stratified)
    with pytest.raises(MemoryError, match="^" + argument + MESSAGE):
        call(*inputs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", STATES)
def test_a_state_names_the_argument_and_does_not_change(name, backend):
    argument, empty, extend = STATES[name]
    _, state = extend(empty(backend), 3)
    expected, _ = extend(state, 2)
    with pytest.raises(MemoryError, match="^" + argument + MESSAGE):
        extend(state, STEPS)
    assert state.length == 3
    assert torch.equal(extend(state, 2)[0], expected)


@pytest.mark.parametrize("notation", ["superposition-4d2", "stratified-4", "nondeterministic-1-2-5w8"])
def test_a_layer_names_its_input(notation):
    (spec,) = parse_layers(notation)
    assert isinstance(spec, StackSpec)
    layer = spec.build(3)
    x, state = zeros(STEPS, 3), layer.initial_state(1)
    for call in (lambda: layer(x), lambda: layer(x=x), lambda: layer.actions(x), lambda: layer.extend(x, state)):
        with pytest.raises(MemoryError, match="^x" + MESSAGE):
            call()


def test_the_argument_of_the_outer_function_is_named():
    @names_argument("inner")
    def allocate(inner):
        raise MemoryError("cannot allocate 12 bytes")

    @names_argument("outer", 1)
    def call(_, outer):
        allocate(outer[:, :3])

    with pytest.raises(MemoryError, match=r"^outer: .* got B = 2 and T = 7, for which 12 bytes could not be"):
        call(None, torch.zeros(2, 7))


def test_errors_of_gpus_keep_their_type_and_other_errors_do_not_change():
    @names_argument("x")
    def fail(x, error):
        raise error

    inner = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 4 GiB.")
    with pytest.raises(torch.OutOfMemoryError, match=r"^x: .* got B = 2 and T = 7, for which 20.00 GiB could not be"):
        fail(torch.zeros(2, 7), inner)
    for error in (RuntimeError("Tried to find 3 bytes"), RuntimeError("stack overflow"), ValueError("x")):
        with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"):
            fail(torch.zeros(2, 7), error)
