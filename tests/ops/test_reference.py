"""The paper's equations against enumeration, Python lists, recorded numbers and the log-space chart."""

from functools import partial
from pathlib import Path

import numpy as np
import oracles
import pytest
import torch

from stackattn.ops.reference import (
    nondeterministic_readings,
    nondeterministic_weights,
    superposition_readings,
    superposition_weights,
)

FIXTURES = Path(__file__).parent / "fixtures"
SHAPES = [
    (2, 0, 2, 2),
    (2, 1, 2, 3),
    (2, 2, 3, 1),
    (2, 3, 3, 3),
    (1, 4, 3, 2),
    (2, 5, 1, 1),
    (1, 5, 1, 3),
    (2, 5, 2, 2),
]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def random_actions(*shape, generator):
    return torch.randn(*shape, 3, generator=generator, dtype=torch.float64).softmax(-1)


def worst_error(results, expected, floor=0.0):
    return max(oracles.relative_error(a, b, floor) for a, b in zip(results, expected, strict=True))


@pytest.mark.parametrize("T", range(7))
@pytest.mark.parametrize("total", [1.0, 0.7])
def test_superposition_equals_enumeration(T, total):
    actions = total * random_actions(2, T, generator=seeded())
    expected = oracles.with_gradients(oracles.enumerate_superposition_weights, [actions])
    assert worst_error(oracles.with_gradients(superposition_weights, [actions]), expected) < 1e-14


def test_superposition_weights_give_the_readings():
    actions, values = random_actions(3, 12, generator=seeded()), torch.randn(3, 12, 4, dtype=torch.float64)
    expected = oracles.with_gradients(lambda a, v: superposition_weights(a) @ v, [actions, values])
    assert worst_error(oracles.with_gradients(superposition_readings, [actions, values]), expected) < 1e-13


@pytest.mark.parametrize("seed", range(5))
def test_superposition_of_hard_actions_equals_a_list(seed):
    choices = torch.randint(3, (40,), generator=seeded(seed))
    weights = superposition_weights(torch.nn.functional.one_hot(choices, 3)[None].double())
    assert torch.equal(weights, oracles.list_superposition_weights([("push", "noop", "pop")[a] for a in choices]))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("scale", "forbidden"), [(1, 0), (1, 0.4), (1, 0.8), (1000, 0.2)])
def test_nondeterministic_equals_enumeration(shape, scale, forbidden):
    inputs = oracles.random_transitions(*shape, scale, forbidden, seeded(), tied=scale > 1)
    expected = oracles.with_gradients(oracles.enumerate_weights, inputs)
    assert worst_error(oracles.with_gradients(nondeterministic_weights, inputs), expected, floor=1e-3) < 1e-11


@pytest.mark.parametrize(
    ("T", "Q", "S", "scale", "forbidden"), [(20, 2, 5, 1, 0.2), (20, 3, 3, 1000, 0.3), (21, 5, 4, 3, 0)]
)
def test_nondeterministic_equals_the_log_space_chart(T, Q, S, scale, forbidden):
    inputs = oracles.random_transitions(1, T, Q, S, scale, forbidden, seeded(), tied=scale > 100)
    expected = oracles.with_gradients(oracles.log_space_weights, inputs)
    assert worst_error(oracles.with_gradients(nondeterministic_weights, inputs), expected) < 1e-10


@pytest.mark.slow
def test_nondeterministic_equals_the_log_space_chart_at_40_steps():
    inputs = oracles.random_transitions(2, 40, 3, 3, 1, 0.1, seeded())
    expected = oracles.with_gradients(oracles.log_space_weights, inputs)
    assert worst_error(oracles.with_gradients(nondeterministic_weights, inputs), expected) < 1e-12


@pytest.mark.parametrize("bottom_shape", [(4,), (2, 4)])
@pytest.mark.parametrize("forbidden", [0, 0.3])
def test_zeta_is_gamma_times_the_pushed_vector(bottom_shape, forbidden):
    transitions = oracles.random_transitions(2, 8, 2, 3, 1, forbidden, seeded())
    values, bottom = torch.rand(2, 8, 4, dtype=torch.float64), torch.rand(bottom_shape, dtype=torch.float64)

    def by_zeta(push, replace, pop, values, bottom):
        return nondeterministic_readings(push, replace, pop, values.log(), bottom.log())

    def by_weights(push, replace, pop, values, bottom):
        elements = torch.cat([bottom.expand(2, 4)[:, None], values], 1)
        return torch.einsum("btiqs,bim->btqsm", nondeterministic_weights(push, replace, pop), elements)

    inputs = [*transitions, values, bottom]
    assert worst_error(oracles.with_gradients(by_zeta, inputs), oracles.with_gradients(by_weights, inputs)) < 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_nondeterministic_with_hard_actions_equals_a_list(seed):
    steps = oracles.random_steps(30, 3, 2, seeded(seed))
    weights = nondeterministic_weights(*oracles.hard_transitions(steps, 3, 2))
    assert torch.equal(weights, oracles.list_stack_weights(steps, 3, 2))


