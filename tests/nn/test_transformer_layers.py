"""Softmax attention and transformer layers compared with PyTorch's and with the paper; layer notation."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout, layer_norm, relu

from stackattn.nn import (
    STACK_KINDS,
    CrossAttention,
    SelfAttention,
    SoftmaxSpec,
    StackSpec,
    TransformerLayer,
    format_layers,
    parse_layers,
    sinusoids,
)
from stackattn.ops import dispatch
from stackattn.ops.dropout import multipliers
from stackattn.ops.keep_mask import draw_seed

B, T, D, HEADS = 3, 7, 12, 3
SUPERPOSITION = StackSpec("superposition", (5,))
NONDETERMINISTIC = StackSpec("nondeterministic", (2, 3, 2))
LENGTHS = torch.tensor([7, 4, 1])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def inputs(T=T):
    return torch.randn(B, T, D, dtype=torch.float64)


def multihead(attention, source=None):
    """PyTorch's layer with our parameters."""
    theirs = nn.MultiheadAttention(D, HEADS, batch_first=True, dtype=torch.float64)
    maps = [source] if isinstance(source, nn.Linear) else [attention.to_queries, attention.to_keys_values]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([x.weight for x in maps]))
        theirs.in_proj_bias.copy_(torch.cat([x.bias for x in maps]))
        theirs.out_proj.weight.copy_(attention.to_output.weight)
        theirs.out_proj.bias.copy_(attention.to_output.bias)
    return theirs


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_self_attention_equals_pytorch(causal, lengths):
    ours, x = SelfAttention(D, HEADS, causal=causal).double(), inputs()
    theirs = multihead(ours, ours.to_queries_keys_values)
    mask = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64) if causal else None
    padding = None if lengths is None else torch.arange(T) >= lengths[:, None]
    extra = {} if padding is None else {"key_padding_mask": torch.zeros(B, T).double().masked_fill(padding, -torch.inf)}
    expected = theirs(x, x, x, attn_mask=mask, need_weights=False, **extra)[0]
    spoilt = x if padding is None else x.masked_fill(padding[..., None], torch.nan)
    found = ours(spoilt, lengths)
    real = torch.ones(B, T, dtype=torch.bool) if padding is None else ~padding
    torch.testing.assert_close(found[real], expected[real])


def test_bidirectional_attention_reads_later_steps_but_no_padding():
    attention, x = SelfAttention(D, HEADS, causal=False).double(), inputs()
    before = attention(x, LENGTHS)
    x[:, 3] += 1.0
    after = attention(x, LENGTHS)
    changed = ~torch.isclose(before, after).all(-1)
    assert changed[0].all()
    assert changed[1, :4].all()
    assert not changed[2, 0]
    with pytest.raises(ValueError, match="causal: expected True"):
        attention.initial_state(B)


def test_cross_attention_equals_pytorch_and_ignores_padding():
    ours, x, memory = CrossAttention(D, HEADS).double(), inputs(4), inputs()
    theirs = multihead(ours)
    torch.testing.assert_close(ours(x, ours.read(memory)), theirs(x, memory, memory, need_weights=False)[0])
    padding = torch.arange(T) >= LENGTHS[:, None]
    expected = theirs(x, memory, memory, key_padding_mask=padding, need_weights=False)[0]
    spoilt = memory.masked_fill(padding[..., None], torch.nan).requires_grad_()
    found = ours(x, ours.read(spoilt, LENGTHS))
    torch.testing.assert_close(found, expected)
    grad = torch.autograd.grad(found.square().sum(), spoilt)[0]
    assert (grad[padding] == 0).all()
    assert (grad[~padding] != 0).any()


