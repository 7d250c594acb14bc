"""torch.library's own checks, torch.compile without graph breaks, and torch.func."""

import shutil
from functools import partial

import pytest
import torch
from oracles import with_gradients
from stacks import FAST, STACKS, Superposition, assert_close, operator, seeded
from torch._dynamo.testing import CompileCounterWithBackend

both = pytest.mark.parametrize("backend", FAST)
all_stacks = pytest.mark.parametrize("stack", STACKS)


@both
@all_stacks
@pytest.mark.parametrize("lengths", [None, torch.tensor([5, 3])], ids=["full", "lengths"])
@pytest.mark.slow
def test_opcheck(stack, lengths, backend):
    name = "superposition_weights" if isinstance(stack, Superposition) else "nondeterministic_weights"
    forward, backward = (getattr(torch.ops.stackattn, x).default for x in (name, f"{name}_backward"))
    inputs = stack.inputs(2, 5)
    upstream = torch.randn(operator(stack, backend)(*inputs).shape, generator=seeded(), dtype=torch.float64)
    memory = () if isinstance(stack, Superposition) else forward(*inputs, lengths, backend)[1:]
    torch.library.opcheck(backward, (upstream, *inputs, lengths, *memory, backend))
    torch.library.opcheck(forward, (*(x.requires_grad_() for x in inputs), lengths, backend))


@both
@pytest.mark.parametrize("stack", [STACKS[0], STACKS[-1]])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.slow
def test_compile(stack, dynamic, backend):
    """Readings and gradients in one graph, with and without lengths; with dynamic shapes, one graph for all shapes."""

    def readings(lengths, values, *inputs):
        weights = stack.operator(*inputs, lengths, backend=backend)
        if isinstance(stack, Superposition):
            return (weights @ values).tanh()
        return torch.einsum("btiqs,bim->btqsm", weights, torch.cat([values[:, :1], values], 1)).tanh()

    torch._dynamo.reset()
    compiler = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(readings, fullgraph=True, dynamic=dynamic, backend=compiler)
    for T in (4, 6) if dynamic else (5,):
        arguments = [torch.randn(3, T, 2, generator=seeded(), dtype=torch.float64), *stack.inputs(3, T)]
        for lengths in (None, torch.tensor([T, 0, 2])):
            expected = with_gradients(partial(readings, lengths), arguments)
            assert_close(with_gradients(partial(compiled, lengths), arguments), expected, 1e-12)
    assert compiler.frame_count == 2  # with and without lengths


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from the compiler itself
@pytest.mark.parametrize("stack", [STACKS[0], STACKS[-1]])
def test_compile_with_the_default_compiler(stack):
    torch._dynamo.reset()
    inputs = stack.inputs(2, 5)
    compiled = torch.compile(lambda *x: stack.operator(*x).square(), fullgraph=True)
    expected = with_gradients(lambda *x: stack.operator(*x).square(), inputs)
    assert_close(with_gradients(compiled, inputs), expected, 1e-12)


@both
@all_stacks
@pytest.mark.parametrize("nested", [False, True])
def test_vmap(stack, nested, backend):
    """vmap over an extra first or last axis, of all arguments or some, with and without lengths."""
    run = stack.operator
    inputs = [x.unflatten(0, (2, 3)) for x in stack.inputs(6, 5)]
    lengths = torch.tensor([[5, 0, 3], [1, 2, 4]])
    shared = torch.tensor([4, 5, 1])

    def flat(lengths):
        rows = run(*(x.flatten(0, 1) for x in inputs), lengths, backend=backend)
        return rows.unflatten(0, (2, 3))

    def call(*arguments):
        return run(*arguments, backend=backend)

    if nested:  # also over the batch axis: each sequence is a batch of its own
        inner = torch.func.vmap(lambda *x: call(*(y[None] for y in x[:-1]), x[-1][None])[0])
        assert_close([torch.func.vmap(inner)(*inputs, lengths)], [flat(lengths.flatten())], 1e-12)
        return
    assert_close([torch.func.vmap(call)(*inputs)], [flat(None)], 1e-12)
    assert_close([torch.func.vmap(call)(*inputs, lengths)], [flat(lengths.flatten())], 1e-12)
    in_dims = (*(0 for _ in inputs), None)
    assert_close([torch.func.vmap(call, in_dims)(*inputs, shared)], [flat(shared.repeat(2))], 1e-12)
    moved = [inputs[0].movedim(0, -1), *inputs[1:]]
    in_dims = (-1, *(0 for _ in inputs[1:]))
    assert_close([torch.func.vmap(call, in_dims, out_dims=1)(*moved).movedim(1, 0)], [flat(None)], 1e-12)


