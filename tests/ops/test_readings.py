"""Readings of both stacks against weights times values, with all gradients, limits and transforms."""

import pytest
import torch
from oracles import with_gradients
from stacks import BACKENDS, FAST, HARD_STACKS, STACKS, Nondeterministic, Superposition, assert_close, seeded
from test_weights import check_recorded
from torch.utils.checkpoint import checkpoint

from stackattn.ops import nondeterministic_readings, superposition_readings
from stackattn.ops.cpp import native
from stackattn.ops.memory import chart_memory

all_stacks = pytest.mark.parametrize("stack", STACKS)


def read(stack, *arguments, **options):
    function = superposition_readings if isinstance(stack, Superposition) else nondeterministic_readings
    return function(*arguments, **options)


def arguments(stack, B, T, m=3, seed=0, dtype=torch.float64):
    """The operator's inputs, then values of both signs."""
    rows = T if isinstance(stack, Superposition) else T + 1
    values = torch.randn(B, rows, m, generator=seeded(seed + 100), dtype=torch.float64).to(dtype)
    return [*stack.inputs(B, T, seed, dtype), values]


def product(stack, lengths=None, backend="reference"):
    """Attention weights times values."""

    def run(*inputs):
        weights = stack.operator(*inputs[:-1], lengths, backend=backend)
        if isinstance(stack, Superposition):
            return weights @ inputs[-1]
        return torch.einsum("btiqs,bim->btqsm", weights, inputs[-1])

    return run


def reading(stack, backend, lengths=None):
    return lambda *inputs: read(stack, *inputs, lengths, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("stack", "T", "m"),
    [(stack, T, 3) for stack in STACKS for T in (0, 1, 2, 7, 8, 9)]
    + [(stack, 5, m) for stack in (Superposition(), Nondeterministic(2, 2)) for m in (1, 7, 8, 15, 16, 17, 40)]
    + [(Nondeterministic(Q, S), 5, 2) for Q, S in [(1, 1), (2, 3), (4, 2), (5, 1)]],
)
def test_readings_are_weights_times_values(stack, T, m, backend):
    inputs = arguments(stack, 2, T, m)
    assert_close(with_gradients(reading(stack, backend), inputs), with_gradients(product(stack), inputs), 1e-9)


@pytest.mark.parametrize(
    ("stack", "T"),
    [(Superposition(), 47), (Superposition(), 100), (Nondeterministic(3, 3), 61), (Nondeterministic(2, 2), 50)]
    + [pytest.param(Nondeterministic(3, 2), T, marks=pytest.mark.slow) for T in (127, 128, 129, 140)],
)
def test_long_sequences_with_the_kernel(stack, T):
    """Several blocks of the chart, and the length at which their size changes."""
    inputs = arguments(stack, 2, T, 5)
    expected = with_gradients(product(stack, backend="torch"), inputs)
    assert_close(with_gradients(reading(stack, "cpp"), inputs), expected, 1e-11)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("case", ["small", "long", "sharp"])
