"""Stack attention layers compared with the paper's equations, written out with the reference operators."""

import pytest
import torch
from torch import nn

from stackattn.nn import (
    NondeterministicStackAttention,
    SelfAttention,
    StratifiedStackAttention,
    SuperpositionStackAttention,
)
from stackattn.nn.checks import check_dtype
from stackattn.ops import reference

B, T, D = 2, 5, 6
ACTIVATIONS = {"sigmoid": torch.sigmoid, "identity": lambda x: x, "exp": torch.exp}


def superposition(**options):
    return SuperpositionStackAttention(D, 4, **options).double()


def nondeterministic(**options):
    return NondeterministicStackAttention(D, 2, 3, 4, **options).double()


LAYERS = {"superposition": superposition, "nondeterministic": nondeterministic}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def inputs():
    return torch.randn(B, T, D, dtype=torch.float64)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_superposition_equals_its_equations(activation):
    layer, x = superposition(push_activation=activation), inputs()
    actions = torch.softmax(x @ layer.to_actions.weight.T, dim=-1)
    values = ACTIVATIONS[activation](x @ layer.to_values.weight.T)
    expected = reference.superposition_readings(actions, values) @ layer.to_output.weight.T
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("activation", ["sigmoid", "exp"])
def test_nondeterministic_equals_its_equations(activation):
    layer, x = nondeterministic(push_activation=activation), inputs()
    Q, S, m = 2, 3, 4
    nn.init.normal_(layer.bottom)
    rows = (x @ layer.to_actions.weight.T).reshape(B, T, Q, S, 2 * Q * S + Q)
    push = rows[..., : Q * S].reshape(B, T, Q, S, Q, S)
    replace = rows[..., Q * S : 2 * Q * S].reshape(B, T, Q, S, Q, S)
    pop = rows[..., 2 * Q * S :]
    log_values = ACTIVATIONS[activation](x @ layer.to_values.weight.T).log()
    log_bottom = layer.bottom.sigmoid().log()
    readings = reference.nondeterministic_readings(push, replace, pop, log_values, log_bottom)  # (B, T, Q, S, m)
    expected = readings.reshape(B, T, Q * S * m) @ layer.to_output.weight.T
    torch.testing.assert_close(layer(x), expected)


def test_nondeterministic_pushes_negative_values():
    layer, x = nondeterministic(push_activation="identity"), inputs()
    y, weights = layer(x, return_weights=True)
    values = torch.cat([layer.bottom.sigmoid().expand(B, 1, -1), x @ layer.to_values.weight.T], dim=1)
    assert (values < 0).any()
    torch.testing.assert_close(y, layer.to_output(torch.einsum("btiqs,bim->btqsm", weights, values).flatten(2)))


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_superposition_weights_and_actions_give_the_output(heads):
    layer, x = superposition(heads=heads), inputs()
    y, weights = layer(x, return_weights=True)
    (actions,) = layer.actions(x)
    torch.testing.assert_close(y, layer(x))
    assert weights.shape == ((B, T, T) if heads == 1 else (B, heads, T, T))
    assert actions.shape == ((B, T, 3) if heads == 1 else (B, heads, T, 3))
    torch.testing.assert_close(actions.sum(-1), torch.ones_like(actions[..., 0]))
    weights, actions = weights.reshape(B, heads, T, T), actions.reshape(B, heads, T, 3)
    for h in range(heads):
        torch.testing.assert_close(weights[:, h], reference.superposition_weights(actions[:, h]))
    values = layer.to_values(x).sigmoid().reshape(B, T, heads, -1).transpose(1, 2)
    readings = (weights @ values).transpose(1, 2).reshape(B, T, -1)
    torch.testing.assert_close(layer.to_output(readings), y)


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_nondeterministic_weights_and_actions_give_the_output(heads):
    layer, x = nondeterministic(heads=heads), inputs()
    nn.init.normal_(layer.bottom)
    y, weights = layer(x, return_weights=True)
    actions = layer.actions(x)
    torch.testing.assert_close(y, layer(x))
    per_head = () if heads == 1 else (heads,)
    assert weights.shape == (B, *per_head, T, T + 1, 2, 3)
    assert [x.shape for x in actions] == [(B, *per_head, T, 2, 3, *to) for to in ((2, 3), (2, 3), (2,))]
    torch.testing.assert_close(weights.sum((-3, -2, -1)), torch.ones_like(weights[..., 0, 0, 0]))
    weights = weights.reshape(B, heads, T, T + 1, 2, 3)
    for h in range(heads):
        mine = [x if heads == 1 else x[:, h] for x in actions]
        torch.testing.assert_close(weights[:, h], reference.nondeterministic_weights(*mine))
    values = layer.to_values(x).sigmoid().reshape(B, T, heads, -1).transpose(1, 2)
    bottom = layer.bottom.sigmoid().reshape(heads, 1, -1).expand(B, heads, 1, -1)
    readings = torch.einsum("bhtiqs,bhim->bthqsm", weights, torch.cat([bottom, values], dim=2))
    torch.testing.assert_close(layer.to_output(readings.reshape(B, T, -1)), y)


