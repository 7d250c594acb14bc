"""Invalid arguments: the message names the argument and says what was expected and what was found."""

import re

import pytest
import torch
from stacks import BACKENDS, FAST, STACKS, Nondeterministic, Superposition

from stackattn import (
    NondeterministicReadingState,
    NondeterministicState,
    SuperpositionState,
    nondeterministic_weights,
    superposition_readings,
    superposition_weights,
)

B, T, Q, S = 2, 4, 2, 3
PUSH, POP = torch.zeros(B, T, Q, S, Q, S), torch.zeros(B, T, Q, S, Q)
ACTIONS = torch.full((B, T, 3), 1 / 3)
ONES = torch.ones(B, dtype=torch.int64)
NESTED = torch.nested.nested_tensor([torch.zeros(T), torch.zeros(1)], layout=torch.jagged)


def nondeterministic(push=PUSH, replace=PUSH, pop=POP, lengths=None, backend="auto"):
    return lambda: nondeterministic_weights(push, replace, pop, lengths, backend=backend)


def superposition(actions=ACTIONS, lengths=None, backend="auto"):
    return lambda: superposition_weights(actions, lengths, backend=backend)


def state(push=PUSH, replace=PUSH, pop=POP, lengths=None, batch_size=B, sizes=(Q, S)):
    return lambda: NondeterministicState.empty(batch_size, *sizes).extend(push, replace, pop, lengths)


def superposition_state(actions=ACTIONS, lengths=None, batch_size=B):
    return lambda: SuperpositionState.empty(batch_size).extend(actions, lengths)


def windowed_state(window):
    return lambda: NondeterministicReadingState.empty(torch.zeros(B, 1), Q, S, window=window)