@pytest.mark.skipif(dispatch.kernel is None, reason="needs the kernel")
@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("layer", [CrossAttention, partial(SelfAttention, causal=False)])
def test_attention_to_a_whole_sequence_uses_the_fast_dropout(layer, lengths):
    attention, x = layer(D, HEADS, dropout=0.3), inputs().float()
    cross = isinstance(attention, CrossAttention)
    torch.manual_seed(1)
    found = attention(x, attention.read(x, lengths) if cross else lengths)
    packed = [attention.to_queries(x), attention.to_keys_values(x)] if cross else [attention.to_queries_keys_values(x)]
    queries, keys, values = (
        y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in torch.cat(packed, -1).chunk(3, -1)
    )  # (B, HEADS, T, D / HEADS)
    padding = torch.arange(T) >= (torch.full((B,), T) if lengths is None else lengths)[:, None]
    scores = (queries @ keys.mT / (D / HEADS) ** 0.5).masked_fill(padding[:, None, None], -torch.inf)
    torch.manual_seed(1)
    weights = scores.softmax(-1) * multipliers(scores.shape, 0.3, int(draw_seed()))
    expected = attention.to_output((weights @ values).transpose(1, 2).flatten(2))
    real = slice(None) if cross else ~padding
    torch.testing.assert_close(found[real], expected[real])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_to_an_empty_memory_is_zero(dropout):
    attention, x = CrossAttention(D, HEADS, dropout), inputs().float().requires_grad_()
    found = attention(x, attention.read(x, torch.tensor([T, 0, 1])))
    torch.testing.assert_close(found[1], attention.to_output.bias.expand(T, D))
    (grad,) = torch.autograd.grad(found.sum(), x)
    assert grad.isfinite().all()


@pytest.mark.parametrize("heads", [5, 7])
def test_heads_divide_d_model(heads):
    with pytest.raises(ValueError, match=f"d_model: expected a multiple of heads = {heads}, got 12"):
        SelfAttention(D, heads)


def encoder_layer(ours, rate):
    """PyTorch's layer with our parameters."""
    theirs = nn.TransformerEncoderLayer(D, HEADS, 20, rate, batch_first=True, norm_first=True, dtype=torch.float64)
    attention, (first, _, second) = ours.attention.function, ours.feed_forward.function
    theirs.self_attn = multihead(attention, attention.to_queries_keys_values)
    theirs.self_attn.dropout = rate
    pairs = (
        (theirs.norm1, ours.attention.norm),
        (theirs.norm2, ours.feed_forward.norm),
        (theirs.linear1, first),
        (theirs.linear2, second),
    )
    with torch.no_grad():
        for to, source in pairs:
            to.weight.copy_(source.weight.normal_())
            to.bias.copy_(source.bias.normal_())
    return theirs


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_layer_equals_pytorch_with_dropout(rate):
    """With the same seed, results agree in training mode too, so dropout is in the same places in the same order.

    There is only one sequence, because the memory layout of PyTorch's batches differs, and random numbers depend on it.
    """
    ours = TransformerLayer(SoftmaxSpec(), D, heads=HEADS, hidden_size=20, dropout=rate).double()
    theirs, x = encoder_layer(ours, rate), inputs()[:1]
    mask = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
    for training in (True, False):
        ours.train(training)
        theirs.train(training)
        torch.manual_seed(1)
        expected = theirs(x, src_mask=mask, is_causal=True)
        torch.manual_seed(1)
        torch.testing.assert_close(ours(x), expected)
    torch.testing.assert_close(ours(x), ours(x), atol=0, rtol=0)
    ours.train()
    assert torch.allclose(ours(x), ours(x)) == (rate == 0)


@pytest.mark.parametrize("spec", [SUPERPOSITION, NONDETERMINISTIC])
@pytest.mark.parametrize("cross", [False, True])
def test_stack_layer_equals_its_equations_with_dropout(spec, cross):
    layer = TransformerLayer(spec, D, heads=HEADS, hidden_size=20, dropout=0.3, cross_attention=cross).double()
    x, memory = inputs(), inputs(4)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)

    def norm(x, sublayer):
        return layer_norm(x, (D,), sublayer.norm.weight, sublayer.norm.bias, 1e-5)

    for training in (True, False):
        layer.train(training)
        torch.manual_seed(1)
        y = x + dropout(layer.attention.function(norm(x, layer.attention)), 0.3, training)
        if cross:
            attention = layer.cross.function
            assert attention.dropout == 0.3
            y = y + dropout(attention(norm(y, layer.cross), attention.read(memory)), 0.3, training)
        first, _, second = layer.feed_forward.function
        hidden = dropout(relu(first(norm(y, layer.feed_forward))), 0.3, training)
        expected = y + dropout(second(hidden), 0.3, training)
        torch.manual_seed(1)
        torch.testing.assert_close(layer(x, None, layer.read(memory, None)), expected)


def test_no_dropout_inside_the_stack():
    for spec in (SUPERPOSITION, NONDETERMINISTIC):
        attention = TransformerLayer(spec, D, heads=HEADS, hidden_size=20, dropout=0.9).train().attention.function
        x = torch.randn(B, T, D)
        torch.testing.assert_close(attention(x), attention(x), atol=0, rtol=0)


