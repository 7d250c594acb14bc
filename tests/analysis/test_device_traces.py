"""Traces of models on a GPU: inputs may be on the CPU, and only actions and logits are copied to it."""

import pytest
import torch
from fake_gpu import gpu_of_zeros

from stackattn.analysis.traces import stack_names, trace_forward, trace_stacks
from stackattn.models import LSTMConfig, Seq2SeqConfig, TransformerLMConfig, build_model
from stackattn.ops import extension, states

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
def test_a_model_on_a_gpu_and_tokens_on_the_cpu(monkeypatch, name):
    for module in (extension, states):  # tensors without values have no addresses
        monkeypatch.setattr(module, "same_place", lambda one, other: one is other)
    tokens = torch.zeros(2, 4, dtype=torch.int64)
    with gpu_of_zeros() as (gpu, reads):
        with gpu:
            model = build_model(CONFIGS[name])
        inputs = (tokens, tokens) if name == "Seq2Seq" else (tokens,)
        output, traces = trace_forward(model, *inputs)
        assert output.device == gpu
        assert [trace.name for trace in traces] == stack_names(model)
        assert len(trace_stacks(model, *inputs)) == len(traces)
        for trace in traces:
            assert {x.device.type for x in (*trace.steps, trace.tops(), trace.actions(), trace.contents())} == {"cpu"}
            assert all(x.dtype == torch.float64 for x in trace.steps)
        assert len(reads) <= 2 * sum(len(trace.steps) for trace in traces)
