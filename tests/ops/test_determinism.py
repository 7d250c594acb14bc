"""Repeated calls give the same bits, for any number of threads, and the kernel restores the floating-point mode."""

import pytest
import torch
from oracles import with_gradients
from stacks import FAST, HARD_STACKS, STACKS, Nondeterministic, in_chunks, operator


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("stack", [*STACKS, *HARD_STACKS])
def test_repeated_runs(stack, backend):
    inputs = stack.inputs(3, 15)
    first, *others = (with_gradients(operator(stack, backend), inputs) for _ in range(3))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("stack", [*STACKS, *HARD_STACKS, Nondeterministic(3, 3)])
@pytest.mark.parametrize("way", ["full", "steps"])
def test_any_number_of_threads(stack, way, threads):
    inputs = stack.inputs(7, 30 if way == "full" else 8)
    run = operator(stack, "cpp") if way == "full" else in_chunks(stack, "cpp", [1] * 8)
    results = []
    for count in (1, 2, 3, 16):
        threads(count)
        results.append(with_gradients(run, inputs))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_the_kernel_leaves_the_floating_point_mode_alone():
    """The kernel flushes denormals to zero while it runs; afterwards, the calling thread must not."""
    tiny = torch.full((1000,), 1e-310, dtype=torch.float64)
    operator(STACKS[-1], "cpp")(*STACKS[-1].inputs(4, 10))
    assert (tiny * 0.5 > 0).all()
