"""The oracles, compared with each other and with the package's reference and log-space chart; sums in log space."""

import math

import oracles
import pytest
import torch

from stackattn.ops.pytorch.log_chart import log_chart, log_einsum, log_sum
from stackattn.ops.reference import nondeterministic_weights


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def chart_weights(push, replace, pop):
    chart = log_chart(push, replace, pop, log_sum)
    total = log_sum(chart.alpha[:, 1:], (2, 3))[:, :, None, None, None]
    return (chart.F[:, :, 1:].transpose(1, 2) - total.masked_fill(total == -torch.inf, 0.0)).exp()


def test_relative_error():
    a, b = torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0])
    assert oracles.relative_error(a, b) == 0.25
    assert oracles.relative_error(a, b, floor=5.0) == 0.1
    assert oracles.relative_error(torch.zeros(2), torch.zeros(2)) == 0
    assert oracles.relative_error(a, torch.zeros(2)) == math.inf
    assert math.isnan(oracles.relative_error(torch.tensor([math.nan, 1.0]), b))
    assert math.isnan(oracles.relative_error(torch.tensor([math.nan, 0.0]), torch.zeros(2)))
    with pytest.raises(ValueError, match="shapes differ"):
        oracles.relative_error(a, b[:1])


def test_the_number_of_runs():
    """One state and one symbol: a run is a path of steps +1, 0, -1 that never goes below zero."""
    counts = [sum(len(runs) for runs in reached.values()) for reached in oracles.all_runs(6, 1, 1)]
    assert counts == [1, 2, 5, 13, 35, 96, 267]
    log_ones = [torch.zeros(shape) for shape in ((1, 3, 2, 2, 2, 2), (1, 3, 2, 2, 2, 2), (1, 3, 2, 2, 2))]
    assert len(oracles.enumerate_runs(*log_ones)) == sum(len(runs) for runs in oracles.all_runs(3, 2, 2)[3].values())


@pytest.mark.parametrize("shape", [(2, 0, 2, 2), (2, 1, 2, 2), (2, 2, 2, 3), (1, 3, 3, 3), (2, 4, 3, 2), (2, 5, 2, 2)])
@pytest.mark.parametrize(("scale", "forbidden"), [(1, 0), (1, 0.5), (1, 0.85), (1000, 0.2)])
def test_log_space_chart_equals_enumeration(shape, scale, forbidden):
    inputs = oracles.random_transitions(*shape, scale, forbidden, seeded(), tied=scale > 1)
    expected = oracles.with_gradients(oracles.enumerate_weights, inputs)
    for result, truth in zip(oracles.with_gradients(oracles.log_space_weights, inputs), expected, strict=True):
        assert oracles.relative_error(result, truth, floor=1e-3) < 1e-11
    assert oracles.relative_error(chart_weights(*inputs), expected[0]) < 1e-11


@pytest.mark.slow
def test_five_steps_of_three_states_and_symbols():
    inputs = oracles.random_transitions(1, 5, 3, 3, 1, 0.1, seeded())
    expected = oracles.with_gradients(oracles.enumerate_weights, inputs)
    for function in (oracles.log_space_weights, nondeterministic_weights):
        results = oracles.with_gradients(function, inputs)
        assert max(oracles.relative_error(a, b) for a, b in zip(results, expected, strict=True)) < 1e-12


def test_gradcheck_of_the_log_space_chart():
    leaves = [x.requires_grad_() for x in oracles.random_transitions(2, 5, 2, 2, 1, 0.2, seeded())]
    assert torch.autograd.gradcheck(oracles.log_space_weights, leaves, fast_mode=True)


def test_log_space_chart_on_long_extreme_sequences():
    inputs = oracles.random_transitions(2, 80, 2, 3, 1000, 0.3, seeded(), tied=True)
    weights, *gradients = oracles.with_gradients(oracles.log_space_weights, inputs)
    assert oracles.relative_error(weights, chart_weights(*inputs)) < 1e-9
    _check_invariants(weights, gradients)


@pytest.mark.slow
@pytest.mark.full
def test_log_space_chart_at_300_steps():
    weights, *gradients = oracles.with_gradients(
        oracles.log_space_weights, oracles.random_transitions(1, 300, 2, 2, 1000, 0.3, seeded(), tied=True)
    )
    _check_invariants(weights, gradients)


def _check_invariants(weights, gradients):
    """Rows sum to 1; a constant added to all log weights of a step changes nothing; no run pops at step 0."""
    torch.testing.assert_close(weights.sum((2, 3, 4)), torch.ones(weights.shape[:2], dtype=torch.float64))
    per_step = torch.stack([gradient.flatten(2).sum(2) for gradient in gradients]).sum(0)
    assert per_step.abs().max() < 1e-9
    assert torch.count_nonzero(gradients[2][:, 0]) == 0
    assert min(gradient.abs().max() for gradient in gradients) > 1e-2


