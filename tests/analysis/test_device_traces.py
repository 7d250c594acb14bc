"""Traces of models on a simulated GPU: tokens may be on the CPU, and only the actions of stacks are copied to it."""

import pytest
import torch
from gpu_with_values import gpu_with_values

from stackattn.analysis.traces import stack_names, trace_forward, trace_stacks
from stackattn.models import LSTMConfig, Seq2SeqConfig, TransformerLMConfig, build_model

TOKENS = {"input_size": 5, "output_size": 5}
SIZES = {**TOKENS, "d_model": 6, "heads": 2, "hidden_size": 8}
ALL = "superposition-3x2.nondeterministic-2-2-3.stratified-3.superposition-3d2.nondeterministic-2-2-3w2"
CONFIGS = {
    "Tf": TransformerLMConfig(layers=ALL, **SIZES),
    "Seq2Seq": Seq2SeqConfig(layers="superposition-3", decoder_layers="nondeterministic-2-2-3", **SIZES),
    "LSTM+Sup": LSTMConfig(hidden_size=4, stack="superposition-3", **TOKENS),
    "LSTM+Nd": LSTMConfig(hidden_size=4, stack="nondeterministic-2-2-3", **TOKENS),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_on_a_gpu_and_tokens_on_the_cpu(name):
    tokens = torch.zeros(2, 4, dtype=torch.int64)
    inputs = (tokens, tokens) if name == "Seq2Seq" else (tokens,)
    model = build_model(CONFIGS[name]).eval()
    expected = trace_stacks(model, *inputs)
    with gpu_with_values() as gpu:
        model.to(gpu.device)
        output, traces = trace_forward(model, *inputs)
        assert output.device == gpu.device
        assert len(gpu.reads) <= 2 * sum(len(trace.steps) for trace in traces)
        assert [trace.name for trace in traces] == stack_names(model)
        for found in (traces, trace_stacks(model, *inputs)):
            for trace, on_cpu in zip(found, expected, strict=True):
                assert all(x.dtype == torch.float64 for x in trace.steps)
                torch.testing.assert_close(trace.steps, on_cpu.steps, rtol=1e-4, atol=1e-5)
                for get in ("tops", "actions", "contents"):
                    torch.testing.assert_close(getattr(trace, get)(), getattr(on_cpu, get)(), rtol=1e-4, atol=1e-5)