@pytest.mark.parametrize("kind", LAYERS)
def test_optional_results(kind):
    layer, x = LAYERS[kind](), inputs()
    y, weights = layer(x, return_weights=True)
    assert layer(x).shape == y.shape == x.shape
    assert weights.shape[:2] == (B, T)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("kind", LAYERS)
def test_actions_ignore_padding(kind, heads):
    layer, x, lengths = LAYERS[kind](heads=heads), inputs(), torch.tensor([5, 3])
    x[1, 3:] = torch.nan
    actions = layer.actions(x, lengths)
    assert isinstance(actions, tuple)
    for found, one in zip(actions, layer.actions(x[1:, :3]), strict=True):
        assert found.isfinite().all()
        torch.testing.assert_close(found[1].narrow(heads - 1, 0, 3), one[0])


@pytest.mark.parametrize("kind", LAYERS)
def test_returned_weights_of_padding_are_zero(kind):
    layer, x = LAYERS[kind](heads=2), inputs()
    x[1, 3:] = torch.nan
    _, weights = layer(x, torch.tensor([5, 3]), return_weights=True)
    assert (weights[1, :, 3:] == 0).all()
    torch.testing.assert_close(weights[0], layer(x[:1], return_weights=True)[1][0])


@pytest.mark.parametrize("kind", LAYERS)
def test_heads_are_independent_stacks(kind):
    """A layer with two heads equals two layers with one head each, with maps concatenated and outputs added."""
    layer, x = LAYERS[kind](heads=2), inputs()
    singles = [LAYERS[kind](), LAYERS[kind]()]
    with torch.no_grad():
        for h, single in enumerate(singles):
            single.to_actions.weight.copy_(layer.to_actions.weight.chunk(2)[h])
            single.to_values.weight.copy_(layer.to_values.weight.chunk(2)[h])
            single.to_output.weight.copy_(layer.to_output.weight.chunk(2, dim=1)[h])
            if kind == "nondeterministic":
                single.bottom.copy_(layer.bottom.chunk(2)[h])
    torch.testing.assert_close(layer(x), singles[0](x) + singles[1](x))


def force(layer, kind, pattern):
    """Set the weights of `to_actions` so that step t takes the action `pattern[t]`.

    The actions are + (push), - (pop) and . (no-op or replace). Returns inputs whose last features encode the step.
    """
    steps = torch.eye(len(pattern), dtype=torch.float64)
    x = torch.cat([torch.randn(len(pattern), D - 1, dtype=torch.float64), steps], dim=1)[None]
    layer.to_actions.weight.data.zero_()
    for t, action in enumerate(pattern):
        column = layer.to_actions.weight.data[:, D - 1 + t]
        if kind == "superposition":
            column["+.-".index(action)] = 60.0
        else:
            rows = column.reshape(1, 1, 3)  # one state, one symbol: push, replace, pop
            rows[0, 0, "+.-".index(action)] = 60.0
    return x


