"""LSTMs compared with PyTorch's, and LSTMs with stacks compared with a loop over the reference operators."""

from math import sqrt

import pytest
import torch
from subjects import TOKENS, lstm
from torch import nn
from torch.nn.functional import one_hot

from stackattn.models import LSTMLM, LSTMConfig
from stackattn.ops import reference
from stackattn.paper.models import paper_config

B, T = 3, 7
BOS = TOKENS - 1


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def text(B=B, T=T):
    tokens = torch.randint(BOS, (B, T))
    tokens[:, 0] = BOS
    return tokens


def test_lstm_equals_pytorch():
    ours = lstm(None, hidden_size=10).double()
    theirs = nn.LSTM(BOS, 10, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(ours.weight_input)
        theirs.weight_hh_l0.copy_(ours.weight_hidden)
        theirs.bias_ih_l0.copy_(ours.bias)
        theirs.bias_hh_l0.zero_()
    tokens = text()
    hidden = theirs(one_hot(tokens[:, 1:], BOS).double())[0]
    hidden = torch.cat([torch.zeros(B, 1, 10).double(), hidden], dim=1)
    torch.testing.assert_close(ours(tokens), ours.output(hidden))


def cell(model, x, h, c):
    i, f, g, o = (x @ model.weight_input.T + h @ model.weight_hidden.T + model.bias).chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def superposition_reading(model, hidden):
    """Return the reading, computed from the hidden states (B, t, h) after each token so far."""
    stack = model.stack
    if hidden.shape[1] == 0:
        return hidden.new_zeros(len(hidden), stack.reading_size)
    actions, values = stack.to_actions(hidden).softmax(-1), stack.to_value(hidden).sigmoid()
    return reference.superposition_readings(actions, values)[:, -1]


def nondeterministic_reading(model, hidden):
    stack, (n, t) = model.stack, hidden.shape[:2]
    Q, S = stack.num_states, stack.num_symbols
    if t == 0:
        reading = torch.zeros(n, Q, S, stack.bottom.numel(), dtype=hidden.dtype)
        reading[:, 0, 0] = stack.bottom.sigmoid()
        return reading.flatten(1)
    rows = stack.to_actions(hidden).reshape(n, t, Q, S, 2 * Q * S + Q)
    push, replace = (x.reshape(n, t, Q, S, Q, S) for x in (rows[..., : Q * S], rows[..., Q * S : 2 * Q * S]))
    logs = stack.to_value(hidden).sigmoid().log(), stack.bottom.sigmoid().log()
    return reference.nondeterministic_readings(push, replace, rows[..., 2 * Q * S :], *logs)[:, -1].flatten(1)


@pytest.mark.parametrize(
    ("stack", "read"),
    [("superposition-3", superposition_reading), ("nondeterministic-2-3-2", nondeterministic_reading)],
)
def test_stack_lstm_equals_its_equations(stack, read):
    """The cell reads the stack of the previous step; there is no action before the first or after the last token."""
    model = lstm(stack, hidden_size=6).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    tokens = text()
    h = c = torch.zeros(B, 6, dtype=torch.float64)
    predicts, hidden = [h], torch.zeros(B, 0, 6, dtype=torch.float64)
    for t in range(1, T):
        x = torch.cat([one_hot(tokens[:, t], BOS).double(), read(model, hidden)], dim=1)
        h, c = cell(model, x, h, c)
        predicts.append(h)
        hidden = torch.cat([hidden, h[:, None]], dim=1)
    expected = model.output(torch.stack(predicts, dim=1))
    found = model(tokens)
    torch.testing.assert_close(found, expected)
    parameters, upstream = list(model.parameters()), torch.randn_like(expected)
    for one, other in zip(
        *(torch.autograd.grad((y * upstream).sum(), parameters) for y in (found, expected)), strict=True
    ):
        torch.testing.assert_close(one, other)
        assert one.abs().max() > 0


@pytest.mark.parametrize("stack", [None, "superposition-3", "nondeterministic-2-2-3"])
def test_the_first_prediction_is_the_output_bias(stack):
    model = lstm(stack)
    nn.init.normal_(model.output.bias)
    torch.testing.assert_close(model(text())[:, 0], model.output.bias.expand(B, -1))


@pytest.mark.parametrize("stack", ["superposition-3", "nondeterministic-2-2-3"])
def test_the_last_prediction_depends_on_the_first_pushed_vector(stack):
    model = lstm(stack).double()
    pushed = []
    choose = model.stack.choose

    def observed(hidden, maps):
        actions, value = choose(hidden, maps)
        pushed.append(value)
        return actions, value

    model.stack.choose = observed
    y = model(text())
    assert len(pushed) == T - 2  # not at BOS, and not after the last token
    grad = torch.autograd.grad(y[:, -1].square().sum(), pushed[0])[0]
    assert (grad.abs().sum(-1) > 0).all()


@pytest.mark.parametrize("token", [-1, TOKENS, 10**6])
@pytest.mark.parametrize("stack", [None, "superposition-3"])
def test_unknown_tokens_raise(stack, token):
    tokens = text()
    tokens[1, 3] = token
    with pytest.raises(ValueError, match=f"tokens: expected tokens from 0 to {TOKENS - 1}, got {token} in sequence 1"):
        lstm(stack)(tokens)


def bounded(x, bound):
    x = x.detach().abs()
    return bool((x <= bound).all() and x.max() > 0.9 * bound)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("architecture", ["LSTM", "LSTM+Sup", "LSTM+Nd"])
def test_initialisation(architecture, published):
    model = LSTMLM(paper_config("hardest-cfl", architecture, published=published))
    left = dict(model.named_parameters())
    layers = ["output"] + ["stack.to_actions", "stack.to_value"] * (model.stack is not None)
    for layer in layers:
        weight, bias = left.pop(f"{layer}.weight"), left.pop(f"{layer}.bias")
        if published and architecture == "LSTM+Nd" and layer != "output":
            assert bounded(weight, 0.1)
            assert bounded(bias, 0.1) or (bias.numel() < 20 and 0 < bias.abs().max() <= 0.1)
        else:
            assert bounded(weight, sqrt(6 / sum(weight.shape)))
            assert (bias == 0).all()
    if "stack.bottom" in left:
        bottom = left.pop("stack.bottom")
        assert (bottom != 0).all()
        assert (bottom.abs() <= 0.1).all()
    assert set(left) == {"weight_input", "weight_hidden", "bias"}
    assert all(bounded(x, 0.1) for x in left.values())
    assert (model.no_bias == 0).all()


@pytest.mark.parametrize("stack", [None, "superposition-3", "nondeterministic-2-2-3"])
@pytest.mark.usefixtures("without_onednn")
def test_dtypes(stack):
    model = lstm(stack)
    expected = model(text())
    for dtype, tolerance in ((torch.float64, 1e-5), (torch.bfloat16, 0.1)):
        torch.manual_seed(0)
        model = lstm(stack).to(dtype)
        found = model(text())
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), expected, atol=tolerance, rtol=0)


