"""Tests on a GPU (`pytest -m gpu`): the numbers are those of the CPU and bitwise repeatable, and nothing waits."""

import copy

import pytest
import torch

import stackattn
from stackattn.config import from_values
from stackattn.models import TransformerLM, TransformerLMConfig
from stackattn.models.generation import beam_search, greedy
from stackattn.nn import NondeterministicStackAttention, capture
from stackattn.training import run_experiment
from stackattn.training.cfl import CFLConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
BACKENDS = ("torch", "triton")


@pytest.fixture(autouse=True)
def _without_deterministic_algorithms():
    """Disable the deterministic mode, which tests/conftest.py enables: some of PyTorch's own kernels raise in it."""
    torch.use_deterministic_algorithms(False)


def transitions(B=2, T=12, Q=3, S=3, scale=1.0):
    shapes = (B, T, Q, S, Q, S), (B, T, Q, S, Q, S), (B, T, Q, S, Q)
    return [scale * torch.randn(shape, dtype=torch.float64) for shape in shapes]


def results(inputs, backend, lengths=None, **options):
    """Attention weights and gradients, copied to the CPU."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    operator = stackattn.nondeterministic_weights if len(inputs) == 3 else stackattn.superposition_weights
    weights = operator(*inputs, lengths, backend=backend, **options)
    grad = torch.randn(weights.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grads = torch.autograd.grad(weights, inputs, grad.to(weights))
    return [x.detach().cpu() for x in (weights, *grads)]


def on_gpu(inputs):
    return [x.cuda() for x in inputs]


def assert_close(found, expected):
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("T", "Q", "S"), [(0, 2, 2), (1, 2, 2), (5, 1, 1), (33, 3, 3), (20, 4, 8)])
def test_nondeterministic(backend, T, Q, S):
    inputs = transitions(2, T, Q, S)
    assert_close(results(on_gpu(inputs), backend), results(inputs, "cpp"))


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_lengths_forbidden_transitions_and_rows_without_runs(backend, window):
    inputs, lengths = transitions(4, 9, 2, 2), torch.tensor([9, 0, 4, 9])
    inputs[0][:, 2, :, 1] = -torch.inf
    for x in inputs:
        x[2, 4:] = torch.nan
        x[3, 6] = -torch.inf
    found = results(on_gpu(inputs), backend, lengths.cuda(), window=window)
    assert_close(found, results(inputs, "cpp", lengths, window=window))
    assert not found[0][3, 6:].any()


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_batches_and_batches_in_parts(monkeypatch, backend, window):
    for B, memory in ((0, "1000"), (3, "0.0001")):
        monkeypatch.setenv("STACKATTN_CHART_MEMORY", memory)
        inputs = transitions(B, 5, 2, 2)
        assert_close(results(on_gpu(inputs), backend, window=window), results(inputs, "cpp", window=window))


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_strides_and_dtypes(backend):
    inputs = [x.float().mT.contiguous().mT for x in transitions(2, 4, 2, 2)]
    values, lengths = torch.randn(2, 5, 3), torch.tensor([4, 2], dtype=torch.int32)
    found = stackattn.nondeterministic_readings(*on_gpu([*inputs, values, lengths]), backend=backend)
    expected = stackattn.nondeterministic_readings(*inputs, values, lengths, backend="cpp")
    torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_device_that_is_not_the_current_one(backend):
    inputs = transitions(2, 5, 2, 2)
    assert_close(results([x.to("cuda:1") for x in inputs], backend), results(inputs, "cpp"))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("T", "Q", "S", "window"), [(1, 2, 2, 1), (33, 3, 3, 2), (33, 3, 3, 16), (20, 4, 8, 50)])
def test_windows(backend, T, Q, S, window):
    inputs, lengths = transitions(2, T, Q, S), torch.tensor([T, T // 2])
    found = results(on_gpu(inputs), backend, lengths.cuda(), window=window)
    assert_close(found, results(inputs, "cpp", lengths, window=window))


@pytest.mark.parametrize("backend", BACKENDS)
def test_superposition(backend):
    actions = torch.randn(3, 40, 3, dtype=torch.float64).softmax(-1)
    lengths = torch.tensor([40, 7, 0])
    assert_close(results([actions.cuda()], backend, lengths.cuda()), results([actions], "cpp", lengths))


@pytest.mark.parametrize("backend", BACKENDS)
def test_wide_logits_are_nan_or_exact(backend):
    inputs = transitions(2, 8, 2, 2, scale=1000.0)
    assert results(on_gpu(inputs), backend)[0].isnan().any()
    with stackattn.immediate_checks():
        assert_close(results(on_gpu(inputs), backend), results(inputs, "cpp"))


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("backend", BACKENDS)
def test_bitwise_repeatable(backend, window):
    inputs = on_gpu(transitions())
    assert all(map(torch.equal, *(results(inputs, backend, window=window) for _ in range(2))))
    if window is None:
        actions = [torch.randn(3, 20, 3, dtype=torch.float64).softmax(-1).cuda()]
        assert all(map(torch.equal, *(results(actions, backend) for _ in range(2))))


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_waits(backend, window):
    inputs = on_gpu(transitions())
    results(inputs, backend, window=window)  # compiles the kernels and compares them with `torch`
    inputs = [x.requires_grad_() for x in inputs]
    torch.cuda.set_sync_debug_mode("error")
    try:
        weights = stackattn.nondeterministic_weights(*inputs, window=window, backend=backend)
        torch.autograd.grad(weights, inputs, torch.ones_like(weights))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("backend", BACKENDS)
def test_peak_memory(backend):
    """Memory is needed for charts, their gradients, and a few tensors of the size of the result."""
    inputs = [x.requires_grad_() for x in on_gpu(transitions(4, 100))]
    stackattn.nondeterministic_weights(*inputs, backend=backend)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    weights = stackattn.nondeterministic_weights(*inputs, backend=backend)
    torch.autograd.grad(weights, inputs, torch.ones_like(weights))
    charts = 8 * 2 * 4 * 101 * 101 * 3 * 3 * 3
    share = 2.5 if backend == "torch" else 1.5  # packed triangles are half as large
    assert torch.cuda.max_memory_allocated() - before < share * charts + 12 * weights.nbytes


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_peak_memory_of_a_window(backend):
    """Readings need less than a quarter of the memory that charts without a window would need."""
    inputs = [x.requires_grad_() for x in on_gpu([*transitions(1, 800), torch.randn(1, 801, 5, dtype=torch.float64)])]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    readings = stackattn.nondeterministic_readings(*inputs, window=16, backend=backend)
    torch.autograd.grad(readings, inputs, torch.ones_like(readings))
    charts = 8 * 2 * 801 * 801 * 3 * 3 * 3
    assert torch.cuda.max_memory_allocated() - before < charts / 4


@pytest.mark.parametrize("window", [None, 4])
def test_a_captured_layer_gives_the_same_results(window):
    layer = NondeterministicStackAttention(16, 2, 2, 4, window=window).cuda()
    plain, x = copy.deepcopy(layer), torch.randn(3, 12, 16, device="cuda", requires_grad=True)
    capture(layer, torch.zeros_like(x, requires_grad=True))
    for _ in range(2):
        found, expected = (torch.autograd.grad(module(x).square().sum(), x)[0] for module in (layer, plain))
        torch.testing.assert_close(found, expected)


STACKS = ("superposition-8", "superposition-8d3", "nondeterministic-2-2-4", "nondeterministic-2-2-4w3", "stratified-8")


@pytest.mark.parametrize("layers", [f"1.{stack}.1" for stack in STACKS])
def test_training_and_generation(layers):
    model = TransformerLM(TransformerLMConfig(input_size=9, output_size=9, layers=layers, d_model=16, heads=2)).cuda()
    tokens = torch.randint(9, (4, 12), device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for dtype in (None, torch.bfloat16):
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            loss = model(tokens, torch.tensor([12, 3, 7, 1], device="cuda")).float().square().mean()
        loss.backward()
        optimizer.step()
        assert loss.isfinite()
    model.eval()
    twin = copy.deepcopy(model).cpu()
    for decode in (greedy, beam_search):
        found = decode(model, tokens[:, :3], max_new_tokens=6, eos=8)
        expected = decode(twin, tokens[:, :3].cpu(), max_new_tokens=6, eos=8)
        assert [x.tokens for x in found] == [x.tokens for x in expected]


def test_a_run_moves_between_devices(tmp_path):
    language = {"name": "dyck", "lengths": [4, 8], "train_batches": 4, "validation_batches": 2, "batch_size": 4}
    model = {"layers": "1.nondeterministic-2-2-3", "d_model": 8, "heads": 2}
    config = from_values(CFLConfig, {"language": language, "model": model, "training": {"max_epochs": 3}})
    for device in ("cuda", "cpu", "cuda"):  # one batch each
        run_experiment(config, tmp_path / "run", resume=True, minutes=0, device=device)
    result = run_experiment(config, tmp_path / "run", resume=True, device="cpu")
    assert result["evaluations"] == 3