@pytest.mark.parametrize(
    ("spec", "published"),
    [(SUPERPOSITION, "identity"), (NONDETERMINISTIC, "exp")],
)
def test_push_activation(spec, published):
    def activation(**options):
        return TransformerLayer(spec, 4, heads=2, hidden_size=4, **options).attention.function.push_activation

    assert activation() == "sigmoid"
    assert activation(push_activation="published") == published
    assert activation(push_activation="identity") == "identity"
    with pytest.raises(ValueError, match=r"push_activation: expected one of .*, 'published', got 'paper'"):
        activation(push_activation="paper")


def test_sinusoids():
    found = sinusoids(torch.tensor([[0, 1], [7, 300]]), 6, torch.float64)
    for at, position in (((0, 0), 0), ((0, 1), 1), ((1, 0), 7), ((1, 1), 300)):
        for i in range(3):
            angle = torch.tensor(position / 10000 ** (2 * i / 6), dtype=torch.float64)
            torch.testing.assert_close(found[at][2 * i], angle.sin(), atol=1e-12, rtol=0)
            torch.testing.assert_close(found[at][2 * i + 1], angle.cos(), atol=1e-12, rtol=0)


LISTS = {
    "1": [SoftmaxSpec()],
    "5": [SoftmaxSpec()] * 5,
    "2.nondeterministic-3-3-5.2": [
        SoftmaxSpec(),
        SoftmaxSpec(),
        StackSpec("nondeterministic", (3, 3, 5)),
        SoftmaxSpec(),
        SoftmaxSpec(),
    ],
    "superposition-32": [StackSpec("superposition", (32,))],
    "superposition-32x4.nondeterministic-2-3-10x2.1": [
        StackSpec("superposition", (32,), 4),
        StackSpec("nondeterministic", (2, 3, 10), 2),
        SoftmaxSpec(),
    ],
    "superposition-32d64": [StackSpec("superposition", (32,), limit=64)],
    "superposition-8d5x2": [StackSpec("superposition", (8,), 2, 5)],
    "superposition-1.superposition-1": [StackSpec("superposition", (1,))] * 2,
}


@pytest.mark.parametrize("text", LISTS)
def test_layer_notation(text):
    assert parse_layers(text) == LISTS[text]
    assert format_layers(LISTS[text]) == text


def test_formatting_adds_neighbouring_numbers():
    assert format_layers(parse_layers("1.2.superposition-3x1.1.1")) == "3.superposition-3.2"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", ""),
        ("0", "0"),
        ("-1", "-1"),
        ("2..2", ""),
        ("2.", ""),
        ("2x3", "2x3"),
        ("2x", "2x"),
        ("1_0", "1_0"),
        (" 2", " 2"),
        ("+2", "+2"),
        ("superposition", "superposition"),
        ("superposition-", "superposition-"),
        ("superposition-3-3", "superposition-3-3"),
        ("superposition-0", "superposition-0"),
        ("superposition-3x0", "superposition-3x0"),
        ("superposition-3x", "superposition-3x"),
        ("superposition-3x2x2", "superposition-3x2x2"),
        ("superposition-3d0", "superposition-3d0"),
        ("superposition-3d", "superposition-3d"),
        ("superposition-3w5", "superposition-3w5"),
        ("stratified-3d5", "stratified-3d5"),
        ("superposition-3x2d5", "superposition-3x2d5"),
        ("2.nondeterministic-3-3.2", "nondeterministic-3-3"),
        ("nondeterministic-3-3-5-1", "nondeterministic-3-3-5-1"),
        ("superpositoin-3", "superpositoin-3"),
    ],
)
def test_wrong_notation_is_refused(text, part):
    with pytest.raises(ValueError, match=r"^layers: expected parts like '2'") as error:
        parse_layers(text)
    assert str(error.value).endswith(f"got {part!r}" if part == text else f"got {part!r} in {text!r}")


