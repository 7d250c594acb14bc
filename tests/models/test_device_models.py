"""Layers, models, generation and training steps on a simulated GPU.

All tensors are on the device. Nothing waits for it except generation, and documents whose `starts` are on the device.
"""

import copy
import math
import sys

import pytest
import torch
from fake_gpu import Waits, fake_autocast, fake_gpu
from gpu_with_values import gpu_with_values
from subjects import LAYERS, MODELS, NAMES, TOKENS, D, make

from stackattn.models import LSTMLM, Seq2SeqTransformer, generation
from stackattn.models.generation import beam_search, greedy, sample
from stackattn.ops import checks, extension, immediate, readings, states, stratified
from stackattn.ops.pytorch import columns, operators, window
from stackattn.training.devices import autocast

B, T = 3, 5
CHARTS = [(operators, "nondeterministic"), (operators, "superposition"), (window, "forward"), (stratified, "_weights")]


@pytest.fixture(autouse=True)
def _without_addresses(monkeypatch):
    for module in (extension, states):  # fake tensors have no addresses
        monkeypatch.setattr(module, "same_place", lambda one, other: one is other)


def on(device, name):
    with device:
        return {**LAYERS, **MODELS}[name]()


def inputs(device, name):
    if name in LAYERS:
        return torch.randn(B, T, D, device=device)
    return torch.randint(TOKENS - 1, (B, T), device=device)


def full(module, x, lengths):
    return module(x, x, lengths, lengths) if isinstance(module, Seq2SeqTransformer) else module(x, lengths)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_training_step(name, padded):
    with fake_gpu() as gpu:
        module, x = on(gpu, name), inputs(gpu, name)
        lengths = torch.full((B,), 3, device=gpu) if padded else None
        optimizer = torch.optim.Adam(module.parameters())
        y = full(module, x, lengths)
        y.square().sum().backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        assert y.device == gpu
        assert all(p.grad is None or p.grad.device == gpu for p in module.parameters())


def extended(module, x, lengths, state):
    """Return the results and the state of three chunks; the order of the sequences is reversed after each chunk."""
    results = []
    for chunk, taken in ((x[:, :3], lengths), (x[:, 3:4], None), (x[:, 4:], None)):
        y, state = module.extend(chunk, state, taken)
        state = state.reorder(torch.arange(B, device=x.device).flip(0))
        results.append(y)
    return torch.cat(results, 1), state


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_cpu(name):
    """A full pass, and two passes in chunks; the state between them is restarted, or detached in the case of LSTMs."""
    subject = make(name)
    modules = {"cpu": subject.module, "cuda": copy.deepcopy(subject.module)}
    found = {}
    with gpu_with_values() as gpu:
        data = subject.inputs(B, T), torch.tensor([2, 3, 1]), torch.tensor([True, False, False])
        for device, module in modules.items():
            x, lengths, rows = (tensor.to(device) for tensor in data)
            module.to(device)
            gpu.strict = device == "cuda"
            state = module.initial_state(*((x, lengths) if isinstance(module, Seq2SeqTransformer) else (B,)))
            results = [full(module, x, lengths)]
            y, state = extended(module, x, lengths, state)
            y, state = (y, state.detach()) if name.startswith("LSTM") else (y, state.restart(rows))
            results += [y, extended(module, x, lengths, state)[0]]
            sum(y.square().sum() for y in results).backward()
            assert {y.device.type for y in results} == {device}
            gpu.strict = False
            found[device] = [y.detach().cpu() for y in results] + [p.grad.cpu() for p in module.parameters()]
    for x, y in zip(*found.values(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-11)


STARTS = torch.tensor([[1, 0, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 1, 1]]).bool()


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(("Seq2Seq", "layer", "softmax"))])
def test_documents_that_share_a_row(name):
    """Positions are computed on the CPU. Without lengths and with `starts` on the CPU, nothing is read from the GPU."""
    with gpu_with_values() as gpu:
        module, x = on(gpu.device, name), inputs(gpu.device, name)
        loss = module(x, starts=STARTS).sum()
        if not isinstance(module, LSTMLM):
            y, state = module.extend(x, module.initial_state(B), starts=STARTS)
            z, _ = module.extend(x, state, starts=STARTS)
            loss = loss + y.sum() + z.sum()
        loss.backward()
        assert gpu.reads == gpu.copies == []
        y = module.eval()(x, torch.full((B,), 4, device=gpu.device), starts=STARTS.to(gpu.device, non_blocking=True))
        assert gpu.reads == [(B, T), (B,)]
        expected = module.cpu()(x.cpu(), torch.full((B,), 4), starts=STARTS)
        torch.testing.assert_close(y.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in LAYERS if not name.startswith(("layer", "softmax"))])
def test_weights_and_actions(name):
    with fake_gpu() as gpu:
        layer, x = on(gpu, name), inputs(gpu, name)
        lengths = torch.full((B,), 3, device=gpu)
        results = layer(x, lengths, return_weights=True), layer.actions(x, lengths)
        assert {leaf.device for leaf in torch.utils._pytree.tree_leaves(results)} == {gpu}


def test_a_constant_on_the_cpu_is_noticed():
    """Show that the tests of this file can fail."""
    with fake_gpu() as gpu:
        module, x = on(gpu, "Tf+Nd"), inputs(gpu, "Tf+Nd")
        module.trunk.layers[1].attention.function.initial_values = lambda batch_size: torch.zeros(batch_size, 1, 3)
        with pytest.raises((Waits, RuntimeError)):
            module(x)


