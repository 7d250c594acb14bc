"""How models represent positions (`sinusoidal`, `rotary`, `none`), and models that consist of stack layers only."""

import pytest
import torch

from stackattn.models import Seq2SeqConfig, Seq2SeqTransformer, TransformerLM, TransformerLMConfig, load, save
from stackattn.nn import SelfAttention
from stackattn.nn.attention import rotate

SIZES = {"input_size": 7, "output_size": 7, "d_model": 16, "heads": 2, "dropout": 0.0, "init_range": 0.5}


def language_model(**options):
    torch.manual_seed(0)
    return TransformerLM(TransformerLMConfig(**SIZES, **options)).eval()


@pytest.fixture
def tokens():
    return torch.randint(7, (3, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("positions", "invariant"), [("none", True), ("sinusoidal", False), ("rotary", False)])
def test_only_a_model_without_positions_ignores_the_order_of_earlier_tokens(positions, invariant, tokens):
    """One layer of softmax attention treats the earlier tokens as a set."""
    model = language_model(layers=1, positions=positions)
    order = torch.tensor([4, 2, 0, 6, 1, 7, 3, 5, 8])
    same = torch.allclose(model(tokens)[:, -1], model(tokens[:, order])[:, -1], atol=1e-6)
    assert same is invariant


def test_rotated_dot_products_depend_on_the_distance():
    x, y = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert torch.equal(rotate(x, torch.tensor(0)), x)
    products = [rotate(x, torch.tensor(t + 3)) @ rotate(y, torch.tensor(t)) for t in (0, 5, 400)]
    torch.testing.assert_close(products[1:], [products[0]] * 2)
    assert abs(rotate(x, torch.tensor(4)) @ y - products[0]) > 1e-3


def test_rotary_attention_equals_its_definition():
    torch.manual_seed(3)
    attention = SelfAttention(8, heads=2, rotary=True).double()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    queries, keys, values = attention.to_queries_keys_values(x)[0].view(5, 3, 2, 4).unbind(1)
    expected = torch.zeros(5, 2, 4, dtype=torch.float64)
    for t in range(5):
        for head in range(2):
            query = rotate(queries[t, head], torch.tensor(t))
            scores = torch.stack([query @ rotate(keys[s, head], torch.tensor(s)) for s in range(t + 1)]) / 2
            expected[t, head] = scores.softmax(0) @ values[: t + 1, head]
    torch.testing.assert_close(attention(x)[0], attention.to_output(expected.flatten(1)))


@pytest.mark.parametrize("positions", ["rotary", "none"])
@pytest.mark.parametrize("layers", ["2", "1.superposition-4.1", "nondeterministic-2-2-3"])
def test_reading_in_chunks_equals_reading_at_once(positions, layers, tokens):
    model = language_model(layers=layers, positions=positions)
    lengths = torch.tensor([9, 6, 4])
    expected = model(tokens, lengths)
    first, state = model.extend(tokens[:, :4], model.initial_state(3))
    second, state = model.extend(tokens[:, 4:7], state, lengths=torch.tensor([3, 2, 0]))
    torch.testing.assert_close(first, expected[:, :4])
    torch.testing.assert_close(second[0], expected[0, 4:7])
    torch.testing.assert_close(second[1, :2], expected[1, 4:6])
    # after padding, positions continue from the number of tokens that were read
    third, _ = model.extend(tokens[:, 6:8], state)
    alone = model(torch.cat([tokens[2:, :4], tokens[2:, 6:8]], dim=1))
    torch.testing.assert_close(third[2], alone[0, 4:])


def test_translation_with_rotary_positions_and_without_any(tokens):
    logits = []
    for positions in ("rotary", "none"):
        torch.manual_seed(0)
        model = Seq2SeqTransformer(Seq2SeqConfig(**SIZES, layers=1, positions=positions)).eval()
        expected = model(tokens, tokens[:, :5])
        found, _ = model.extend(tokens[:, :5], model.initial_state(tokens))
        torch.testing.assert_close(found, expected)
        logits.append(expected)
    assert not torch.allclose(*logits)


def test_a_saved_model_keeps_its_positions(tmp_path, tokens):
    model = language_model(layers="superposition-4.1", positions="rotary")
    save(model, tmp_path / "model")
    assert torch.equal(load(tmp_path / "model").eval()(tokens), model(tokens))


def test_a_model_may_consist_of_one_stack_layer(tokens):
    model = language_model(layers="nondeterministic-3-3-5", positions="none")
    assert len(model.trunk.layers) == 1
    model(tokens).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_softmax_layer_can_be_initialised_like_a_stack_layer():
    options = {**SIZES, "init_range": 0.01}
    model = TransformerLM(TransformerLMConfig(**options, layers=3, xavier_layer=2))
    usual, like_a_stack, _ = model.trunk.layers
    for layer, small in ((usual, True), (like_a_stack, False)):
        maps = [layer.attention.function.to_queries_keys_values, layer.attention.function.to_output]
        maps += [layer.feed_forward.function[0], layer.feed_forward.function[2]]
        assert all((linear.weight.abs().max() <= 0.01).item() is small for linear in maps)
        assert all((linear.bias == 0).all().item() is not small for linear in maps)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": "learned"}, "positions: expected one of 'sinusoidal', 'rotary', 'none', got 'learned'"),
        ({"layers": "1.superposition-4.1", "xavier_layer": 2}, "xavier_layer: expected the number of a softmax"),
        ({"layers": 1, "xavier_layer": 0}, r"one of \[1\], got 0"),
        (
            {"positions": "rotary", "d_model": 6, "heads": 2},
            "positions: expected an even d_model / heads for rotary, got 6 / 2 = 3",
        ),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        TransformerLMConfig(**{**SIZES, **options})


def test_rotary_positions_need_an_even_head_size():
    with pytest.raises(ValueError, match=r"rotary: expected an even head size, got d_model / heads = 6 / 2 = 3"):
        SelfAttention(6, heads=2, rotary=True)
