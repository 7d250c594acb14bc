"""Capturing CUDA graphs: invalid arguments are refused, and nothing waits. tests/gpu tests the captured graphs."""

import pytest
import torch
from gpu_with_values import gpu_with_values

from stackattn import immediate_checks
from stackattn.nn import NondeterministicStackAttention, SuperpositionStackAttention, capture


def test_capture_needs_a_gpu():
    with pytest.raises(ValueError, match="expected a module and inputs on one CUDA device, got cpu"):
        capture(SuperpositionStackAttention(4), torch.zeros(1, 2, 4))


def test_capture_needs_inputs_on_the_device_and_no_immediate_checks():
    with gpu_with_values() as gpu:
        layer, x = NondeterministicStackAttention(4, 2, 2, 2).to(gpu.device), torch.zeros(1, 3, 4, device=gpu.device)
        with pytest.raises(ValueError, match="expected a module and inputs on one CUDA device, got cpu, cuda:0"):
            capture(layer, torch.zeros(1, 3, 4))
        with pytest.raises(ValueError, match="expected the tensors that the module is called with, got none"):
            capture(layer)
        with immediate_checks(), pytest.raises(ValueError, match="cannot be called inside immediate_checks"):
            capture(layer, x)
        assert capture(layer, x.requires_grad_()) is layer