def reorder(index):
    return lambda: SuperpositionState.empty(2).reorder(index)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (superposition([[0.5, 0.5, 0]]), TypeError, ["actions", "tensor", "list"]),
        (superposition(ACTIONS.long()), TypeError, ["actions", "float32", "torch.int64"]),
        (superposition(ACTIONS.to(torch.complex64)), TypeError, ["actions", "float32", "torch.complex64"]),
        (superposition(ACTIONS.to_sparse()), TypeError, ["actions", "dense", "torch.sparse_coo"]),
        (superposition(ACTIONS.to_mkldnn()), TypeError, ["actions", "dense", "torch._mkldnn"]),
        (superposition(ACTIONS, ONES.to_sparse()), TypeError, ["lengths", "dense", "torch.sparse_coo"]),
        (nondeterministic(replace=NESTED), TypeError, ["log_replace", "dense", "nested"]),
        (lambda: nondeterministic_weights(PUSH, PUSH, POP, window=2**31), ValueError, ["window", "2147483647", "None"]),
        (lambda: superposition_readings(ACTIONS, ACTIONS, depth=2**70), ValueError, ["depth", "2147483647", "None"]),
        (windowed_state(2**63), ValueError, ["window", "2147483647"]),
        (superposition(ACTIONS[0]), ValueError, ["actions", "(B, T, 3)", "(4, 3)"]),
        (superposition(ACTIONS[..., :2]), ValueError, ["actions", "(B, T, 3)", "(2, 4, 2)"]),
        (nondeterministic(push=None), TypeError, ["log_push", "tensor", "NoneType"]),
        (nondeterministic(push=PUSH.int()), TypeError, ["log_push", "float32", "torch.int32"]),
        (nondeterministic(replace=PUSH.bool()), TypeError, ["log_replace", "float32", "torch.bool"]),
        (nondeterministic(pop=POP.long()), TypeError, ["log_pop", "float32", "torch.int64"]),
        (nondeterministic(replace=PUSH.double()), TypeError, ["log_replace", "torch.float32", "torch.float64"]),
        (nondeterministic(pop=POP.half()), TypeError, ["log_pop", "torch.float32", "torch.float16"]),
        (nondeterministic(push=PUSH[0]), ValueError, ["log_push", "(B, T, Q, S, Q, S)", "(4, 2, 3, 2, 3)"]),
        (nondeterministic(push=PUSH[..., :2]), ValueError, ["log_push", "(B, T, Q, S, Q, S)", "(2, 4, 2, 3, 2, 2)"]),
        (nondeterministic(push=PUSH[:, :, :0, :, :0]), ValueError, ["log_push", "at least one", "(2, 4, 0, 3, 0, 3)"]),
        (nondeterministic(replace=PUSH[:, :3]), ValueError, ["log_replace", "(2, 4, 2, 3, 2, 3)", "(2, 3, "]),
        (nondeterministic(replace=PUSH[:1]), ValueError, ["log_replace", "(2, 4, 2, 3, 2, 3)", "(1, 4, "]),
        (nondeterministic(replace=POP), ValueError, ["log_replace", "(2, 4, 2, 3, 2, 3)", "(2, 4, 2, 3, 2)"]),
        (nondeterministic(pop=PUSH), ValueError, ["log_pop", "(2, 4, 2, 3, 2)", "(2, 4, 2, 3, 2, 3)"]),
        (nondeterministic(pop=POP[..., :1]), ValueError, ["log_pop", "(2, 4, 2, 3, 2)", "(2, 4, 2, 3, 1)"]),
        (nondeterministic(replace=PUSH.to("meta")), ValueError, ["log_replace", "cpu", "meta"]),
        (nondeterministic(pop=POP.to("meta")), ValueError, ["log_pop", "cpu", "meta"]),
        (nondeterministic(backend="cuda"), ValueError, ["backend", "'torch'", "'cuda'"]),
        (superposition(ACTIONS.to("meta"), backend="cpp"), ValueError, ["cpp", "CPU", "meta"]),
        (state(batch_size=3), ValueError, ["log_push", "batch size 3", "2"]),
        (state(sizes=(3, 2)), ValueError, ["log_push", "Q = 3 and S = 2", "Q = 2 and S = 3"]),
        (state(pop=PUSH), ValueError, ["log_pop", "(2, 4, 2, 3, 2)"]),
        (state(sizes=(0, 2)), ValueError, ["num_states", "positive", "0"]),
        (state(sizes=(2, 1.5)), ValueError, ["num_symbols", "positive", "1.5"]),
        (state(batch_size=-1), ValueError, ["batch_size", "-1"]),
        (state(PUSH.to("meta"), PUSH.to("meta"), POP.to("meta")), ValueError, ["log_push", "cpu", "meta"]),
        (superposition_state(batch_size=5), ValueError, ["actions", "batch size 5", "2"]),
        (superposition_state(ACTIONS[..., :2]), ValueError, ["actions", "(B, T, 3)", "(2, 4, 2)"]),
        (lambda: SuperpositionState.empty(2, backend="reference"), ValueError, ["backend", "'torch'", "'reference'"]),
        (reorder(torch.tensor([0.0])), TypeError, ["index", "integers"]),
        (reorder(torch.tensor([0j])), TypeError, ["index", "integers", "complex64"]),
        (reorder(torch.tensor(0)), ValueError, ["index", "shape (N,)", "shape ()"]),
        (reorder([0]), TypeError, ["index", "tensor", "list"]),
        (reorder(torch.tensor([0, 2])), ValueError, ["index", "0 to 1", "2"]),
        (reorder(torch.tensor([-1])), ValueError, ["index", "0 to 1", "-1"]),
        (reorder(torch.tensor([1]).to("meta")), ValueError, ["index", "cpu", "meta"]),
    ],
)  # fmt: skip
def test_bad_argument(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert re.search(rf"(?<!\w){re.escape(word)}", str(caught.value)), f"{word!r} is not in {str(caught.value)!r}"


@pytest.mark.parametrize("call", [nondeterministic, superposition, state, superposition_state])
@pytest.mark.parametrize(
    ("lengths", "error", "words"),
    [
        ([4, 4], TypeError, ["lengths", "(2,)", "list"]),
        (torch.tensor([4.0, 4.0]), TypeError, ["lengths", "integer", "float32"]),
        (torch.tensor([True, True]), TypeError, ["lengths", "integer", "bool"]),
        (torch.tensor([4]), ValueError, ["lengths", "(2,)", "(1,)"]),
        (torch.tensor(4), ValueError, ["lengths", "(2,)", "()"]),
        (torch.tensor([4, 4]).to("meta"), ValueError, ["lengths", "cpu", "meta"]),
        (torch.tensor([4, 5]), ValueError, ["lengths", "0 to T = 4", "5 for sequence 1"]),
        (torch.tensor([-1, 5]), ValueError, ["lengths", "0 to T = 4", "-1 for sequence 0"]),
    ],
)
def test_bad_lengths(call, lengths, error, words):
    with pytest.raises(error) as caught:
        call(lengths=lengths)()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def by_operator(stack, backend, inputs, lengths=None):
    return stack.operator(*inputs, lengths, backend=backend)


def by_state(stack, backend, inputs, lengths=None):
    return stack.state(len(inputs[0]), backend).extend(*inputs, lengths)[0]


WAYS = [(by_operator, backend) for backend in BACKENDS] + [(by_state, backend) for backend in FAST]


@pytest.mark.parametrize(("way", "backend"), WAYS)
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_bad_numbers(stack, number, way, backend):
    """nan and inf at steps within the lengths are reported for every argument."""
    lengths = torch.tensor([5, 3, 0])
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for n, name in enumerate(stack.names):
            inputs = stack.inputs(3, 5, dtype=dtype)
            inputs[n].flatten(2)[1, 2, -1] = number
            if number == -torch.inf and isinstance(stack, Nondeterministic):
                assert way(stack, backend, inputs, lengths).isfinite().all()  # forbids a transition, which is valid
                continue
            expected = "finite numbers" + (" or -inf" if isinstance(stack, Nondeterministic) else "")
            with pytest.raises(ValueError, match=rf"{name}: expected {expected}, got .* in sequence 1 at step 2"):
                way(stack, backend, inputs, lengths)


@pytest.mark.parametrize("stack", STACKS)
def test_the_same_message_everywhere(stack):
    """Of several invalid numbers, every backend and state reports the same one."""
    inputs = stack.inputs(3, 6)
    for x in inputs:
        x[2, 4:] = torch.nan
    messages = set()
    for way, backend in WAYS:
        with pytest.raises(ValueError, match="nan") as caught:
            way(stack, backend, inputs)
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_meta_tensors_have_shapes_only():
    """The fake implementations, which torch.compile uses, do not read values."""
    lengths = torch.tensor([1, 2], device="meta")
    assert Superposition().operator(ACTIONS.to("meta"), lengths).shape == (B, T, T)
    inputs = (x.to("meta") for x in (PUSH, PUSH, POP))
    assert Nondeterministic(Q, S).operator(*inputs, lengths).shape == (B, T, T + 1, Q, S)
