"""Transformers compared with PyTorch's, and their initialisation with the paper's."""

from dataclasses import replace
from math import cos, sin, sqrt

import pytest
import torch
from subjects import TOKENS, D, lm, seq2seq
from torch import nn
from torch.nn.functional import linear

from stackattn.models import Seq2SeqConfig, Seq2SeqTransformer, TransformerLM, TransformerLMConfig
from stackattn.nn import SelfAttention, sinusoids
from stackattn.ops import reference
from stackattn.paper.models import paper_config

B, T = 3, 7


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def copy(to, source):
    with torch.no_grad():
        to.weight.copy_(source.weight)
        to.bias.copy_(source.bias)


def copy_attention(theirs, ours):
    maps = [ours.to_queries_keys_values] if isinstance(ours, SelfAttention) else [ours.to_queries, ours.to_keys_values]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([x.weight for x in maps]))
        theirs.in_proj_bias.copy_(torch.cat([x.bias for x in maps]))
    copy(theirs.out_proj, ours.to_output)


def copy_layers(theirs, ours):
    """Copy the parameters of our layers to an nn.TransformerEncoder or nn.TransformerDecoder."""
    for their, our in zip(theirs.layers, ours.layers, strict=True):
        copy_attention(their.self_attn, our.attention.function)
        sublayers = [our.attention, our.feed_forward]
        if our.cross is not None:
            copy_attention(their.multihead_attn, our.cross.function)
            sublayers.insert(1, our.cross)
        for i, sublayer in enumerate(sublayers):
            copy(getattr(their, f"norm{i + 1}"), sublayer.norm)
        first, _, second = our.feed_forward.function
        copy(their.linear1, first)
        copy(their.linear2, second)
    copy(theirs.norm, ours.norm)
    return theirs


def pytorch_trunk(kind, config, layers):
    """Create an nn.TransformerEncoder or nn.TransformerDecoder with the sizes of a configuration."""
    of_layers = getattr(nn, f"Transformer{kind}Layer")
    sizes = (config.d_model, config.heads, config.hidden_size, config.dropout)
    layer = of_layers(*sizes, batch_first=True, norm_first=True)
    extra = {"enable_nested_tensor": False} if kind == "Encoder" else {}
    return getattr(nn, f"Transformer{kind}")(layer, layers, norm=nn.LayerNorm(config.d_model), **extra)