def test_an_int_is_a_number_of_softmax_layers():
    assert parse_layers(5) == parse_layers("5")


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("99999999999999999999", "expected at most 1000 layers, got '99999999999999999999'"),
        pytest.param("9" * 5000, r"expected at most 1000 layers, got '9{60}\.\.\.'", id="5000 digits as text"),
        ("1001", "expected at most 1000 layers, got '1001'"),
        ("999.superposition-2.1", "expected at most 1000 layers, got more in '999.superposition-2.1'"),
        ("superposition-1000001", "expected numbers of at most 1000000, got '1000001'"),
        pytest.param("superposition-2x" + "9" * 5000, "expected numbers of at most 1000000", id="5000 digits of heads"),
        (0, "expected 1 to 1000 layers, got 0"),
        (-3, "expected 1 to 1000 layers, got -3"),
        (10**9, "expected 1 to 1000 layers, got 1000000000"),
        pytest.param(10**5000, "expected 1 to 1000 layers, got a number of more than 20 digits", id="5000 digits"),
    ],
)
def test_layers_beyond_the_limits_are_refused(layers, message):
    with pytest.raises(ValueError, match=f"^layers: {message}") as error:
        parse_layers(layers)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("queue", (3,)), "kind: expected one of 'superposition', 'nondeterministic', 'stratified', got 'queue'"),
        (("superposition", (3, 3)), r"sizes: expected \(stack_embedding_size\) for superposition, got \(3, 3\)"),
        (("nondeterministic", (2, 0, 5)), "num_symbols: expected an integer from 1 to 1000000, got 0"),
        (("superposition", (3,), 1, 0), "depth: expected an integer from 1 to 1000000, got 0"),
        (("superposition", (3,), 1, 2.5), "depth: expected an integer from 1 to 1000000, got 2.5"),
        (("stratified", (3,), 1, 5), "limit: expected None for stratified, which has no limit, got 5"),
        (("superposition", (3,), True), "heads: expected an integer from 1 to 1000000, got True"),
    ],
)
def test_wrong_specs_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        StackSpec(*arguments)


@pytest.mark.parametrize("kind", STACK_KINDS)
def test_every_kind_parses_formats_and_builds(kind):
    sizes = tuple(range(2, 2 + len(STACK_KINDS[kind].sizes)))
    spec = StackSpec(kind, sizes, heads=2)
    assert parse_layers(str(spec)) == [spec]
    layer = spec.build(D)
    assert (type(layer), layer.kind, layer.heads) == (STACK_KINDS[kind].layer, kind, 2)
    assert layer(torch.randn(B, T, D)).shape == (B, T, D)


def attend(x, lengths=None):
    return SelfAttention(D, HEADS).double()(x, lengths)


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [
        (ValueError, lambda: SelfAttention(D, 0), "heads: expected a positive integer, got 0"),
        (ValueError, lambda: CrossAttention(D, HEADS, dropout=-0.1), "dropout: expected a number from 0 .* got -0.1"),
        (
            ValueError,
            lambda: attend(torch.zeros(B, D)),
            r"x: expected shape \(B, T, 12\), got \(3, 12\)",
        ),
        (
            TypeError,
            lambda: attend(torch.zeros(B, T, D, dtype=torch.long)),
            r"x: expected a floating-point tensor of shape \(B, T, 12\), got torch.int64",
        ),
        (
            TypeError,
            lambda: attend(inputs().float()),
            "x: expected torch.float64 like the parameters, got torch.float32; convert one of them with .to",
        ),
        (
            TypeError,
            lambda: CrossAttention(D, HEADS).read(inputs()),
            "memory: expected torch.float32 like the parameters, got torch.float64",
        ),
        (TypeError, lambda: attend([[1.0]]), "x: expected a floating-point tensor of shape .* got list"),
        (
            ValueError,
            lambda: attend(inputs()[..., 1:]),
            r"x: expected shape \(B, T, 12\), got \(3, 7, 11\)",
        ),
        (
            ValueError,
            lambda: attend(inputs(), LENGTHS[:2]),
            r"lengths: expected shape \(3,\), got \(2,\)",
        ),
        (TypeError, lambda: attend(inputs(), [7, 4, 1]), "lengths: expected a tensor .* got list"),
        (ValueError, lambda: CrossAttention(D, HEADS).read(inputs()[0]), "memory: expected shape"),
        (TypeError, lambda: parse_layers(2.5), "layers: expected an integer or text such as .* got 2.5"),
        (TypeError, lambda: parse_layers(True), "layers: expected an integer or text such as .* got True"),
    ],
)
def test_errors_name_the_argument(error, call, message):
    with pytest.raises(error, match=message):
        call()
