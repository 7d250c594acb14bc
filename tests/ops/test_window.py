"""The windowed nondeterministic stack: popping an element older than the window ends a run."""

from functools import partial

import pytest
import torch
from oracles import (
    decoy,
    enumerate_weights,
    hard_transitions,
    list_stack_weights,
    random_steps,
    random_transitions,
    with_gradients,
)
from stacks import BACKENDS, FAST, assert_close, seeded
from torch.utils.checkpoint import checkpoint

from stackattn import nondeterministic_weights
from stackattn.ops import nondeterministic_readings
from stackattn.ops.pytorch import band

backends = pytest.mark.parametrize("backend", BACKENDS)
fast = pytest.mark.parametrize("backend", FAST)


def arguments(B, T, Q, S, m=3, scale=1.0, forbidden=0.0, dtype=torch.float64):
    """Transitions, and values of both signs."""
    values = torch.randn(B, T + 1, m, generator=seeded(100), dtype=torch.float64)
    return [*random_transitions(B, T, Q, S, scale, forbidden, seeded(), dtype, tied=scale > 1), values.to(dtype)]


def read(window, backend, lengths=None):
    return partial(nondeterministic_readings, lengths=lengths, window=window, backend=backend)


def weigh(window, backend):
    return partial(nondeterministic_weights, window=window, backend=backend)


@backends
@pytest.mark.parametrize(("T", "Q", "S"), [(8, 1, 1), (6, 1, 2), (5, 2, 1), (4, 2, 2)])
@pytest.mark.parametrize("window", [1, 2, 3, 4])
def test_every_run(T, Q, S, window, backend):
    inputs = random_transitions(2, T, Q, S, 1.0, 0.0, seeded())
    expected = with_gradients(partial(enumerate_weights, window=window), inputs)
    assert_close(with_gradients(weigh(window, backend), inputs), expected, 1e-10)
    if window < T:
        exact = nondeterministic_weights(*inputs, backend=backend)
        assert (exact - expected[0]).abs().max() > 1e-5  # the window matters


@backends
@pytest.mark.parametrize(("T", "Q", "S"), [(1, 2, 2), (2, 2, 2), (9, 3, 2)])
@pytest.mark.parametrize("more", [0, 1, 1000])
def test_a_window_of_all_steps_is_exact(T, Q, S, more, backend):
    inputs = arguments(2, T, Q, S)
    expected = with_gradients(partial(nondeterministic_readings, backend="reference"), inputs)
    assert_close(with_gradients(read(T + more, backend), inputs), expected, 1e-10)


@fast
@pytest.mark.parametrize(
    ("T", "Q", "S", "m", "window"), [(20, 2, 3, 4, 5), (21, 3, 3, 1, 8), (19, 1, 4, 8, 9), (17, 4, 2, 9, 16)]
)
def test_readings_and_gradients_equal_the_reference(T, Q, S, m, window, backend):
    inputs = arguments(2, T, Q, S, m, forbidden=0.1)
    expected = with_gradients(read(window, "reference"), inputs)
    assert_close(with_gradients(read(window, backend), inputs), expected, 1e-9)


@pytest.mark.parametrize(("Q", "S", "window"), [(3, 3, 5), (2, 2, 16), (1, 3, 24), (5, 1, 9), (2, 2, 65)])
def test_long_sequences_with_the_kernel(Q, S, window):
    """Several segments and blocks."""
    inputs = arguments(2, 150, Q, S, 5)
    expected = with_gradients(read(window, "torch"), inputs)
    assert_close(with_gradients(read(window, "cpp"), inputs), expected, 1e-10)


def test_segments_of_the_torch_backend(monkeypatch):
    monkeypatch.setattr(band, "_SHORTEST_SEGMENT", 1)  # segments of 4 * window steps
    inputs = arguments(2, 19, 2, 2, 2)
    expected = with_gradients(read(2, "reference"), inputs)
    assert_close(with_gradients(read(2, "torch"), inputs), expected, 1e-10)


