"""States of the windowed nondeterministic stack: chunks agree with the full pass, with gradients; constant memory."""

import pytest
import torch
from oracles import with_gradients
from stacks import FAST, assert_close, pieces, seeded
from test_window import arguments, hidden_run, read

from stackattn import NondeterministicReadingState

fast = pytest.mark.parametrize("backend", FAST)
Q, S, M = 2, 2, 3


def empty(bottom, window, backend="auto", states=(Q, S)):
    return NondeterministicReadingState.empty(bottom, *states, window=window, backend=backend)


def in_chunks(window, backend, sizes, lengths=None, states=(Q, S)):
    def readings(*inputs):
        *transitions, values = inputs
        state, rows = empty(values[:, 0], window, backend, states), []
        for n, piece in enumerate(pieces([*transitions, values[:, 1:]], sizes)):
            row, state = state.extend(*piece, *([] if lengths is None else [lengths[n]]))
            rows.append(row)
        assert state.length == sum(sizes) == inputs[0].shape[1]
        return torch.cat(rows, 1)

    return readings


@fast
@pytest.mark.parametrize("window", [1, 2, 4, 20])
@pytest.mark.parametrize("sizes", [[1] * 12, [3, 0, 1, 8], [12]])
def test_full_pass_equals_any_chunks(sizes, window, backend):
    inputs = arguments(2, 12, Q, S, M)
    expected = with_gradients(read(window, "reference"), inputs)
    assert_close(with_gradients(in_chunks(window, backend, sizes), inputs), expected, 1e-10)


def test_long_chunks_with_the_kernel():
    """Chunks of several segments, and chunks longer and shorter than the window."""
    inputs = arguments(2, 230, Q, S, M)
    expected = with_gradients(read(11, "torch"), inputs)
    for sizes in ([1, 199, 30], [9, 11, 10, 100, 100]):
        assert_close(with_gradients(in_chunks(11, "cpp", sizes), inputs), expected, 1e-10)


def test_ten_thousand_steps_in_chunks():
    inputs = arguments(1, 10_000, 1, 2, 2)
    expected = with_gradients(read(6, "cpp"), inputs)
    assert_close(with_gradients(in_chunks(6, "cpp", [1, 6999, 3000], states=(1, 2)), inputs), expected, 1e-10)


@fast
@pytest.mark.parametrize("window", [3, 30])
def test_chunks_with_lengths(window, backend):
    """Each sequence takes its own number of steps in each chunk; the other steps do not age its elements."""
    inputs, sizes = arguments(3, 15, Q, S, M), [4, 2, 6, 3]
    lengths = [torch.tensor(x) for x in ([4, 1, 0], [0, 2, 1], [6, 1, 0], [3, 3, 1])]
    taken = torch.cat([torch.arange(size) < n[:, None] for size, n in zip(sizes, lengths, strict=True)], 1)
    spoilt = [x.clone() for x in inputs]
    for x in spoilt:
        x[:, x.shape[1] - 15 :][~taken] = torch.nan
    readings, *grads = with_gradients(in_chunks(window, backend, sizes, lengths), spoilt)
    assert (readings[~taken] == 0).all()
    upstream = torch.randn(readings.shape, generator=seeded(1), dtype=torch.float64)
    for b in range(3):
        alone = [x[b : b + 1, taken[b]] for x in inputs[:3]]
        alone.append(torch.cat([inputs[3][b : b + 1, :1], inputs[3][b : b + 1, 1:][:, taken[b]]], 1))
        expected, *wanted = with_gradients(read(window, "reference"), alone, upstream[b : b + 1, taken[b]])
        found = [x[b : b + 1, taken[b]] for x in grads[:3]]
        assert_close([readings[b : b + 1, taken[b]], *found], [expected, *wanted[:3]], 1e-10)
        assert_close(
            [grads[3][b : b + 1, 1:][:, taken[b]], grads[3][b : b + 1, :1]], [wanted[3][:, 1:], wanted[3][:, :1]], 1e-10
        )
        assert all((x[b, ~taken[b]] == 0).all() for x in (*grads[:3], grads[3][:, 1:]))


