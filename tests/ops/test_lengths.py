"""Sequences of different lengths in one batch: steps beyond a length are ignored."""

import pytest
import torch
from oracles import with_gradients
from stacks import BACKENDS, FAST, HARD_STACKS, STACKS, Superposition, assert_close, operator, seeded

T = 6
LENGTHS = torch.tensor([0, 1, 4, 6, 5])


def with_garbage(x):
    """`x` with nan, both infinities and large numbers beyond the lengths."""
    beyond = torch.arange(T) >= LENGTHS[:, None]
    garbage = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30], dtype=x.dtype)
    garbage = garbage[torch.randint(4, x.shape, generator=seeded())]
    return garbage.where(beyond[(...,) + (None,) * (x.dim() - 2)], x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stack", [*STACKS, *HARD_STACKS])
def test_garbage_beyond_the_lengths(stack, backend):
    """Padding in inputs and the upstream gradient changes no other row; rows and gradients of the padding are zero."""
    inputs = stack.inputs(len(LENGTHS), T)
    weights = operator(stack, "cpp")(*inputs)
    upstream = with_garbage(torch.randn(weights.shape, generator=seeded(), dtype=torch.float64))
    found = with_gradients(operator(stack, backend, LENGTHS), map(with_garbage, inputs), upstream)
    for b, length in enumerate(LENGTHS.tolist()):
        columns = length if isinstance(stack, Superposition) else length + 1
        alone = [x[b : b + 1, :length] for x in inputs]
        expected = with_gradients(operator(stack, "cpp"), alone, upstream[b : b + 1, :length, :columns])
        results = [x[b : b + 1, :length] for x in found]
        assert_close([results[0][:, :, :columns], *results[1:]], expected, 1e-10, floor=1e-3)
        assert not results[0][:, :, columns:].any()
        assert not any(x[b, length:].any() for x in found)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize(
    "dtype",
    [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64],
)
def test_lengths_of_any_integer_dtype_and_strides(stack, dtype, backend):
    inputs = stack.inputs(len(LENGTHS), T)
    lengths = LENGTHS.repeat_interleave(2).to(dtype)[::2]
    found, expected = (with_gradients(operator(stack, backend, n), inputs) for n in (lengths, LENGTHS))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("stack", STACKS)
def test_full_lengths_equal_no_lengths(stack, backend):
    inputs, full = stack.inputs(2, T), torch.tensor([T, T])
    found, expected = (with_gradients(operator(stack, backend, n), inputs) for n in (full, None))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("backend", FAST)
def test_logits_out_of_range_in_the_padding_change_nothing(backend):
    """The arithmetic used for a sequence depends only on its steps, so the bits do not depend on the padding."""
    stack = STACKS[-1]
    inputs, lengths = stack.inputs(1, T), torch.tensor([4])
    hard = [torch.cat([x[:, :4], 1000 * x[:, 4:]], 1) for x in inputs]
    found, expected = (with_gradients(operator(stack, backend, lengths), x) for x in (hard, inputs))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