@backends
def test_rows_sum_to_one_or_zero(backend):
    inputs = random_transitions(3, 14, 2, 2, 1.0, 0.8, seeded())
    mass = weigh(3, backend)(*inputs).sum((2, 3, 4))
    assert (((mass - 1).abs() < 1e-12) | (mass == 0)).all()
    assert 0 < (mass == 0).sum() < mass.numel()


@backends
def test_causality(backend):
    inputs = arguments(2, 12, 2, 2)
    expected = read(4, backend)(*inputs)
    for x in inputs[:3]:
        x[:, 7:] = x[:, 7:].flip(1)
    inputs[3][:, 8:] = 7.0
    found = read(4, backend)(*inputs)
    assert torch.equal(found[:, :7], expected[:, :7])
    assert (found[:, 7] != expected[:, 7]).any()


@backends
def test_hard_actions(backend):
    """An element older than the window can still be read and replaced, but popping it ends the run."""
    Q, S, window = 2, 3, 3
    deep = [("push", 1, 1), ("push", 0, 2), ("pop", 1, -1), ("replace", 0, 2), ("replace", 1, 1), ("replace", 1, 2)]
    found = weigh(window, backend)(*hard_transitions(deep, Q, S))
    assert torch.equal(found, list_stack_weights(deep, Q, S))  # element 0, now older than the window, is read
    ended = weigh(window, backend)(*hard_transitions([*deep, ("pop", 0, -1), ("replace", 0, 0)], Q, S))
    assert torch.equal(ended[:, :6, :7], found)
    assert (ended[:, 6:] == 0).all()
    in_time = [*deep[:3], ("pop", 0, -1)]
    expected = list_stack_weights(in_time, Q, S)
    assert torch.equal(weigh(4, backend)(*hard_transitions(in_time, Q, S)), expected)
    assert (weigh(3, backend)(*hard_transitions(in_time, Q, S))[:, 3] == 0).all()


@fast
def test_random_hard_actions(backend):
    steps = random_steps(60, 2, 2, seeded(4))
    inputs = hard_transitions(steps, 2, 2)
    assert torch.equal(weigh(60, backend)(*inputs), list_stack_weights(steps, 2, 2))


@fast
def test_gradcheck(backend):
    inputs = tuple(x.requires_grad_() for x in arguments(1, 5, 2, 2, 1))
    assert torch.autograd.gradcheck(read(3, backend), inputs)


@fast
def test_lengths(backend):
    """Steps beyond the lengths are not read, and their readings and gradients are zero."""
    T, lengths = 9, torch.tensor([9, 4, 0])
    inputs = arguments(3, T, 2, 2)
    for x in inputs:
        for b, n in enumerate(lengths.tolist()):
            x[b, n + x.shape[1] - T :] = torch.nan
    upstream = torch.randn(3, T, 2, 2, 3, generator=seeded(1), dtype=torch.float64)
    found, *grads = with_gradients(read(3, backend, lengths), inputs, upstream)
    for b, n in enumerate(lengths.tolist()):
        assert (found[b, n:] == 0).all()
        short = [x[b : b + 1, : n + x.shape[1] - T] for x in inputs]
        expected, *expected_grads = with_gradients(read(3, "reference"), short, upstream[b : b + 1, :n])
        assert_close([found[b : b + 1, :n]], [expected], 1e-10)
        for x, grad, wanted in zip(inputs, grads, expected_grads, strict=True):
            rows = n + x.shape[1] - T
            if n > 0:
                assert_close([grad[b : b + 1, :rows]], [wanted], 1e-9)
            assert (grad[b, rows:] == 0).all()


@fast
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes(dtype, backend):
    inputs = arguments(2, 9, 2, 2, dtype=dtype)
    found = with_gradients(read(4, backend), inputs)
    assert all(x.dtype == dtype for x in found)
    expected = with_gradients(read(4, "reference"), [x.double() for x in inputs])
    assert_close([x.double() for x in found], expected, 2e-6 if dtype == torch.float32 else 2e-2)