@fast
def test_states_branch_and_reorder(backend):
    *transitions, values = arguments(3, 9, Q, S, M)
    steps = [*transitions, values[:, 1:]]
    leaves = [x.requires_grad_() for x in (*steps, values[:, 0].clone())]
    state = empty(leaves[4], 4, backend)
    _, state = state.extend(*(x[:, :6] for x in leaves[:4]))
    index = torch.tensor([2, 0, 2])
    first, _ = state.extend(*(x[:, 6:] for x in leaves[:4]))
    second, moved = state.reorder(index).extend(*(x[:, 6:].flip(1) for x in leaves[:4]))
    assert moved.length == 9
    found = torch.autograd.grad(first.tanh().sum() + second.tanh().sum(), leaves)

    def full(rows, order):
        chosen = [torch.cat([x[index, :6] if order else x[:, :6], rows(x[:, 6:])], 1) for x in leaves[:3]]
        pushed = torch.cat([leaves[4][:, None], leaves[3]], 1)
        pushed = torch.cat([pushed[index, :7] if order else pushed[:, :7], rows(leaves[3][:, 6:])], 1)
        return read(4, "reference")(*chosen, pushed)[:, 6:]

    expected = full(lambda x: x, False), full(lambda x: x.flip(1), True)
    assert_close([first.detach(), second.detach()], [x.detach() for x in expected], 1e-11)
    wanted = torch.autograd.grad(expected[0].tanh().sum() + expected[1].tanh().sum(), leaves)
    assert_close(list(found), list(wanted), 1e-10)
    assert not state.detach().extend(*(x[:, 6:].detach() for x in leaves[:4]))[0].requires_grad


@fast
def test_the_size_of_a_state_is_constant(backend):
    *transitions, values = (x.float() for x in arguments(2, 40, Q, S, M))
    state, sizes = empty(values[:, 0], 5, backend), []
    for piece in pieces([*transitions, values[:, 1:]], [1] * 40):
        _, state = state.extend(*piece)
        sizes.append(
            sum(x.numel() for x in (state._steps, state._tensor)) + (0 if state._band is None else state._band.numel())
        )
    assert len(set(sizes[4:])) == 1
    assert repr(state) == "NondeterministicReadingState(batch_size=2, length=40, window=5, device=cpu)"


def test_the_kernel_computes_a_missing_band():
    inputs = arguments(2, 30, Q, S, M)
    *transitions, values = inputs
    first, second = pieces([*transitions, values[:, 1:]], [20, 10])
    _, state = empty(values[:, 0], 8, "cpp").extend(*first)
    expected, after = state.extend(*second)
    state._band = None
    found, recomputed = state.extend(*second)
    assert_close([found, recomputed._band], [expected, after._band], 1e-12)


@fast
@pytest.mark.parametrize("scale", [30.0, 1000.0])
def test_chunks_of_logits_of_any_scale(scale, backend):
    inputs = arguments(3, 12, Q, S, M, scale)
    full = with_gradients(read(4, "reference"), inputs)
    for sizes in ([5, 4, 3], [1] * 12):
        assert_close(with_gradients(in_chunks(4, backend, sizes), inputs), full, 1e-7, floor=1e-3)


@fast
@pytest.mark.parametrize("sizes", [[1, 11], [6, 6], [1] * 12])
def test_no_run_is_lost_between_chunks(sizes, backend):
    """The share of the hidden run is e^-3000 at first, far below the range of float64, and 1 at the end."""
    inputs = hidden_run(-3000.0)
    for x in inputs:
        x[:, 6:] = x[:, 6:].where(x[:, 6:] != -100.0, -800.0)  # the decoy then loses more than float64 can represent
    inputs.append(torch.randn(1, 13, M, generator=seeded(), dtype=torch.float64))
    expected = with_gradients(read(4, "reference"), inputs)
    assert expected[0][0, 11, 0, 2].abs().max() > 10 * expected[0][0, 11, 0, 1].abs().max()
    assert_close(with_gradients(in_chunks(4, backend, sizes, states=(1, 3)), inputs), expected, 1e-9, floor=1e-3)