def config(**options):
    return LSTMConfig(**{"input_size": 3, "output_size": 3, **options})


@pytest.mark.parametrize("stack", ["2", "superposition-3.superposition-3", "superposition-3x2", "stack"])
def test_errors_name_the_stack(stack):
    with pytest.raises(ValueError, match=r"stack: expected (one stack such|a stack with one head)") as error:
        config(stack=stack)
    assert repr(stack) in str(error.value)


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [
        (ValueError, lambda: config(input_size=0), "input_size: expected a positive integer, got 0"),
        (ValueError, lambda: config(hidden_size=2.5), "hidden_size: expected a positive integer, got 2.5"),
        (ValueError, lambda: config(init_range=-1.0), "init_range: expected a finite number of at least 0, got -1.0"),
        (TypeError, lambda: config(stack=3), "stack: expected None or text .* got 3"),
        (
            TypeError,
            lambda: lstm(None)(text().double()),
            "tokens: expected a tensor of int64 or int32, got torch.float64",
        ),
        (ValueError, lambda: lstm(None)(text()[0]), r"tokens: expected shape \(B, T\), got \(\d+,\)"),
        (ValueError, lambda: lstm(None)(text(), torch.ones(B, 1).long()), r"lengths: expected shape \(\d+,\), got"),
        (TypeError, lambda: lstm(None)(text(), torch.ones(B)), "lengths: expected an integer dtype, got torch.float32"),
    ],
)
def test_errors_name_the_argument(error, call, message):
    with pytest.raises(error, match=message):
        call()