@fast
@pytest.mark.parametrize("scale", [30.0, 1000.0])
@pytest.mark.parametrize("forbidden", [0.0, 0.5])
def test_logits_of_any_scale(scale, forbidden, backend):
    inputs = arguments(3, 12, 2, 3, 2, scale, forbidden)
    expected = with_gradients(read(5, "reference"), inputs)
    assert_close(with_gradients(read(5, backend), inputs), expected, 1e-7, floor=1e-3)


@backends
def test_a_decoy_within_the_window(backend):
    """A run of weight 1 that ends at the last step hides two runs of weights e^-700 and e^-712."""
    inputs, expected = decoy(T=8)
    assert_close([weigh(8, backend)(*inputs)], [expected], 1e-10)


@pytest.mark.parametrize("window", [0, -3, 1.5, True, "64", torch.tensor(3)])
def test_a_wrong_window(window):
    inputs = arguments(1, 3, 1, 1)
    message = "window: expected a positive integer, or None for no limit, got "
    with pytest.raises(ValueError, match=message):
        nondeterministic_readings(*inputs, window=window)
    with pytest.raises(ValueError, match=message):
        nondeterministic_weights(*inputs[:3], window=window)


def test_wrong_values():
    *inputs, values = arguments(2, 5, 2, 2)
    with pytest.raises(ValueError, match=r"values: expected shape \(2, 6, m\) with m >= 1, got \(2, 5, 3\)"):
        nondeterministic_readings(*inputs, values[:, 1:], window=3)
    with pytest.raises(TypeError, match="values: expected one of float32"):
        nondeterministic_readings(*inputs, values.long(), window=3)


@backends
def test_bad_numbers_are_named(backend):
    for at, name in enumerate(("log_push", "log_replace", "log_pop")):
        inputs = arguments(3, 5, 2, 2)
        inputs[at][1, 2] = torch.nan
        with pytest.raises(ValueError, match=f"{name}: expected finite .* in sequence 1 at step 2"):
            read(2, backend)(*inputs)


@fast
def test_functional_transforms(backend):
    inputs = [x.unflatten(0, (2, 3)) for x in arguments(6, 5, 2, 2)]
    lengths = torch.tensor([[5, 0, 3], [1, 2, 4]])
    flat = read(2, backend, lengths.flatten())(*(x.flatten(0, 1) for x in inputs))
    found = torch.func.vmap(lambda n, *x: read(2, backend, n)(*x))(lengths, *inputs)
    assert_close([found.flatten(0, 1)], [flat], 1e-12)
    gradients = torch.func.vmap(torch.func.grad(lambda *x: read(2, backend)(*x).tanh().sum(), (0, 1, 2, 3)))(*inputs)
    leaves = [x.flatten(0, 1).requires_grad_() for x in inputs]
    expected = torch.autograd.grad(read(2, backend)(*leaves).tanh().sum(), leaves)
    assert_close([x.flatten(0, 1) for x in gradients], list(expected), 1e-11)


