"""The operators against the paper's equations, enumeration, Python lists and recorded numbers, with all gradients."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles import (
    enumerate_superposition_weights,
    enumerate_weights,
    hard_transitions,
    list_stack_weights,
    list_superposition_weights,
    log_space_weights,
    random_steps,
    with_gradients,
)
from stacks import BACKENDS, FAST, STACKS, Nondeterministic, Superposition, assert_close, operator, seeded

FIXTURES = Path(__file__).parent / "fixtures"


@cache
def expected(stack, B, T, oracle=None, dtype=torch.float64, seed=0):
    """The expected results, computed in float64 from inputs rounded to `dtype`."""
    return with_gradients(oracle or stack.reference, [x.double() for x in stack.inputs(B, T, seed, dtype)])


def found(stack, backend, B, T, dtype=torch.float64, seed=0):
    return with_gradients(operator(stack, backend), stack.inputs(B, T, seed, dtype))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("stack", "oracle", "T"),
    [(Superposition(), enumerate_superposition_weights, T) for T in range(8)]
    + [(Nondeterministic(2, 2), enumerate_weights, T) for T in range(6)]
    + [(Nondeterministic(1, 3), enumerate_weights, 5), (Nondeterministic(3, 1), enumerate_weights, 5)]
    + [(Nondeterministic(3, 2), enumerate_weights, 4), (Nondeterministic(2, 3, 10.0), enumerate_weights, 4)],
)
def test_sum_over_all_runs(stack, oracle, T, backend):
    assert_close(found(stack, backend, 2, T), expected(stack, 2, T, oracle), 1e-9)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize(
    ("stack", "T"),
    [(stack, T) for stack in STACKS for T in range(9)]
    + [(Nondeterministic(Q, S), 4 + (Q + S) % 3) for Q in range(1, 6) for S in range(1, 6)]
    + [(Superposition(), T) for T in (63, 64, 65, 100)]
    + [pytest.param(Nondeterministic(2, 3), T, marks=pytest.mark.slow) for T in (63, 64, 65)]
    + [pytest.param(Nondeterministic(3, 2), T, marks=[pytest.mark.slow, pytest.mark.full]) for T in (63, 64, 65)],
)
def test_the_papers_equations(stack, T, backend):
    assert_close(found(stack, backend, 2, T), expected(stack, 2, T), 1e-9)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize(
    ("Q", "S", "T"),
    [(1, 2, 33), (2, 1, 40), (5, 2, 19)]
    + [
        pytest.param(Q, S, T, marks=pytest.mark.slow) for Q, S, T in [(3, 3, 100), (1, 2, 150), (2, 3, 100), (4, 5, 50)]
    ],
)
def test_log_space(Q, S, T, backend):
    """Lengths for which the paper's equations take too long."""
    stack = Nondeterministic(Q, S)
    assert_close(found(stack, backend, 1, T), expected(stack, 1, T, log_space_weights), 1e-9)


@pytest.mark.parametrize(
    ("stack", "lengths"),
    [(Superposition(), range(46, 51)), (Nondeterministic(3, 3), range(14, 19)), (Nondeterministic(5, 2), range(6, 11))]
    + [
        pytest.param(stack, range(71), marks=pytest.mark.slow)
        for stack in (Superposition(), *(Nondeterministic(Q, 1 + Q % 3) for Q in range(1, 6)))
    ]
    + [
        pytest.param(Nondeterministic(1, 2), (95, 96, 97, 143, 144, 145, 200), marks=pytest.mark.slow),
        pytest.param(Superposition(), (95, 96, 97, 143, 144, 145, 300), marks=pytest.mark.slow),
    ],
)
def test_kernel_at_every_length(stack, lengths):
    """The kernel works in tiles, so errors may depend on the length; the `torch` backend has no tiles."""
    for T in lengths:
        assert_close(found(stack, "cpp", 1, T), found(stack, "torch", 1, T), 1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stack", STACKS)
def test_narrow_dtypes(stack, dtype, backend):
    """All arithmetic is in float64; only the results and the gradients are rounded."""
    tolerance = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    results = found(stack, backend, 2, 12, dtype)
    assert {x.dtype for x in results} == {dtype}
    assert_close(results, expected(stack, 2, 12, dtype=dtype), tolerance)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize(
    ("T", "dtype"), [(33, torch.float32), pytest.param(100, torch.float32, marks=pytest.mark.slow)]
)
def test_float32_does_not_accumulate_errors(T, dtype, backend):
    stack = Nondeterministic(3, 2)
    assert_close(found(stack, backend, 1, T, dtype), expected(stack, 1, T, log_space_weights, dtype), 1e-5)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("stack", STACKS)
def test_any_strides(stack, backend):
    """Inputs and the upstream gradient need not be contiguous."""
    inputs = stack.inputs(2, 6)
    scattered = [x.flip(0).mT.contiguous().mT.flip(0).repeat_interleave(2, 1)[:, ::2] for x in inputs]
    scattered = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in scattered]
    assert not any(x.is_contiguous() for x in scattered)
    leaves = [x.requires_grad_() for x in scattered]
    weights = operator(stack, backend)(*leaves)
    upstream = (
        torch.randn(weights.shape, generator=seeded(), dtype=torch.float64).transpose(0, 1).contiguous().transpose(0, 1)
    )
    gradients = torch.autograd.grad(weights, leaves, upstream)
    same = with_gradients(operator(stack, backend), inputs, upstream.contiguous())
    assert all(torch.equal(a, b) for a, b in zip([weights, *gradients], same, strict=True))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("stack", [Superposition(), Nondeterministic(2, 1), Nondeterministic(1, 2, 300.0)])
