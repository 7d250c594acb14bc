"""Errors of transformer layers name the argument, what was expected and what was found."""

import pytest
import torch

from stackattn.nn import SoftmaxSpec, StackSpec, TransformerLayer

B, T, D = 3, 7, 12


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda layer: layer(torch.zeros(B, T, D).long()), TypeError, "x: expected a floating-point tensor"),
        (lambda layer: layer(torch.zeros(B, T, D + 1)), ValueError, "x: expected shape"),
        (lambda layer: layer(torch.zeros(B, T, D), torch.ones(B + 1).long()), ValueError, "lengths: expected shape"),
        (lambda layer: layer.initial_state(-1), ValueError, "batch_size: expected"),
    ],
)
@pytest.mark.parametrize("spec", [SoftmaxSpec(), StackSpec("superposition", (3,))])
def test_errors_of_layers_name_the_argument(spec, call, error, message):
    with pytest.raises(error, match=message):
        call(TransformerLayer(spec, D, heads=2, hidden_size=5))


def test_a_layer_needs_a_specification_and_its_memory():
    with pytest.raises(TypeError, match=r"spec: expected a SoftmaxSpec or a StackSpec, .* got 'superposition-3'"):
        TransformerLayer("superposition-3", D, heads=2, hidden_size=5)
    layer = TransformerLayer(SoftmaxSpec(), D, heads=2, hidden_size=5, cross_attention=True)
    with pytest.raises(TypeError, match="memory: expected the result of `read`"):
        layer(torch.zeros(B, T, D))