@fast
def test_a_chunk_without_steps_after_extreme_logits(backend):
    """The masses of the earlier rows differ by more than float64 can represent."""
    inputs = [x.where(x != -100.0, -800.0) for x in hidden_run(-3000.0)]
    inputs.append(torch.randn(1, 13, M, generator=seeded(), dtype=torch.float64))
    taken, lengths = [*range(5), *range(8, 12)], [torch.tensor([n]) for n in (5, 0, 4)]
    chunks, whole = in_chunks(6, backend, [5, 3, 4], lengths, states=(1, 3)), read(6, "reference")
    found = with_gradients(lambda *x: chunks(*x)[:, taken], inputs)
    values = [0, *(t + 1 for t in taken)]
    expected = with_gradients(lambda *x: whole(*(y[:, taken] for y in x[:3]), x[3][:, values]), inputs)
    assert_close(found, expected, 1e-8, floor=1e-3)


@fast
def test_chunks_with_different_arithmetic(backend):
    """A chunk beyond the range of float64, then ordinary ones whose window reaches back into it."""
    inputs = arguments(2, 12, Q, S, M)
    for x in inputs[:3]:
        x[:, 2:5] *= 2000.0
    expected = with_gradients(read(6, "reference"), inputs)
    assert_close(with_gradients(in_chunks(6, backend, [5, 1, 1, 5]), inputs), expected, 1e-8, floor=1e-3)


@fast
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes(dtype, backend):
    inputs = [x.to(dtype) for x in arguments(2, 8, Q, S, M)]
    found = with_gradients(in_chunks(3, backend, [5, 3]), inputs)
    assert all(x.dtype == dtype for x in found)
    expected = with_gradients(read(3, "reference"), [x.double() for x in inputs])
    assert_close([x.double() for x in found], expected, 2e-6 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize(
    ("error", "change", "message"),
    [
        (
            ValueError,
            lambda p, r, o, v: (p, r, o, v[:, 1:]),
            r"values: expected shape \(2, 4, m\) with m >= 1, got \(2, 3, 3\)",
        ),
        (ValueError, lambda p, r, o, v: (p, r, o, v[..., :2]), "values: expected size 3 like the state, got 2"),
        (ValueError, lambda *x: tuple(y[:1] for y in x), "log_push: expected batch size 2 like the state, got 1"),
        (TypeError, lambda p, r, o, v: (p, r, o, v.long()), "values: expected one of float32"),
        (ValueError, lambda p, r, o, v: (p * torch.nan, r, o, v), "log_push: .* in sequence 0 at step 0"),
        (ValueError, lambda *x: (*x, torch.tensor([5, 0])), "lengths: expected values from 0 to T = 4, got 5"),
        (
            ValueError,
            lambda p, r, o, v: (p[..., :1, :, :1], r[..., :1, :, :1], o[..., :1, :], v),
            "log_push: expected Q = 2 and S = 2, with which the state was created, got Q = 2 and S = 1",
        ),
    ],
)
@fast
def test_a_state_refuses_wrong_arguments(error, change, message, backend):
    *transitions, values = arguments(2, 4, Q, S, M)
    _, state = empty(values[:, 0], 3, backend).extend(*transitions, values[:, 1:])
    with pytest.raises(error, match=message):
        state.extend(*change(*transitions, values[:, 1:]))


def test_wrong_sizes_of_a_state():
    bottom = torch.zeros(2, 3)
    for name, sizes in (
        ("num_states", (0, 2, 3)),
        ("num_symbols", (2, 1.5, 3)),
        ("window", (2, 2, 0)),
        ("window", (2, 2, None)),
    ):
        with pytest.raises(ValueError, match=f"{name}: expected a positive integer"):
            NondeterministicReadingState.empty(bottom, *sizes[:2], window=sizes[2])
    with pytest.raises(ValueError, match=r"bottom: expected shape \(B, m\) with m >= 1, got \(3,\)"):
        NondeterministicReadingState.empty(bottom[0], 2, 2, window=3)