@pytest.mark.parametrize("T", [2, 3, 5, 12])
@pytest.mark.parametrize("deeper", [0, 2000])
def test_decoy(T, deeper):
    """The weights of both hidden runs are exact, and the gradient of a log weight is that of a sigmoid at 12."""
    inputs, expected = oracles.decoy(T, deeper, Q=2)
    slope = 1 / (2 + math.exp(12) + math.exp(-12))
    upstream = torch.zeros_like(expected)
    upstream[:, -1, 1, 0, 2] = 1.0
    for function in [oracles.log_space_weights, nondeterministic_weights] + [oracles.enumerate_weights] * (T <= 3):
        weights, push_gradient, replace_gradient, pop_gradient = oracles.with_gradients(function, inputs, upstream)
        assert oracles.relative_error(weights, expected) < 1e-12
        assert weights[0, -1, 0, 0, 2].item() == pytest.approx(expected[0, -1, 0, 0, 2].item(), rel=1e-9)
        assert push_gradient[0, 0, 0, 0, 0, 2].item() == pytest.approx(slope, rel=1e-9)
        assert replace_gradient[0, 0, 0, 0, 0, 2].item() == pytest.approx(-slope, rel=1e-9)
        assert replace_gradient[0, 0, 0, 0, 0, 1].item() == pytest.approx(0, abs=1e-15)
        assert torch.count_nonzero(pop_gradient) == 0


def test_decoy_hides_below_the_normal_numbers():
    """Where denormals are flushed to 0, only the second hidden run is lost, and the result looks correct."""
    assert math.exp(-712) < torch.finfo(torch.float64).tiny < math.exp(-700)


@pytest.mark.parametrize("seed", range(3))
def test_hard_actions_equal_a_list(seed):
    steps = oracles.random_steps(25, 2, 3, seeded(seed))
    assert {kind for kind, _, _ in steps} == {"push", "replace", "pop"}
    assert torch.equal(
        oracles.log_space_weights(*oracles.hard_transitions(steps, 2, 3)), oracles.list_stack_weights(steps, 2, 3)
    )
    assert torch.equal(
        oracles.enumerate_weights(*oracles.hard_transitions(steps[:4], 2, 3)),
        oracles.list_stack_weights(steps[:4], 2, 3),
    )


def test_superposition_by_hand():
    """push, pop, pop on empty, push, no-op, push, pop: the top is 0, nothing, nothing, 3, 3, 5, 3."""
    kinds = ["push", "pop", "pop", "push", "noop", "push", "pop"]
    expected = torch.zeros(1, 7, 7, dtype=torch.float64)
    for t, i in ((0, 0), (3, 3), (4, 3), (5, 5), (6, 3)):
        expected[0, t, i] = 1.0
    assert torch.equal(oracles.list_superposition_weights(kinds), expected)
    actions = torch.tensor([["push", "noop", "pop"].index(kind) for kind in kinds])
    assert torch.equal(
        oracles.enumerate_superposition_weights(torch.nn.functional.one_hot(actions, 3)[None].double()), expected
    )


def test_random_transitions():
    inputs = oracles.random_transitions(2, 50, 2, 3, 10, 0.25, seeded())
    assert [x.shape for x in inputs] == [(2, 50, 2, 3, 2, 3), (2, 50, 2, 3, 2, 3), (2, 50, 2, 3, 2)]
    finite = inputs[0].isfinite()
    assert 0.7 < finite.double().mean() < 0.8
    assert 9 < inputs[0][finite].std() < 11
    single = oracles.random_transitions(2, 50, 2, 3, 10, 0.25, seeded(), torch.float32)
    assert all(torch.equal(a.float(), b) for a, b in zip(inputs, single, strict=True))


def test_log_einsum():
    a, b = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(4, 5, 3, dtype=torch.float64)
    expected = torch.einsum("bij,jki->kb", a.exp(), b.exp()).log()
    assert oracles.relative_error(log_einsum("bij,jki->kb", a, b), expected) < 1e-14
    best = (a[:, :, :, None] + b.permute(2, 0, 1)).amax((1, 2)).T
    assert torch.equal(log_einsum("bij,jki->kb", a, b, torch.amax), best)


def test_log_sum_of_nothing():
    x = torch.tensor([[-torch.inf, -torch.inf], [-torch.inf, 1.0], [-2000.0, -2000.0]], requires_grad=True)
    y = log_sum(x, (1,))
    assert torch.equal(y.detach(), torch.tensor([-torch.inf, 1.0, -2000.0 + math.log(2)]))
    y[1:].sum().backward(retain_graph=True)
    assert torch.equal(x.grad, torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.5, 0.5]]))
    y.exp().sum().backward()
    assert torch.isfinite(x.grad).all()