@pytest.mark.parametrize("decode", [greedy, sample, beam_search])
@pytest.mark.parametrize("name", ["Tf+Nd", "LSTM+Sup", "LSTM+Nd", "Seq2Seq, mixed"])
def test_generation_reads_only_tokens_and_log_probabilities(monkeypatch, name, decode):
    reads = []

    def zeros(shape):
        return [zeros(shape[1:]) for _ in range(shape[0])] if shape else 0

    def on_host(x):
        reads.append(x.shape)
        return zeros(x.shape)

    monkeypatch.setattr(generation, "_on_host", on_host)
    monkeypatch.setattr(generation, "_has_nan", lambda x: False)
    # The indices of unfinished beams and prompts are computed on the CPU from the tokens that were read.
    monkeypatch.setattr(generation, "_on_device", lambda data, device: torch.zeros(len(data), device=device).long())
    with fake_gpu() as gpu:
        model = on(gpu, name)
        prompts = torch.zeros(B, 2, dtype=torch.int64, device=gpu)
        state = model.initial_state(prompts) if isinstance(model, Seq2SeqTransformer) else None
        results = decode(model, prompts, state, max_new_tokens=3, eos=TOKENS - 1)
    assert [result.tokens for result in results] == [[0, 0, 0]] * B
    assert len(reads) == 2 * 3  # tokens and log-probabilities, in three steps


@pytest.mark.parametrize("name", MODELS)
def test_generation_with_all_options(name):
    model = make(name).module
    prompts, lengths = torch.randint(TOKENS - 1, (9, 2)), torch.tensor([2, 1, 2, 2, 2, 1, 2, 2, 2])

    def generated(device):
        state = model.initial_state(prompts.to(device)) if isinstance(model, Seq2SeqTransformer) else None
        given, options = (prompts.to(device), state), {"max_new_tokens": 3, "lengths": lengths.to(device)}
        yield greedy(model, *given, **options)
        yield sample(model, *given, top_k=3, top_p=0.9, generator=torch.Generator().manual_seed(0), **options)
        yield beam_search(model, *given, beam_size=2, eos=1, **options)

    expected = list(generated("cpu"))
    with gpu_with_values() as gpu:
        model.to(gpu.device)
        found = generated("cuda")
        for results in expected:
            gpu.reads.clear()
            for x, y in zip(next(found), results, strict=True):
                assert x.tokens == y.tokens
                assert math.isclose(x.log_prob, y.log_prob, rel_tol=1e-9)
            # at most one read of the lengths, and three in each of 3 steps: the nan check, tokens, log-probabilities
            assert len(gpu.reads) <= 1 + 3 * 3


@pytest.mark.skipif(sys.platform != "linux", reason="replaces a device guard in PyTorch's shared library for Linux")
@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="PyTorch's attention would look for a GPU")
@pytest.mark.parametrize("name", NAMES)
def test_autocast_on_cuda(monkeypatch, name):
    """Results are in bfloat16, or in float32 after a residual connection; charts are in float64."""
    charts = []

    def recorded(module, function):
        original = getattr(module, function)

        def call(*args, **options):
            result = original(*args, **options)
            charts.append((result[0] if isinstance(result, tuple) else result).dtype)
            return result

        monkeypatch.setattr(module, function, call)

    for module, function in CHARTS:
        recorded(module, function)
    with fake_autocast() as gpu:
        module, x = on(gpu, name), inputs(gpu, name)
        y = full(module, x, torch.full((B,), 3, device=gpu))
    assert y.dtype == (torch.float32 if name.startswith("layer") else torch.bfloat16)
    assert set(charts) <= {torch.float64}
    assert charts or not name.startswith(("nondeterministic", "stratified", "Tf+Nd", "Tf+Strat"))


@pytest.mark.usefixtures("without_onednn")
def test_charts_stay_in_float64_under_autocast(monkeypatch):
    model, dtypes, original = MODELS["Tf+Nd"](), [], operators.nondeterministic

    def recorded(*args):
        weights, memory = original(*args)
        dtypes.append((args[0].dtype, memory.dtype))
        return weights, memory

    monkeypatch.setattr(operators, "nondeterministic", recorded)
    monkeypatch.setattr(readings, "choose", lambda *_, **__: "torch")
    with autocast(torch.device("cpu"), "bfloat16"):
        model(torch.randint(TOKENS, (B, T))).sum().backward()
    assert dtypes == [(torch.float32, torch.float64)]  # bfloat16 logits are converted to float32
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_generation_repeats_a_step_beyond_the_range(monkeypatch):
    """Action logits beyond the range of float64 give nan; the step is then repeated exactly, with immediate checks."""
    model = MODELS["Tf+Nd"]().double().eval()
    attention = model.trunk.layers[1].attention.function
    attention.to_actions.weight.data *= 1e5
    prompts = torch.zeros(2, 1, dtype=torch.int64)
    expected = greedy(model, prompts, max_new_tokens=12)
    repeated = []

    def reads_values(device):
        return immediate._requests > 0

    def has_nan(x):
        repeated.append(bool(x.sum().isnan()))
        return repeated[-1]

    for module in (checks, operators, columns, generation):
        monkeypatch.setattr(module, "reads_values", reads_values)
    monkeypatch.setattr(states, "choose_for_state", lambda backend, device: "torch")
    monkeypatch.setattr(generation, "_has_nan", has_nan)
    found = greedy(model, prompts, max_new_tokens=12)
    assert any(repeated), "expected logits beyond the range of float64"
    assert [x.tokens for x in found] == [x.tokens for x in expected]
    assert all(math.isclose(x.log_prob, y.log_prob, rel_tol=1e-9) for x, y in zip(found, expected, strict=True))