@pytest.mark.parametrize("kind", LAYERS)
def test_a_later_output_depends_on_an_earlier_pushed_vector(kind):
    """The vector pushed at step 0 is covered at step 1 and uncovered at step 3: only steps 0 and 3 read it."""
    pattern = "++.-"
    d = D - 1 + len(pattern)
    if kind == "superposition":
        layer = SuperpositionStackAttention(d, 4).double()
    else:
        layer = NondeterministicStackAttention(d, 1, 1, 4).double()
    x = force(layer, kind, pattern).requires_grad_()
    y = layer(x)
    reads = [torch.autograd.grad(y[0, t].sum(), x, retain_graph=True)[0][0, 0].abs().max() > 1e-6 for t in range(4)]
    assert reads == [True, False, False, True]
    torch.testing.assert_close(y[0, 3], y[0, 0], atol=1e-8, rtol=0)
    assert not torch.allclose(y[0, 1], y[0, 0], atol=1e-3)


@pytest.mark.parametrize("kind", LAYERS)
def test_initialisation(kind):
    layer = (
        SuperpositionStackAttention(64, 48) if kind == "superposition" else NondeterministicStackAttention(64, 3, 3, 48)
    )
    for linear in (layer.to_actions, layer.to_values, layer.to_output):
        assert linear.bias is None
        out, into = linear.weight.shape
        bound = (6 / (out + into)) ** 0.5
        assert linear.weight.abs().max() <= bound
        assert linear.weight.abs().max() > 0.95 * bound
        torch.testing.assert_close(linear.weight.std(), torch.tensor(bound / 3**0.5), rtol=0.15, atol=0)
    if kind == "nondeterministic":
        assert 0.08 < layer.bottom.abs().max() <= 0.1


