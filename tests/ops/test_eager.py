"""Gradients, and derivatives of gradients, of operators that call the kernel without PyTorch's dispatcher."""

import pytest
import torch
from torch.autograd import forward_ad

from stackattn import nondeterministic_readings, superposition_readings
from stackattn.ops import causal_attention
from stackattn.ops.cross_entropy import cross_entropy
from stackattn.ops.dropout import dropout


def attention(x):
    return causal_attention(x, heads=1)


def losses(x):
    return cross_entropy(x, torch.zeros(2, 4, dtype=torch.int64))


def superposition(x):
    return superposition_readings(x.softmax(-1)[..., :3], x.tanh())


def superposition_of_actions(x):
    actions = x.softmax(-1)[..., :3]
    return superposition_readings(actions, actions * 2)


def nondeterministic_of_transitions(x):
    pop = x[..., :1].reshape(2, 4, 1, 1, 1)
    return nondeterministic_readings(
        pop[..., None] * 2, pop[..., None], pop, pop.reshape(2, 4, 1).repeat(1, 2, 1)[:, :5]
    )


def residual_dropout(x):
    torch.manual_seed(0)
    return dropout(x * 3, 0.5, residual=x)


def relu_dropout(x):
    torch.manual_seed(0)
    return dropout(x, 0.5, relu=True)


functions = pytest.mark.parametrize(
    "function",
    [
        attention,
        losses,
        superposition,
        superposition_of_actions,
        nondeterministic_of_transitions,
        residual_dropout,
        relu_dropout,
    ],
)


@functions
def test_no_gradient_is_counted_twice(function):
    """Inputs of an operator may be computed from each other and may have hooks."""
    gradients = []
    for create_graph in (False, True):
        x = torch.linspace(-1, 1, 48).view(2, 4, 6).requires_grad_()
        y = x * 1.0
        y.register_hook(lambda grad: 2 * grad)
        result = function(y)
        gradients.append(torch.autograd.grad(result.square().sum(), x, create_graph=create_graph)[0].detach())
    torch.testing.assert_close(*gradients)
    assert gradients[0].any()


@functions
@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_tangents_of_gradients(function):
    """A gradient is linear in the upstream gradient, so its tangent is the gradient for the upstream tangent."""
    x = torch.linspace(-1, 1, 48).view(2, 4, 6).requires_grad_()
    y = function(x)
    grad, tangent = torch.randn_like(y), torch.randn_like(y)
    expected = [torch.autograd.grad(y, x, part, retain_graph=True)[0] for part in (grad, tangent)]
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(torch.autograd.grad(y, x, forward_ad.make_dual(grad, tangent))[0])
    assert found.tangent is not None
    torch.testing.assert_close([found.primal, found.tangent], expected)