@pytest.mark.slow
@fast
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(backend, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *x: read(3, backend)(*x).tanh(), fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    for T in (5, 7):
        inputs = arguments(2, T, 2, 2)
        expected = with_gradients(lambda *x: read(3, backend)(*x).tanh(), inputs)
        assert_close(with_gradients(compiled, inputs), expected, 1e-12)


@pytest.mark.slow
@fast
@pytest.mark.parametrize("lengths", [None, torch.tensor([5, 3])], ids=["full", "lengths"])
def test_opcheck(lengths, backend):
    steps = torch.randn(2, 7, 2, 2, 10, dtype=torch.float64)  # two earlier steps
    values, history = torch.randn(2, 5, 3, dtype=torch.float64), torch.rand(2, 3, 21, dtype=torch.float64)
    rows = torch.ops.stackattn.windowed_rows(steps, values, history, lengths, 4, backend)
    backward = (torch.randn_like(rows), steps, values, history, rows, lengths, 4, backend)
    torch.library.opcheck(torch.ops.stackattn.windowed_rows_backward.default, backward)
    inputs = [x.requires_grad_() for x in (steps, values, history)]
    torch.library.opcheck(torch.ops.stackattn.windowed_rows.default, (*inputs, lengths, 4, backend))


def test_ten_thousand_steps(threads):
    """Results are finite and have the same bits for any number of threads, although the mass is far below 1e-308."""
    inputs, results = arguments(3, 10_000, 1, 2, 2, dtype=torch.float32), []
    for count in (1, 2, 3):
        threads(count)
        results.append(with_gradients(read(6, "cpp"), inputs))
    assert all(x.isfinite().all() for x in results[0])
    assert all((x[:, -100:] != 0).any() for x in results[0])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    end = read(6, "torch")(*(x[:, -100:].double() for x in inputs[:3]), inputs[3][:, -101:].double())
    assert_close([results[0][0][:, -1].double()], [end[:, -1]], 1e-2)  # steps before the last 100 hardly matter


def hidden_run(weight, others=-torch.inf):
    """A run with log weight `weight` from the first step on, and a decoy whose log weight falls by 100 at each step.

    All other transitions have log weight `others`.
    """
    push, replace, pop = (x.fill_(others) for x in random_transitions(1, 12, 1, 3))
    replace[0, 0, 0, 0, 0, 1], replace[0, 1:, 0, 1, 0, 1] = 0.0, -100.0
    replace[0, 0, 0, 0, 0, 2], replace[0, 1:, 0, 2, 0, 2] = weight, 0.0
    return [push, replace, pop]


@fast
@pytest.mark.parametrize(("weight", "others"), [(-650.0, -torch.inf), (-800.0, -torch.inf), (-740.0, -740.0)])
def test_no_run_is_lost(weight, others, backend):
    """In 4 steps, the mass falls by a factor of only e^400, but the hidden run's share is below e^-600 at first."""
    inputs = hidden_run(weight, others)
    expected = with_gradients(weigh(4, "reference"), inputs)
    assert_close(with_gradients(weigh(4, backend), inputs), expected, 1e-10, floor=1e-3)
    assert expected[0][0, 11, :, 0, 2].sum() > 0.99


@fast
def test_gradients_of_entries_without_runs(backend):
    """Gradients are finite although symbol 2, which no run reaches, keeps its weight while that of all runs falls."""
    push, replace, pop = hidden_run(-torch.inf)
    replace[0, 1:, 0, 1, 0, 1] = -140.0
    found = with_gradients(weigh(4, backend), [push, replace, pop])
    assert_close(found, with_gradients(weigh(4, "reference"), [push, replace, pop]), 1e-10, floor=1e-3)


@fast
def test_backward_twice_and_checkpointing(backend):
    inputs = [x.requires_grad_() for x in arguments(2, 9, 2, 2)]
    y = read(4, backend)(*inputs)
    first, again = (torch.autograd.grad(y.tanh().sum(), inputs, retain_graph=True) for _ in range(2))
    saved = checkpoint(read(4, backend), *inputs, use_reentrant=False)
    for other in (again, torch.autograd.grad(saved.tanh().sum(), inputs)):
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_memory_is_linear():
    """Each step keeps its transitions (189 numbers), a row of 64 numbers and its readings, whatever the window."""
    inputs = [x.requires_grad_() for x in arguments(1, 200, 3, 3, 5)]

    def kept_bytes(window):
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
            read(window, "cpp")(*inputs)
        return sum(x.nbytes for x in {x.data_ptr(): x for x in kept}.values())

    assert kept_bytes(16) == kept_bytes(64) < 200 * 8 * 320


@fast
def test_gradients_before_a_step_without_transitions(backend):
    """The sequence is computed again with wider exponents, and its rows are then used in float64."""
    inputs = arguments(2, 6, 2, 2)
    for x in inputs[:3]:
        x[1, 4] = -torch.inf
    expected = with_gradients(read(3, "reference"), inputs)
    assert_close(with_gradients(read(3, backend), inputs), expected, 1e-10)