@both
@all_stacks
def test_gradients_through_vmap(stack, backend):
    inputs = [x.unflatten(0, (2, 3)) for x in stack.inputs(6, 5)]
    found = with_gradients(torch.func.vmap(operator(stack, backend)), inputs)
    expected = with_gradients(
        lambda *x: torch.stack([operator(stack, backend)(*y) for y in zip(*x, strict=True)]), inputs
    )
    assert_close(found, expected, 1e-11)


@both
@all_stacks
def test_vmap_over_some_arguments(stack, backend):
    """Arguments that are not mapped over are shared."""
    inputs = stack.inputs(3, 5)
    first = torch.stack([inputs[0], inputs[0].flip(0)])
    in_dims = (0, *(None for _ in inputs[1:]))
    found = torch.func.vmap(operator(stack, backend), in_dims)(first, *inputs[1:])
    assert_close([found], [torch.stack([operator(stack, backend)(x, *inputs[1:]) for x in first])], 1e-12)


@both
@all_stacks
def test_vmap_with_an_empty_batch(stack, backend):
    inputs = [x[None].expand(2, *x.shape) for x in stack.inputs(0, 3)]
    assert torch.func.vmap(operator(stack, backend))(*inputs).shape[:3] == (2, 0, 3)


@both
@all_stacks
def test_vmap_over_upstream_gradients(stack, backend):
    """A Jacobian matrix in one backward pass."""
    inputs = stack.inputs(1, 3)
    one, all_at_once = (
        torch.autograd.functional.jacobian(operator(stack, backend), tuple(inputs), vectorize=v) for v in (False, True)
    )
    assert_close(all_at_once, one, 1e-12)


@both
@all_stacks
def test_functional_gradients(stack, backend):
    """torch.func.grad alone and under vmap, and torch.func.jacrev, which applies vmap to the backward pass."""
    inputs, numbers = stack.inputs(2, 3), tuple(range(len(stack.names)))
    lengths = torch.tensor([3, 2])
    run = operator(stack, backend, lengths)
    loss = lambda *x: run(*x).tanh().sum()  # noqa: E731
    expected = torch.autograd.grad(loss(*(x.requires_grad_() for x in inputs)), inputs)
    inputs = [x.detach() for x in inputs]
    assert_close(torch.func.grad(loss, numbers)(*inputs), expected, 1e-12)
    many = [torch.stack([x, x]) for x in inputs]
    assert_close(torch.func.vmap(torch.func.grad(loss, numbers))(*many), [torch.stack([x, x]) for x in expected], 1e-12)
    jacobian = torch.autograd.functional.jacobian(run, tuple(inputs))
    assert_close(torch.func.jacrev(run, numbers)(*inputs), jacobian, 1e-12)


@both
@all_stacks
def test_second_functional_gradients_raise(stack, backend):
    for argument in range(len(stack.names)):
        first = torch.func.grad(lambda *x: operator(stack, backend)(*x).square().sum(), argument)
        with pytest.raises(RuntimeError, match="cannot differentiate"):
            torch.func.grad(lambda *x: first(*x).sum())(*stack.inputs(1, 3))  # noqa: B023


@pytest.mark.parametrize("stack", [x for x in STACKS if not isinstance(x, Superposition)])
def test_backward_without_the_memory_of_the_forward_pass(stack):
    """Under vmap, the charts are not kept but computed again."""
    inputs = stack.inputs(2, 5)
    weights, memory = torch.ops.stackattn.nondeterministic_weights(*inputs, None, "torch")
    backward = torch.ops.stackattn.nondeterministic_weights_backward
    kept, again = (backward(weights.cos(), *inputs, None, x, "torch") for x in (memory, memory[:0]))
    assert memory.numel() > 0
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))