def test_gradcheck(stack, backend):
    inputs = [x.requires_grad_() for x in stack.inputs(2, 4)]
    lengths = torch.tensor([4, 3])
    assert torch.autograd.gradcheck(operator(stack, backend, lengths), inputs)


@pytest.mark.parametrize("stack", [Superposition(), Nondeterministic(1, 2)])
def test_second_derivatives(stack):
    """Only the reference has second derivatives; the other backends raise an error."""
    inputs = [x.requires_grad_() for x in stack.inputs(1, 3)]
    upstream = torch.randn(stack.reference(*inputs).shape, generator=seeded(), dtype=torch.float64)
    assert torch.autograd.gradgradcheck(operator(stack, "reference"), inputs, upstream)
    for backend in FAST:
        (gradient, *_) = torch.autograd.grad(
            operator(stack, backend)(*inputs).square().sum(), inputs, create_graph=True
        )
        with pytest.raises(RuntimeError, match="differentiate"):
            gradient.sum().backward()


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("seed", range(3))
def test_hard_transitions_equal_a_list(seed, backend):
    steps = random_steps(60, 3, 2, seeded(seed))
    weights = operator(Nondeterministic(3, 2), backend)(*hard_transitions(steps, 3, 2))
    assert torch.equal(weights, list_stack_weights(steps, 3, 2))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("seed", range(3))
def test_hard_actions_equal_a_list(seed, backend):
    choices = torch.randint(3, (60,), generator=seeded(seed))
    weights = operator(Superposition(), backend)(torch.nn.functional.one_hot(choices, 3)[None].double())
    assert torch.equal(weights, list_superposition_weights([("push", "noop", "pop")[a] for a in choices]))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("actions", [(-0.5, 2.0, 1.5), (0.0, 0.0, 0.0), (1e30, 1e-100, 3.0)])
def test_actions_need_not_be_probabilities(actions, backend):
    actions = torch.tensor(actions, dtype=torch.float64) * torch.rand(2, 7, 3, generator=seeded(), dtype=torch.float64)
    stack = Superposition()
    assert_close([operator(stack, backend)(actions)], [stack.reference(actions)], 1e-9)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("case", ["tiny", "marked", "hardest", "sharp"])
def test_recorded_nondeterministic_numbers(case, backend):
    def readings(log_push, log_replace, log_pop, values, bottom):
        weights = operator(Nondeterministic(0, 0), backend)(log_push, log_replace, log_pop)
        elements = torch.cat([bottom.expand(len(values), 1, -1), values], 1)
        return torch.einsum("btiqs,bim->btqsm", weights, elements)

    check_recorded("nondeterministic", case, readings, ["log_push", "log_replace", "log_pop", "values", "bottom"])


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("case", ["small", "long", "sharp"])
def test_recorded_superposition_numbers(case, backend):
    def readings(logits, values):
        return operator(Superposition(), backend)(logits.softmax(-1)) @ values

    check_recorded("superposition", case, readings, ["action_logits", "values"])


def check_recorded(stack, case, readings, names):
    with np.load(FIXTURES / f"{stack}.npz") as file:
        recorded = {
            key.removeprefix(f"{case}/"): torch.from_numpy(x) for key, x in file.items() if key.startswith(case)
        }
    results = with_gradients(readings, [recorded[name] for name in names], recorded["readings_grad"])
    assert_close(results, [recorded["readings"], *(recorded[f"{name}_grad"] for name in names)], 1e-9)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize(("B", "T"), [(0, 3), (2, 0), (0, 0)])
def test_empty_inputs_give_empty_results(stack, B, T, backend):
    results = found(stack, backend, B, T)
    assert [x.shape for x in results] == [x.shape for x in with_gradients(stack.reference, stack.inputs(B, T))]


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_gradients_of_narrow_dtypes_are_rounded_once(dtype, backend):
    """Near a deterministic stack, gradients are small differences of upstream gradients, but are rounded only once."""
    stack = Nondeterministic(2, 2, 4.0)
    inputs = [x.requires_grad_() for x in stack.inputs(1, 4, dtype=dtype)]
    weights = operator(stack, backend)(*inputs)
    upstream = torch.randn(weights.shape, generator=seeded()).to(dtype)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    wanted = torch.autograd.grad(stack.reference(*exact), exact, upstream.double())
    for a, b in zip(torch.autograd.grad(weights, inputs, upstream), wanted, strict=True):
        finfo = torch.finfo(dtype)
        assert ((a.double() - b).abs() <= 0.51 * finfo.eps * b.abs() + finfo.smallest_normal * finfo.eps).all()
