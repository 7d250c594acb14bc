"""Capture in CUDA graphs: what it refuses. tests/gpu has the rest."""

import pytest
import torch

from stackattn.nn import SuperpositionStackAttention, capture


def test_capture_needs_a_gpu():
    with pytest.raises(ValueError, match="expected a module and inputs on one CUDA device, got cpu"):
        capture(SuperpositionStackAttention(4), torch.zeros(1, 2, 4))