def test_the_default_embedding_size_is_d_model():
    assert SuperpositionStackAttention(7).to_values.weight.shape == (7, 7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.usefixtures("without_onednn")
def test_dtypes(kind, dtype):
    layer, x = LAYERS[kind](heads=2), inputs()
    expected = layer(x)
    found = layer.to(dtype)(x.to(dtype))
    assert found.dtype == dtype
    tolerance = {torch.float64: 0.0, torch.float32: 1e-5, torch.bfloat16: 0.1}[dtype]
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=0)
    steps, state = [], layer.initial_state(B)
    for t in range(T):
        y, state = layer.extend(x[:, t : t + 1].to(dtype), state)
        assert y.dtype == dtype
        steps.append(y)
    torch.testing.assert_close(torch.cat(steps, 1).double(), expected, atol=max(tolerance, 1e-12), rtol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SuperpositionStackAttention(0), "d_model: expected a positive integer, got 0"),
        (lambda: SuperpositionStackAttention(4, heads=0), "heads: expected a positive integer, got 0"),
        (lambda: SuperpositionStackAttention(4, 2.5), "stack_embedding_size: expected a positive integer, got 2.5"),
        (lambda: NondeterministicStackAttention(4, 0), "num_states: expected a positive integer, got 0"),
        (lambda: NondeterministicStackAttention(4, 2, "3"), "num_symbols: expected a positive integer, got '3'"),
        (lambda: SuperpositionStackAttention(4, push_activation="relu"), "push_activation: expected one of 'sigmoid'"),
    ],
)
def test_errors_name_the_argument(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("kind", LAYERS)
def test_errors_name_the_sequence_of_the_batch(kind, heads):
    """The operator's batch has one row per head, but errors give the index of the sequence in the caller's batch."""
    layer, x = LAYERS[kind](heads=heads), inputs()
    x[1, 2:] = torch.nan
    state = layer.initial_state(B)
    for call in (layer, lambda x: layer(x, return_weights=True), lambda x: layer.extend(x, state)):
        with pytest.raises(
            ValueError, match=r"got nan or inf in sequence 1 at step \d; .* computes these numbers from x"
        ):
            call(x)
    with pytest.raises(ValueError, match=f"lengths: expected values from 0 to T = {T}, got 9 for sequence 1"):
        layer(inputs(), torch.tensor([T, 9]))


@pytest.mark.parametrize("kind", LAYERS)
def test_integer_inputs_are_refused(kind):
    layer, x = LAYERS[kind](), torch.zeros(B, T, D, dtype=torch.long)
    for call in (lambda: layer(x), lambda: layer.extend(x, layer.initial_state(B))):
        with pytest.raises(
            TypeError,
            match=r"x: expected a floating-point tensor of shape \(B, T, 6\), got torch.int64; look up .* nn.Embedding",
        ):
            call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", LAYERS)
def test_inputs_have_the_dtype_of_the_parameters(kind, dtype):
    layer, x = LAYERS[kind](), inputs().to(dtype)
    calls = (lambda: layer(x), lambda: layer.actions(x), lambda: layer.extend(x, layer.initial_state(B)))
    for call in calls:
        with pytest.raises(TypeError, match=rf"x: expected torch.float64 like the parameters, got {dtype}; convert"):
            call()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_autocast_accepts_other_dtypes(kind, compiled):
    layer, x = LAYERS[kind]().float(), inputs().bfloat16()
    run = torch.compile(layer, backend="eager", fullgraph=True) if compiled else layer
    with torch.autocast("cpu", torch.bfloat16):
        assert run(x).dtype == torch.bfloat16


def test_any_dtype_fits_quantised_parameters():
    check_dtype("x", inputs(), torch.zeros(2, dtype=torch.int8))


def test_depth_is_that_of_the_operator():
    layer, exact, x = superposition(depth=2), superposition(), inputs()
    layer.load_state_dict(exact.state_dict())
    values = layer.to_values(x).sigmoid()
    y, weights = layer(x, return_weights=True)
    (actions,) = layer.actions(x)
    expected = layer.to_output(reference.superposition_readings(actions, values, 2))
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(weights, reference.superposition_weights(actions, 2))
    assert not torch.allclose(exact(x), expected)


def test_window_is_that_of_the_operator():
    layer, exact, x = nondeterministic(window=2), nondeterministic(), inputs()
    layer.load_state_dict(exact.state_dict())
    values = torch.cat([layer.initial_values(B), layer.to_values(x).sigmoid()], 1)
    y, weights = layer(x, return_weights=True)
    torch.testing.assert_close(weights, reference.nondeterministic_weights(*layer.actions(x), 2))
    expected = layer.to_output(torch.einsum("btiqs,bim->btqsm", weights, values).flatten(2))
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(layer(x), expected)
    assert not torch.allclose(exact(x), expected)


def test_a_state_with_another_limit():
    x = inputs()
    for make, name in ((superposition, "depth"), (nondeterministic, "window")):
        for ours, other in ((3, None), (None, 3), (3, 4)):
            message = f"state: expected a state with {name} {ours} like the layer, got {name} {other}"
            with pytest.raises(ValueError, match=message):
                make(**{name: ours}).extend(x, make(**{name: other}).initial_state(B))


@pytest.mark.parametrize("make", [*LAYERS.values(), lambda heads: SelfAttention(D, heads).double()])
def test_a_state_that_does_not_fit(make):
    layer, x = make(heads=2), inputs()
    with pytest.raises(ValueError, match=f"x: expected batch size {B + 1} like the state, got {B}"):
        layer.extend(x, layer.initial_state(B + 1))
    with pytest.raises(ValueError, match="state: expected a state with 2 heads, got one with 1 head"):
        layer.extend(x, make(heads=1).initial_state(B))
    with pytest.raises(TypeError, match="state: expected a state from initial_state or extend, got NoneType"):
        layer.extend(x, None)


@pytest.mark.parametrize("other", [nondeterministic, lambda: StratifiedStackAttention(D, 4).double()])
def test_the_state_of_another_kind(other):
    message = "state: expected the state of a superposition layer, got that of a (nondeterministic|stratified) layer"
    with pytest.raises(TypeError, match=message):
        superposition().extend(inputs(), other().initial_state(B))


@pytest.mark.parametrize("limit", [0, 1.5, True])
def test_wrong_limit(limit):
    for make, name in ((superposition, "depth"), (nondeterministic, "window")):
        with pytest.raises(ValueError, match=f"{name}: expected a positive integer, or None for no limit, got {limit}"):
            make(**{name: limit})