def noisy(model):
    """Add noise to all parameters: values such as 1 and 0 in layer norms could hide errors."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def embed(model, tokens):
    table = model.embedding.table.weight
    return table[tokens] * sqrt(table.shape[1]) + sinusoids(torch.arange(tokens.shape[1]), table.shape[1])


@pytest.mark.parametrize("tied", [False, True])
def test_language_model_equals_pytorch(tied):
    config = replace(paper_config("hardest-cfl", "Tf"), tied=tied)
    ours = noisy(TransformerLM(config)).eval()
    theirs = copy_layers(pytorch_trunk("Encoder", config, 5), ours.trunk).eval()
    tokens = torch.randint(config.input_size, (B, 40))
    mask = nn.Transformer.generate_square_subsequent_mask(40)
    hidden = theirs(embed(ours, tokens), mask=mask, is_causal=True)
    expected = linear(hidden, ours.embedding.table.weight) if tied else ours.output(hidden)
    assert expected.std() > 0.5
    torch.testing.assert_close(ours(tokens), expected, atol=1e-5, rtol=1e-5)
    ours, theirs = ours.double(), theirs.double()
    hidden = theirs(embed(ours, tokens), mask=mask.double(), is_causal=True)
    expected = linear(hidden, ours.embedding.table.weight) if tied else ours.output(hidden)
    torch.testing.assert_close(ours(tokens), expected, atol=1e-6, rtol=0)


def test_language_model_equals_pytorch_in_training():
    """With the same random numbers, dropout is applied in the same places, including the embeddings.

    There is only one sequence, so that the memory layouts agree, and the dtype is float64, for which the model uses
    PyTorch's dropout.
    """
    config = replace(paper_config("dyck", "Tf"), dropout=0.2)
    ours = noisy(TransformerLM(config))
    theirs = copy_layers(pytorch_trunk("Encoder", config, 5), ours.trunk).double()
    ours = ours.double()
    tokens = torch.randint(config.input_size, (1, 20))
    torch.manual_seed(1)
    x = nn.functional.dropout(embed(ours, tokens), 0.2)
    mask = nn.Transformer.generate_square_subsequent_mask(20, dtype=torch.float64)
    expected = ours.output(theirs(x, mask=mask, is_causal=True))
    torch.manual_seed(1)
    torch.testing.assert_close(ours(tokens), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(ours(tokens), ours(tokens))
    ours.eval()
    torch.testing.assert_close(ours(tokens), ours(tokens), atol=0, rtol=0)


def test_seq2seq_equals_pytorch():
    ours = noisy(seq2seq("2", "3").double()).eval()
    encoder = copy_layers(pytorch_trunk("Encoder", ours.config, 2).double(), ours.encoder).eval()
    decoder = copy_layers(pytorch_trunk("Decoder", ours.config, 3).double(), ours.decoder).eval()
    source, target = torch.randint(TOKENS + 2, (B, 6)), torch.randint(TOKENS + 2, (B, T))
    lengths = torch.tensor([6, 3, 1])
    padding = torch.arange(6) >= lengths[:, None]
    memory = encoder(embed(ours, source), src_key_padding_mask=padding)
    mask = nn.Transformer.generate_square_subsequent_mask(T).double()
    float_padding = torch.zeros(B, 6).double().masked_fill(padding, -torch.inf)
    hidden = decoder(embed(ours, target), memory, tgt_mask=mask, memory_key_padding_mask=float_padding)
    expected = linear(hidden, ours.embedding.table.weight)[..., :TOKENS]  # the last two tokens occur only in inputs
    torch.testing.assert_close(ours(source.masked_fill(padding, -5), target, lengths), expected, atol=1e-6, rtol=0)


def test_the_first_prediction_depends_on_the_whole_source():
    model = noisy(seq2seq("2", "1")).double().eval()
    source, target = torch.zeros(1, 5, dtype=torch.long), torch.zeros(1, 3, dtype=torch.long)
    before = model(source, target)
    for i in range(5):
        changed = source.clone()
        changed[0, i] = 1
        assert not torch.isclose(model(changed, target)[0, 0], before[0, 0]).all()


def test_stack_model_equals_its_equations():
    """One superposition layer, written out with the reference operator."""
    model = noisy(lm("superposition-4", dropout=0.5)).double().eval()
    tokens = torch.randint(TOKENS, (B, T))
    layer = model.trunk.layers[0]
    x = embed(model, tokens)
    attention, normed = layer.attention.function, layer.attention.norm(x)
    actions = attention.to_actions(normed).softmax(-1)
    readings = reference.superposition_readings(actions, attention.to_values(normed).sigmoid())
    x = x + attention.to_output(readings)
    first, _, second = layer.feed_forward.function
    x = x + second(first(layer.feed_forward.norm(x)).relu())
    torch.testing.assert_close(model(tokens), model.output(model.trunk.norm(x)), atol=1e-6, rtol=0)


@pytest.mark.parametrize("published", [False, True])
def test_push_activation(published):
    for layers, activation in (("superposition-3", "identity"), ("nondeterministic-2-2-2", "exp")):
        model = lm(layers, push_activation="published" if published else "sigmoid")
        assert model.trunk.layers[0].attention.function.push_activation == (activation if published else "sigmoid")
        both = seq2seq(layers, layers, push_activation="published" if published else "sigmoid")
        for part in (both.encoder, both.decoder):
            assert part.layers[0].attention.function.push_activation == (activation if published else "sigmoid")


def uniform(x, bound):
    """Return whether x is plausible as a sample of the uniform distribution on (-bound, bound)."""
    n = x.numel()
    x = x.detach() / bound
    return bool(
        (x.abs() <= 1).all()
        and x.abs().max() > 1 - 12 / n
        and abs(x.mean()) < 5 / sqrt(3 * n)
        and abs(x.square().mean() - 1 / 3) < 5 * sqrt(4 / 45 / n)
    )


def xavier(x, gain=1.0):
    return uniform(x, gain * sqrt(6 / sum(x.shape)))


def initialised_as_in_the_paper(model, s):
    """Check every parameter tensor once, and return the number of parameter tensors."""
    left = dict(model.named_parameters())

    def take(name):
        return left.pop(name)

    assert uniform(take("embedding.table.weight"), s)
    if "output.weight" in left:
        assert xavier(take("output.weight"))
        assert (take("output.bias") == 0).all()
    for name in [name for name in left if ".norm." in name]:
        value = 1 if name.endswith("weight") else 0
        assert (take(name) == value).all(), name
    for name in [name for name in left if ".to_actions." in name]:
        attention = name.removesuffix("to_actions.weight")
        for part in ("to_actions", "to_values", "to_output"):
            assert xavier(take(f"{attention}{part}.weight")), part
        feed_forward = attention.replace("attention.function.", "feed_forward.function.")
        assert xavier(take(f"{feed_forward}0.weight"), sqrt(2))
        assert xavier(take(f"{feed_forward}3.weight"))
        assert (take(f"{feed_forward}0.bias") == 0).all()
        assert (take(f"{feed_forward}3.bias") == 0).all()
        if f"{attention}bottom" in left:
            bottom = take(f"{attention}bottom")
            assert (bottom != 0).all()
            assert (bottom.abs() <= s).all()
    for name in list(left):  # softmax and cross-attention, and their feed-forward networks, with biases
        assert uniform(take(name), s), name
    assert not left
    return sum(1 for _ in model.parameters())


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("architecture", ["Tf", "Tf+Sup", "Tf+Nd"])
def test_initialisation(architecture, published):
    model = TransformerLM(paper_config("hardest-cfl", architecture, published=published))
    assert initialised_as_in_the_paper(model, 0.1) > 50


@pytest.mark.parametrize("architecture", ["Tf", "Tf+Sup", "Tf+Nd"])
def test_initialisation_of_translation(architecture):
    model = Seq2SeqTransformer(replace(paper_config("mt-160", architecture), input_size=500, output_size=400))
    assert initialised_as_in_the_paper(model, 0.01) > 100
    assert not hasattr(model, "output")


def test_feed_forward_networks_of_stack_layers_are_initialised_differently():
    plain, stack = (TransformerLM(paper_config("dyck", name)).trunk.layers[2] for name in ("Tf", "Tf+Sup"))
    assert plain.feed_forward.function[0].bias.abs().max() > 0
    assert stack.feed_forward.function[0].bias.abs().max() == 0
    assert plain.feed_forward.function[0].weight.abs().max() <= 0.1
    assert stack.feed_forward.function[0].weight.abs().max() > 0.3


def test_initialisation_depends_only_on_the_seed():
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(lm("1.superposition-3"))
    one, same, other = (torch.cat([x.flatten() for x in model.parameters()]) for model in models)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("layers", ["2", "1.superposition-4", "1.nondeterministic-2-2-3"])
@pytest.mark.usefixtures("without_onednn")
def test_dtypes(layers):
    model = lm(layers).eval()
    tokens = torch.randint(TOKENS, (B, T))
    expected = model(tokens)
    for dtype, tolerance in ((torch.float64, 1e-5), (torch.bfloat16, 0.2)):
        found = model.to(dtype)(tokens)
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), expected, atol=tolerance, rtol=0)
        assert model.extend(tokens, model.initial_state(B))[0].dtype == dtype


def translate(source, target, **options):
    return seq2seq("1", "1")(source, target, **options)


TEXT = torch.zeros(B, T, dtype=torch.long)


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [
        (ValueError, lambda: lm("1", d_model=5, heads=1), "d_model: expected an even number, got 5"),
        (ValueError, lambda: lm("1", heads=4), f"d_model: expected a multiple of heads = 4, got {D}"),
        (ValueError, lambda: lm("1", heads=0), "heads: expected a positive integer, got 0"),
        (ValueError, lambda: lm("1", hidden_size=True), "hidden_size: expected a positive integer, got True"),
        (ValueError, lambda: lm("1.stack"), r"layers: expected parts like .* got 'stack' in '1.stack'"),
        (
            TypeError,
            lambda: TransformerLMConfig(input_size=5, output_size=5, layers=2.5),
            "layers: expected an integer or text such as .* got 2.5",
        ),
        (ValueError, lambda: lm("1", dropout=1.0), "dropout: expected a number from 0 to less than 1, got 1.0"),
        (ValueError, lambda: lm("1", dropout="0.1"), "dropout: expected a number from 0 to less than 1, got '0.1'"),
        (ValueError, lambda: lm("1", init_range=-0.1), "init_range: expected a finite number of at least 0, got -0.1"),
        (
            ValueError,
            lambda: TransformerLMConfig(input_size=5, output_size=6, tied=True),
            "output_size: expected at most input_size = 5, .* got 6",
        ),
        (
            ValueError,
            lambda: Seq2SeqConfig(input_size=5, output_size=6),
            "output_size: expected at most input_size = 5, .* got 6",
        ),
        (TypeError, lambda: lm("1")(TEXT.float()), "tokens: expected a tensor of int64 or int32, got torch.float32"),
        (TypeError, lambda: lm("1")([[1, 2]]), "tokens: expected a tensor of int64 or int32, got list"),
        (ValueError, lambda: lm("1")(TEXT[0]), rf"tokens: expected shape \(B, T\), got \({T},\)"),
        (
            ValueError,
            lambda: lm("1")(TEXT + TOKENS),
            f"tokens: expected tokens from 0 to {TOKENS - 1}, got {TOKENS} in",
        ),
        (
            ValueError,
            lambda: lm("1")(TEXT - 1),
            f"tokens: expected tokens from 0 to {TOKENS - 1}, got -1 in sequence 0",
        ),
        (ValueError, lambda: lm("1")(TEXT, TEXT[:, :1]), rf"lengths: expected shape \({B},\), got \({B}, 1\)"),
        (ValueError, lambda: translate(TEXT - 1, TEXT), "source: expected tokens from 0 to"),
        (ValueError, lambda: translate(TEXT, TEXT + 99), "target: expected tokens from 0 to .* got 99"),
        (TypeError, lambda: translate(TEXT, TEXT.double()), "target: expected a tensor of int64"),
        (TypeError, lambda: translate(TEXT, TEXT, source_lengths=[1]), "lengths: expected a tensor .* got list"),
    ],
)
def test_errors_name_the_argument(error, call, message):
    with pytest.raises(error, match=message):
        call()


def test_positional_encodings_have_the_precision_of_the_model():
    model = lm("1").double().eval()
    found = model.embedding(torch.zeros(1, 3000, dtype=torch.long), None) - model.embedding.table.weight[0] * sqrt(D)
    for t in (1, 2999):
        angles = [t / 10000 ** (i / D) for i in range(0, D, 2)]
        expected = torch.tensor([[sin(x), cos(x)] for x in angles], dtype=torch.float64).flatten()
        torch.testing.assert_close(found[0, t], expected, atol=1e-12, rtol=0)