def test_recorded_superposition_numbers(case, backend):
    def run(logits, values):
        return superposition_readings(logits.softmax(-1), values, backend=backend)

    check_recorded("superposition", case, run, ["action_logits", "values"])


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("case", ["tiny", "marked", "hardest", "sharp"])
def test_recorded_nondeterministic_numbers(case, backend):
    def run(log_push, log_replace, log_pop, values, bottom):
        elements = torch.cat([bottom.expand(len(values), 1, -1), values], 1)
        return nondeterministic_readings(log_push, log_replace, log_pop, elements, backend=backend)

    check_recorded("nondeterministic", case, run, ["log_push", "log_replace", "log_pop", "values", "bottom"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stack", HARD_STACKS)
def test_logits_beyond_the_range_of_float64(stack, backend):
    inputs = arguments(stack, 3, 6)
    assert_close(with_gradients(reading(stack, backend), inputs), with_gradients(product(stack), inputs), 1e-9, 1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@all_stacks
def test_lengths(stack, backend):
    """Steps beyond the lengths are not read, and their readings and gradients are zero."""
    T, lengths = 9, torch.tensor([9, 4, 0])
    inputs = arguments(stack, 3, T)
    found = with_gradients(reading(stack, backend, lengths), inputs)
    for b, n in enumerate(lengths.tolist()):
        short = [x[b : b + 1, : n + x.shape[1] - T] for x in inputs]
        readings_, *grads = found
        upstream = torch.randn(readings_.shape, generator=seeded(1), dtype=torch.float64)[b : b + 1, :n]
        expected, *expected_grads = with_gradients(product(stack), short, upstream)
        assert_close([readings_[b : b + 1, :n]], [expected], 1e-9)
        assert (readings_[b, n:] == 0).all()
        for x, grad, wanted in zip(inputs, grads, expected_grads, strict=True):
            rows = n + x.shape[1] - T
            if n > 0:
                assert_close([grad[b : b + 1, :rows]], [wanted], 1e-9, 1e-12)
            assert (grad[b, rows:] == 0).all()
    spoilt = [x.clone() for x in inputs]
    for x in spoilt:
        for b, n in enumerate(lengths.tolist()):
            x[b, n + x.shape[1] - T :] = torch.nan
    again = with_gradients(reading(stack, backend, lengths), spoilt)
    assert all(torch.equal(a, b) for a, b in zip(again, found, strict=True))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint16])
def test_lengths_with_narrow_dtypes_do_not_overflow(dtype, backend):
    """The bottom element has a value in addition to those of the steps; 127 + 1 is -128 in int8."""
    stack = Nondeterministic(1, 1)
    inputs, lengths = arguments(stack, 2, 127), torch.tensor([127, 100])
    found, expected = (read(stack, *inputs, n, backend=backend) for n in (lengths.to(dtype), lengths))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@all_stacks
def test_other_dtypes_with_the_kernel(stack, dtype):
    inputs = arguments(stack, 2, 9, dtype=dtype)
    found = with_gradients(reading(stack, "cpp"), inputs)
    assert all(x.dtype == dtype for x in found)
    expected = with_gradients(product(stack), [x.double() for x in inputs])
    assert_close([x.double() for x in found], expected, 2e-6 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_readings_are_rounded_once(dtype, backend):
    stack = Nondeterministic(3, 3)
    inputs = arguments(stack, 2, 6, dtype=dtype)
    upstream = torch.randn(reading(stack, backend)(*inputs).shape, generator=seeded()).to(dtype)
    found = with_gradients(reading(stack, backend), inputs, upstream)
    expected = with_gradients(product(stack), [x.double() for x in inputs], upstream)
    for a, b in zip(found, expected, strict=True):
        assert ((a.double() - b).abs() <= 0.51 * torch.finfo(dtype).eps * b.abs() + 1e-6).all()


@pytest.mark.parametrize("stack", [*STACKS[1:], *HARD_STACKS])
@pytest.mark.parametrize("lengths", [None, torch.tensor([11, 0, 5])], ids=["full", "lengths"])
def test_kept_charts_and_recomputed_charts_agree(stack, lengths, monkeypatch):
    """The results agree bit for bit. STACKATTN_CHART_MEMORY is read at each call."""
    kept = []
    allocate = native.kept_charts
    monkeypatch.setattr(native, "kept_charts", lambda *args: kept.append(allocate(*args)) or kept[-1])
    inputs, results = arguments(stack, 3, 11), []
    for limit in ("", "0", "0.001", "1000"):
        monkeypatch.setenv("STACKATTN_CHART_MEMORY", limit)
        results.append(with_gradients(reading(stack, "cpp", lengths), inputs))
    assert [x is not None for x in kept] == [True, False, False, True]
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_nothing_is_kept_without_gradients(monkeypatch):
    monkeypatch.setattr(native, "kept_charts", lambda *args: pytest.fail("memory for charts was allocated"))
    stack = Nondeterministic(2, 2)
    with torch.no_grad():
        read(stack, *(x.requires_grad_() for x in arguments(stack, 2, 5)))
    read(stack, *arguments(stack, 2, 5))


def test_a_wrong_limit(monkeypatch):
    monkeypatch.setenv("STACKATTN_CHART_MEMORY", "much")
    with pytest.raises(ValueError, match="STACKATTN_CHART_MEMORY: expected a number of MB, got 'much'"):
        with_gradients(reading(STACKS[1], "cpp"), arguments(STACKS[1], 1, 3))


@pytest.mark.parametrize("stack", [*STACKS, *HARD_STACKS, Nondeterministic(3, 3)])
def test_any_number_of_threads(stack, threads):
    inputs, results = arguments(stack, 7, 30), []
    for count in (1, 2, 3, 16):
        threads(count)
        results.append(with_gradients(reading(stack, "cpp"), inputs))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@all_stacks
def test_gradcheck(stack):
    inputs = tuple(x.requires_grad_() for x in arguments(stack, 1, 4, 2))
    for backend in ("cpp", "reference"):
        assert torch.autograd.gradcheck(reading(stack, backend), inputs)


@all_stacks
def test_second_derivatives(stack):
    """Second derivatives come from the reference."""

    def penalty(backend):
        inputs = [x.requires_grad_() for x in arguments(stack, 2, 4, 2)]
        first = torch.autograd.grad(reading(stack, backend)(*inputs).tanh().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), inputs)

    assert_close(penalty("cpp"), penalty("reference"), 1e-8)


@all_stacks
def test_backward_twice_and_checkpointing(stack):
    inputs = [x.requires_grad_() for x in arguments(stack, 2, 6)]
    y = reading(stack, "cpp")(*inputs)
    first, again = (torch.autograd.grad(y.tanh().sum(), inputs, retain_graph=True) for _ in range(2))
    saved = checkpoint(reading(stack, "cpp"), *inputs, use_reentrant=False)
    for other in (again, torch.autograd.grad(saved.tanh().sum(), inputs)):
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@all_stacks
def test_saved_tensors_in_other_memory(stack):
    """Hooks may move saved tensors to memory that is not aligned."""

    def moved(x):
        memory = torch.empty(x.numel() + 1, dtype=x.dtype)
        return memory[1:].copy_(x.flatten()).view(x.shape)

    inputs = arguments(stack, 2, 6)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, moved):
        found = with_gradients(reading(stack, "cpp"), inputs)
    expected = with_gradients(reading(stack, "cpp"), inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_inference_mode():
    for stack in STACKS:
        inputs = arguments(stack, 2, 6)
        with torch.inference_mode():
            found = read(stack, *inputs)
        assert torch.equal(found, read(stack, *inputs))


@all_stacks
def test_functional_transforms(stack):
    inputs = [x.unflatten(0, (2, 3)) for x in arguments(stack, 6, 5)]
    lengths = torch.tensor([[5, 0, 3], [1, 2, 4]])
    run = reading(stack, "cpp")
    found = torch.func.vmap(lambda n, *x: read(stack, *x, n, backend="cpp"))(lengths, *inputs)
    flat = read(stack, *(x.flatten(0, 1) for x in inputs), lengths.flatten(), backend="cpp")
    assert_close([found], [flat.unflatten(0, (2, 3))], 1e-12)
    numbers = tuple(range(len(inputs)))
    gradients = torch.func.vmap(torch.func.grad(lambda *x: run(*x).tanh().sum(), numbers))(*inputs)
    leaves = [x.flatten(0, 1).requires_grad_() for x in inputs]
    expected = torch.autograd.grad(run(*leaves).tanh().sum(), leaves)
    assert_close([x.flatten(0, 1) for x in gradients], list(expected), 1e-11)


@pytest.mark.slow
@all_stacks
@pytest.mark.parametrize("lengths", [None, torch.tensor([5, 3])], ids=["full", "lengths"])
def test_compile(stack, lengths):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *x: read(stack, *x, lengths, backend="cpp").tanh(), fullgraph=True, backend="aot_eager"
    )
    inputs = arguments(stack, 2, 5)
    expected = with_gradients(lambda *x: read(stack, *x, lengths, backend="cpp").tanh(), inputs)
    assert_close(with_gradients(compiled, inputs), expected, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [None, torch.tensor([5, 3])], ids=["full", "lengths"])
