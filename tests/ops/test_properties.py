"""Properties that hold for all actions and transitions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import enumerate_weights, random_transitions, with_gradients
from stacks import BACKENDS, FAST, HARD_STACKS, STACKS, Nondeterministic, Superposition, assert_close, operator, seeded


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stack", [*STACKS, *HARD_STACKS])
def test_rows_are_distributions(stack, backend):
    T = 7 if backend == "reference" else 20
    weights = operator(stack, backend)(*stack.inputs(3, T)).flatten(2)
    assert (weights >= 0).all()
    if isinstance(stack, Superposition):
        assert (weights.sum(2) <= 1 + 1e-12).all()
        assert (weights.sum(2) < 1 - 1e-6).all()  # the rest is the weight of the empty stack
    else:
        assert_close([weights.sum(2)], [torch.ones(3, T)], 1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stack", [*STACKS, *HARD_STACKS])
def test_causality(stack, backend):
    T, t = 9, 4
    first, other = stack.inputs(2, T), stack.inputs(2, T, seed=1)
    changed = [torch.cat([a[:, :t], b[:, t:]], 1) for a, b in zip(first, other, strict=True)]
    run = operator(stack, backend)
    weights, leaves = run(*first), [x.requires_grad_() for x in changed]
    again = run(*leaves)
    bottom = 0 if isinstance(stack, Superposition) else 1
    assert_close([again[:, :t]], [weights[:, :t]], 1e-13)
    assert (weights[:, t:] - again[:, t:]).abs().max() > 0.01
    assert_close([run(*(x[:, :t] for x in first))], [weights[:, :t, : t + bottom]], 1e-13)
    for step in range(T):
        assert not weights[:, step, step + 1 + bottom :].any()
    upstream = torch.randn(again[:, :t].shape, generator=seeded(), dtype=torch.float64)
    for gradient in torch.autograd.grad(again[:, :t], leaves, upstream):
        assert gradient[:, : t - 1].any()
        assert not gradient[:, t:].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stack", [*STACKS, *HARD_STACKS])
def test_sequences_of_a_batch_are_independent(stack, backend):
    inputs = stack.inputs(3, 6 if backend == "reference" else 20)
    together = with_gradients(operator(stack, backend), inputs)
    upstream = torch.randn(together[0].shape, generator=seeded(1), dtype=torch.float64)
    for b in range(3):
        alone = with_gradients(operator(stack, backend), [x[b : b + 1] for x in inputs], upstream[b : b + 1])
        expected = [x[b : b + 1] for x in together]
        if backend == "cpp":
            assert all(torch.equal(x, y) for x, y in zip(alone, expected, strict=True))
        assert_close(alone, expected, 1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stack", [s for s in (*STACKS, *HARD_STACKS) if isinstance(s, Nondeterministic)])
def test_gradients_of_a_step_add_up_to_zero(stack, backend):
    """A constant added to all log weights of a step changes nothing, and a pop in the first step ends the run."""
    _, *gradients = with_gradients(operator(stack, backend), stack.inputs(2, 8 if backend == "reference" else 20))
    size = max(x.abs().max() for x in gradients)
    assert size > 1e-4
    assert (sum(x.flatten(2).sum(2) for x in gradients) / size).abs().max() < 1e-9
    assert not gradients[2][:, 0].any()
    assert gradients[2][:, 1:].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_superposition_is_an_automaton_whose_bottom_stays(backend):
    """One state; symbol 0 is the bottom, which a pop leaves in place, and symbol 1 is that of all other elements."""
    T = 12

    def as_automaton(actions):
        push, noop, pop = actions.log().unbind(-1)
        never = torch.full_like(push, -torch.inf)
        log_push = torch.stack([never, push, never, push], -1)
        log_replace = torch.stack([torch.logaddexp(noop, pop), never, never, noop], -1)
        log_pop = torch.stack([never, pop], -1)
        shape = (-1, T, 1, 2, 1, 2)
        weights = operator(Nondeterministic(1, 2), backend)(
            log_push.reshape(shape), log_replace.reshape(shape), log_pop.reshape(shape[:-1])
        )
        return weights[:, :, 1:, 0, 1]

    actions = Superposition().inputs(2, T)
    superposition = operator(Superposition(), backend)
    # The two agree only for actions that sum to 1, so gradients are compared with respect to logits.
    logits = [actions[0].log()]
    found = with_gradients(lambda x: as_automaton(x.softmax(-1)), logits)
    assert_close(found, with_gradients(lambda x: superposition(x.softmax(-1)), logits), 1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stack", STACKS)
def test_a_reading_depends_on_what_was_pushed_long_before(stack, backend):
    """Push, push, ..., pop, pop: the last reading consists mostly of the first value."""
    T = 9
    inputs = stack.inputs(1, T)
    for t in range(T):
        favoured = 0 if t < T // 2 + 1 else 2
        if isinstance(stack, Superposition):
            inputs[0][:, t] = torch.tensor([0.05, 0.05, 0.05]).index_fill(0, torch.tensor(favoured), 0.9)
        else:
            inputs[favoured][:, t] += 5.0
    values = torch.randn(1, T, 4, generator=seeded(), dtype=torch.float64)
    weights = operator(stack, backend)(*inputs)
    if isinstance(stack, Nondeterministic):
        weights = weights.sum((3, 4))[:, :, 1:]  # without the bottom
    assert weights[0, -1].argmax() == 0
    other = values.index_fill(1, torch.tensor(0), 7.0)
    difference = weights @ other - weights @ values
    assert_close([difference[0, -1]], [weights[0, -1, 0] * (7.0 - values[0, 0])], 1e-12)
    assert difference[0, -1].abs().max() > 0.5


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    T=st.integers(0, 4),
    Q=st.integers(1, 2),
    S=st.integers(1, 2),
    scale=st.sampled_from([0.0, 1.0, 40.0, 400.0, 1e4]),
    forbidden=st.floats(0, 1),
    tied=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_any_small_automaton(T, Q, S, scale, forbidden, tied, seed):
    inputs = random_transitions(2, T, Q, S, scale, forbidden, seeded(seed), tied=tied)
    expected = with_gradients(enumerate_weights, inputs)
    for backend in FAST:
        assert_close(with_gradients(operator(Nondeterministic(Q, S), backend), inputs), expected, 1e-9, floor=1e-3)