def test_superposition_is_a_pda_that_keeps_its_bottom():
    """docs/maths.md, section 8: one state; a pop leaves the bottom symbol 0 in place; other elements have symbol 1."""
    actions = random_actions(2, 9, generator=seeded())
    push, noop, pop = actions.log().unbind(-1)
    log_push, log_replace = torch.full((2, 2, 9, 1, 2, 1, 2), -torch.inf, dtype=torch.float64)
    log_pop = torch.full((2, 9, 1, 2, 1), -torch.inf, dtype=torch.float64)
    log_push[:, :, 0, :, 0, 1] = push[..., None]
    log_replace[:, :, 0, 0, 0, 0] = torch.logaddexp(noop, pop)
    log_replace[:, :, 0, 1, 0, 1] = noop
    log_pop[:, :, 0, 1, 0] = pop
    weights = nondeterministic_weights(log_push, log_replace, log_pop)
    assert oracles.relative_error(weights[:, :, 1:, 0, 1], superposition_weights(actions)) < 1e-13


@pytest.mark.parametrize("case", ["tiny", "marked", "hardest", "sharp"])
def test_recorded_nondeterministic_readings(case):
    recorded = {key: torch.from_numpy(x) for key, x in np.load(FIXTURES / "nondeterministic.npz").items()}
    names = ("log_push", "log_replace", "log_pop", "values", "bottom")
    results = oracles.with_gradients(
        lambda push, replace, pop, v, v0: nondeterministic_readings(push, replace, pop, v.log(), v0.log()),
        [recorded[f"{case}/{name}"] for name in names],
        recorded[f"{case}/readings_grad"],
    )
    expected = [recorded[f"{case}/readings"], *(recorded[f"{case}/{name}_grad"] for name in names)]
    assert worst_error(results, expected) < 1e-9


@pytest.mark.parametrize("case", ["small", "long", "sharp"])
def test_recorded_superposition_readings(case):
    recorded = {key: torch.from_numpy(x) for key, x in np.load(FIXTURES / "superposition.npz").items()}
    names = ("action_logits", "values")
    results = oracles.with_gradients(
        lambda logits, values: superposition_readings(logits.softmax(-1), values),
        [recorded[f"{case}/{name}"] for name in names],
        recorded[f"{case}/readings_grad"],
    )
    expected = [recorded[f"{case}/readings"], *(recorded[f"{case}/{name}_grad"] for name in names)]
    assert worst_error(results, expected) < 1e-9


def test_a_row_that_no_run_reaches_is_zero():
    push, replace, pop = oracles.random_transitions(2, 6, 2, 2, generator=seeded())
    push[0, 4], replace[0, 4], pop[0, 4] = -torch.inf, -torch.inf, -torch.inf
    weights, *gradients = oracles.with_gradients(nondeterministic_weights, [push, replace, pop])
    assert torch.count_nonzero(weights[0, 4:]) == 0
    torch.testing.assert_close(weights.sum((2, 3, 4))[0, :4], torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(weights.sum((2, 3, 4))[1], torch.ones(6, dtype=torch.float64))
    for gradient in gradients:
        assert torch.count_nonzero(gradient[0, 4:]) == 0
        assert torch.isfinite(gradient).all()
        assert gradient[0, 1:4].abs().max() > 0

    log_values, log_bottom = torch.rand(2, 6, 3, dtype=torch.float64).log(), torch.rand(3, dtype=torch.float64).log()
    with torch.autograd.set_detect_anomaly(True):  # no nan in intermediate results either
        readings, *gradients = oracles.with_gradients(
            nondeterministic_readings, [push, replace, pop, log_values, log_bottom]
        )
    assert torch.count_nonzero(readings[0, 4:]) == 0
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_is_rounded_only_at_the_end(dtype):
    inputs = oracles.random_transitions(1, 6, 2, 2, 2, 0.1, seeded(), dtype)
    weights = nondeterministic_weights(*inputs)
    assert weights.dtype == dtype
    assert torch.equal(weights, nondeterministic_weights(*(x.double() for x in inputs)).to(dtype))
    log_values = torch.rand(1, 6, 2).log().to(dtype)
    assert nondeterministic_readings(*inputs, log_values, log_values[0, 0]).dtype == dtype
    actions = random_actions(1, 6, generator=seeded()).to(dtype)
    assert torch.equal(superposition_weights(actions), superposition_weights(actions.double()).to(dtype))


@pytest.mark.parametrize("T", [0, 1])
def test_short_sequences_have_gradients_for_every_argument(T):
    weights, *gradients = oracles.with_gradients(
        nondeterministic_weights, oracles.random_transitions(2, T, 2, 2, 1, 0.3, seeded())
    )
    assert weights.shape == (2, T, T + 1, 2, 2)
    assert torch.count_nonzero(gradients[2]) == 0


def test_gradcheck():
    leaves = [x.requires_grad_() for x in oracles.random_transitions(1, 4, 2, 2, 1, 0, seeded())]
    log_values = torch.randn(1, 4, 1, dtype=torch.float64, requires_grad=True)
    log_bottom = torch.randn(1, dtype=torch.float64, requires_grad=True)
    actions = random_actions(1, 4, generator=seeded()).requires_grad_()
    check = partial(torch.autograd.gradcheck, fast_mode=True)
    assert check(nondeterministic_weights, leaves)
    assert check(nondeterministic_readings, [*leaves, log_values, log_bottom])
    assert check(superposition_weights, [actions])


def test_second_derivatives():
    leaves = [x.requires_grad_() for x in oracles.random_transitions(1, 4, 1, 2, 1, 0.2, seeded())]
    assert torch.autograd.gradgradcheck(nondeterministic_weights, leaves, fast_mode=True)