def test_opcheck(lengths):
    steps = torch.randn(2, 5, 2, 2, 10, dtype=torch.float64)
    values, grad = torch.randn(2, 6, 3, dtype=torch.float64), torch.randn(2, 5, 2, 2, 3, dtype=torch.float64)
    torch.library.opcheck(torch.ops.stackattn.readings_backward.default, (grad, steps, values, lengths))
    inputs = steps.requires_grad_(), values.requires_grad_(), lengths
    torch.library.opcheck(torch.ops.stackattn.readings.default, inputs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_run_survives(backend):
    """Readings and gradients are zero where all transitions are forbidden."""
    stack = Nondeterministic(2, 2)
    inputs = arguments(stack, 2, 4)
    for x in inputs[:-1]:
        x[:, 2:] = -torch.inf
    found, *gradients = with_gradients(reading(stack, backend), inputs)
    assert (found[:, 2:] == 0).all()
    assert (found[:, :2] != 0).any()
    assert all((x[:, 2:] == 0).all() for x in gradients[:-1])


@pytest.mark.parametrize(
    ("error", "change", "message"),
    [
        (ValueError, lambda v: v[:, 1:], r"values: expected shape \(2, 6, m\) with m >= 1, got \(2, 5, 3\)"),
        (ValueError, lambda v: v[..., :0], r"values: expected shape \(2, 6, m\) with m >= 1, got \(2, 6, 0\)"),
        (TypeError, lambda v: v.long(), "values: expected one of float32"),
        (TypeError, lambda v: v.tolist(), "values: expected a tensor, got list"),
    ],
)
def test_errors_name_the_argument(error, change, message):
    *inputs, values = arguments(Nondeterministic(2, 2), 2, 5)
    with pytest.raises(error, match=message):
        nondeterministic_readings(*inputs, change(values))


@pytest.mark.parametrize("backend", BACKENDS)
@all_stacks
def test_bad_numbers_are_named(stack, backend):
    for at, name in enumerate(stack.names):
        inputs = arguments(stack, 3, 5)
        inputs[at][1, 2] = torch.nan
        with pytest.raises(ValueError, match=f"{name}: expected finite .* in sequence 1 at step 2"):
            read(stack, *inputs, backend=backend)


def test_memory_of_kept_charts():
    """About 1.1 MB for each sequence at T = 61 with three states and three symbols."""
    steps, values = torch.zeros(4, 61, 3, 3, 21), torch.zeros(4, 62, 5)
    kept = native.kept_charts(steps, values, 10**9)
    assert 1.0e6 < kept.nbytes / 4 < 1.3e6
    assert native.kept_charts(steps, values, kept.nbytes - 1) is None
    assert chart_memory(256) == 256 * 10**6
