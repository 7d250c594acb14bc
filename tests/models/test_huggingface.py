"""Hugging Face models with stack attention: generation, caches, masks and outputs.

The cases follow the common model and generation tests of transformers, which are not in its wheel.
"""

import pytest
import torch

transformers = pytest.importorskip("transformers")

import huggingface_models as small  # noqa: E402

from stackattn.models.huggingface import CachedStackAttention, StackCacheLayer  # noqa: E402
from stackattn.nn import SuperpositionStackAttention  # noqa: E402

pytestmark = pytest.mark.parametrize("architecture", ["gpt2", "llama"])

WAYS = {
    "greedy": {},
    "sampling": {"do_sample": True, "top_k": 0, "top_p": 0.9},
    "beam": {"num_beams": 4},
    "beam sampling": {"num_beams": 3, "do_sample": True, "num_return_sequences": 2},
}


@pytest.mark.parametrize(
    ("stacks", "way"),
    [*((stacks, "beam") for stacks in small.STACKS), *(("both", way) for way in WAYS if way != "beam")],
)
def test_generation_with_and_without_cache_agree(architecture, stacks, way):
    model = small.make(architecture, stacks)
    widths = []
    small.layers(model)[0].register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[1]))
    cached = small.generate(model, small.prompts(), **WAYS[way])
    assert widths == [5] + [1] * (len(widths) - 1), "expected one token at a time after the prompt"
    assert torch.equal(cached, small.generate(model, small.prompts(), use_cache=False, **WAYS[way]))
    if stacks != "only stacks":  # with only stacks, Llama has no positions and may repeat one token
        assert len({tuple(row[5:]) for row in cached.tolist()}) > 1, "expected different results for different prompts"


def test_greedy_generation_equals_full_passes(architecture):
    model, tokens = small.make(architecture), small.prompts()
    found = small.generate(model, tokens, min_new_tokens=12)
    with torch.no_grad():
        for _ in range(12):
            logits = model(tokens).logits[:, -1]
            logits[:, small.TOKENS["eos_token_id"]] = -torch.inf
            tokens = torch.cat([tokens, logits.argmax(-1)[:, None]], dim=1)
    assert torch.equal(found, tokens)


def test_generation_continues_from_a_cache(architecture):
    model, tokens = small.make(architecture, "inserted"), small.prompts(2)
    options = {"return_dict_in_generate": True, "min_new_tokens": 4}
    first = small.generate(model, tokens, max_new_tokens=4, **options)
    whole = small.generate(model, tokens, max_new_tokens=8, min_new_tokens=8)
    again = small.generate(model, first.sequences, past_key_values=first.past_key_values, max_new_tokens=4, **options)
    assert torch.equal(again.sequences, whole)


def test_generation_from_embeddings(architecture):
    model, tokens = small.make(architecture), small.prompts(2)
    embeddings = model.get_input_embeddings()(tokens)
    torch.testing.assert_close(model(inputs_embeds=embeddings).logits, model(tokens).logits)
    mask = torch.ones_like(tokens)
    found = model.generate(inputs_embeds=embeddings, attention_mask=mask, max_new_tokens=6)
    assert torch.equal(found, small.generate(model, tokens, max_new_tokens=6)[:, 5:])


def test_generation_returns_scores_states_and_attentions(architecture):
    options = {"output_scores": True, "output_attentions": True, "output_hidden_states": True}
    model = small.make(architecture, attn_implementation="eager")
    result = small.generate(
        model, small.prompts(), min_new_tokens=4, max_new_tokens=4, return_dict_in_generate=True, **options
    )
    assert len(result.scores) == len(result.attentions) == len(result.hidden_states) == 4
    assert all(len(step) == small.LAYERS and step[1] is None for step in result.attentions)
    assert [tuple(step[0].shape[2:]) for step in result.attentions] == [(5, 5), (1, 6), (1, 7), (1, 8)]
    assert all(len(step) == small.LAYERS + 1 for step in result.hidden_states)


@pytest.mark.parametrize("way", ["assistant_model", "prompt_lookup_num_tokens"])
def test_assisted_decoding_is_refused(architecture, way):
    model = small.make(architecture)
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models, such as Stack"):
        small.generate(
            model, small.prompts(1), **{way: small.plain(architecture).double() if way == "assistant_model" else 2}
        )


@pytest.mark.parametrize("stacks", small.STACKS)
@torch.no_grad()
def test_logits_step_by_step(architecture, stacks):
    model, tokens = small.make(architecture, stacks), small.prompts(2, 9)
    whole = model(tokens).logits
    for cache in (None, transformers.DynamicCache(), transformers.DynamicCache(config=model.config)):
        rows = []
        for part in tokens.split((4, 1, 3, 1), dim=1):
            result = model(part, past_key_values=cache, use_cache=True)
            cache = result.past_key_values
            rows.append(result.logits)
        torch.testing.assert_close(torch.cat(rows, dim=1), whole)
        assert cache.get_seq_length() == 9


@torch.no_grad()
def test_the_last_output_depends_on_the_first_input(architecture):
    """All layers have stacks, so no softmax attention can carry the information."""
    model, tokens = small.make(architecture, "only stacks"), small.prompts(1, 6)
    last = model(tokens).logits[0, -1]
    tokens[0, 0] = (tokens[0, 0] + 1) % small.VOCABULARY
    assert (model(tokens).logits[0, -1] - last).abs().max() > 1e-3


@pytest.mark.parametrize("stacks", ["both", "inserted"])
@torch.no_grad()
def test_causal(architecture, stacks):
    model, tokens = small.make(architecture, stacks), small.prompts(2, 6)
    logits = model(tokens).logits
    tokens[:, 4] = 0
    changed = (model(tokens).logits != logits).any(2).any(0)
    assert changed.tolist() == [False] * 4 + [True] * 2


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("way", ["greedy", "beam"])
@pytest.mark.parametrize("stacks", ["both", "inserted"])
def test_padding_on_the_left(architecture, stacks, way, implementation):
    model, tokens = small.make(architecture, stacks, attn_implementation=implementation), small.prompts(3, 6)
    model.float()  # in float64, Llama's eager softmax gives nan at padding: the mask overflows in float32
    lengths = torch.tensor([6, 2, 4])
    mask = (torch.arange(6) >= 6 - lengths[:, None]).long()
    tokens = tokens.where(mask.bool(), small.TOKENS["pad_token_id"])
    found = small.generate(model, tokens, attention_mask=mask, **WAYS[way])
    for row, prompt, n in zip(found, tokens, lengths.tolist(), strict=True):
        alone = small.generate(model, prompt[6 - n :][None], **WAYS[way])[0, n:]
        assert row[6 : 6 + len(alone)].tolist() == alone.tolist()
        assert (row[6 + len(alone) :] == small.TOKENS["pad_token_id"]).all()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@torch.no_grad()
def test_padding_on_the_right(architecture, implementation):
    model, tokens = small.make(architecture, "inserted", attn_implementation=implementation), small.prompts(2, 6)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    logits = model(tokens, attention_mask=mask).logits
    torch.testing.assert_close(logits[0, :3], model(tokens[:1, :3]).logits[0])
    torch.testing.assert_close(logits[1], model(tokens[1:]).logits[0])


@torch.no_grad()
def test_outputs_keep_the_positions_of_layers(architecture):
    model = small.make(architecture, "both", attn_implementation="eager")
    result = model(small.prompts(2, 6), output_attentions=True, output_hidden_states=True)
    assert [None if x is None else x.dim() for x in result.attentions] == [None, 4, None]
    assert len(result.hidden_states) == small.LAYERS + 1
    inserted = small.make(architecture, "inserted", attn_implementation="eager")
    assert [x.dim() for x in inserted(small.prompts(2, 6), output_attentions=True).attentions] == [4] * small.LAYERS
    model.set_attn_implementation("sdpa")  # returns no weights, so there are no positions to keep
    assert model(small.prompts(2, 6), output_attentions=True).attentions == ()


@torch.no_grad()
def test_tuples_equal_outputs_with_names(architecture):
    model, tokens = small.make(architecture), small.prompts()
    named = model(tokens, labels=tokens, use_cache=False)
    loss, logits = model(tokens, labels=tokens, use_cache=False, return_dict=False)[:2]
    assert torch.equal(loss, named.loss)
    assert torch.equal(logits, named.logits)


def test_embeddings_are_resized(architecture):
    model = small.make(architecture)
    expected = model(small.prompts()).logits
    model.resize_token_embeddings(small.VOCABULARY + 4, mean_resizing=False)
    found = model(small.prompts()).logits
    assert found.shape[-1] == small.VOCABULARY + 4
    torch.testing.assert_close(found[..., : small.VOCABULARY], expected)


@torch.no_grad()
def test_cache_is_repeated_selected_and_reset(architecture):
    model, tokens = small.make(architecture), small.prompts(2, 4)
    cache = model(tokens, use_cache=True).past_key_values
    assert isinstance(cache.layers[1], StackCacheLayer)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([2, 1]))
    more = torch.tensor([[3], [4]])
    expected = model(torch.cat([tokens[[1, 0]], more], dim=1)).logits[:, -1:]
    torch.testing.assert_close(model(more, past_key_values=cache).logits, expected)
    cache.reset()
    assert cache.get_seq_length() == cache.layers[1].get_seq_length() == 0
    torch.testing.assert_close(model(tokens, past_key_values=cache).logits, model(tokens).logits)
    cache.crop(0)
    with pytest.raises(NotImplementedError, match=r"a stack cannot remove tokens"):
        cache.crop(-1)


@torch.no_grad()
def test_limited_stacks_have_caches_of_constant_size(architecture):
    model, cache, sizes = small.make(architecture, "limited"), None, []
    for token in small.prompts(2, 20).split(1, dim=1):
        cache = model(token, past_key_values=cache, use_cache=True).past_key_values
        numbers = []
        for layer in (cache.layers[0], cache.layers[2]):
            layer.state.map(lambda x, numbers=numbers: numbers.append(x.numel()) or x)
        sizes.append(numbers)
    assert sizes[0] < sizes[5] == sizes[19]
    other = small.make(architecture, stack_layers="superposition-4d3.1.nondeterministic-2-2-3w4")
    with pytest.raises(ValueError, match="state: expected a state with window 4 like the layer, got window 3"):
        other(small.prompts(2, 1), past_key_values=cache)


@torch.no_grad()
def test_unsupported_masks_and_caches(architecture):
    model, tokens = small.make(architecture), small.prompts(2, 4)
    window = torch.ones(4, 4, dtype=torch.bool).tril().triu(-1).expand(2, 1, 4, 4)
    with pytest.raises(ValueError, match=r"attention_mask: .*depends on all earlier steps"):
        model(tokens, attention_mask=window)
    bias = torch.zeros(2, 1, 4, 4, dtype=torch.float64).masked_fill(~torch.ones(4, 4).bool().tril(), -1.0)
    with pytest.raises(ValueError, match=r"attention_mask: expected only the values 0 and -inf"):
        model(tokens, attention_mask=bias)
    with pytest.raises(ValueError, match=r"past_key_values: expected a DynamicCache, .*StaticLayer in layer 1"):
        small.generate(model, tokens, cache_implementation="static", disable_compile=True)
    filled = small.plain(architecture).double()(tokens, use_cache=True).past_key_values
    with pytest.raises(ValueError, match=r"past_key_values: .*DynamicLayer in layer 1"):
        model(tokens[:, :1], past_key_values=filled)
    layer = CachedStackAttention(SuperpositionStackAttention(8), layer_idx=0)
    with pytest.raises(TypeError, match=r"attention_mask: expected a tensor, got list; .*'eager' or 'sdpa'"):
        layer(torch.zeros(1, 2, 8), attention_mask=[[1, 1]])  # such as the BlockMask of flex attention


def test_without_stacks_equals_the_plain_model(architecture):
    ours = small.make(architecture, stack_layers=None).float()
    ours.load_state_dict(small.plain(architecture).state_dict())
    assert torch.equal(ours(small.prompts()).logits, small.plain(architecture)(small.prompts()).logits)


def test_replacing_attention_in_an_existing_model(architecture):
    model = small.plain(architecture).double()
    layer = small.layers(model)[2]
    name = next(name for name, child in layer.named_children() if child is small.attention(layer))
    setattr(layer, name, CachedStackAttention(SuperpositionStackAttention(8).double(), layer_idx=2))
    cached = small.generate(model, small.prompts(), num_beams=3)
    assert torch.equal(cached, small.generate(model, small.prompts(), num_beams=3, use_cache=False))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"stack_layers": "1.superposition-4"},
            "stack_layers: expected 3 layers in total, got 2 in '1.sup",
        ),
        ({"inserted_stacks": "2.superposition-4"}, "inserted_stacks: expected numbers that sum to 3, .*got '2.sup"),
        ({"inserted_stacks": "superposition-4.3"}, "inserted_stacks: expected a number of layers before the first"),
    ],
)
def test_wrong_number_of_layers(architecture, options, message):
    with pytest.raises(ValueError, match=message):
        small.make(architecture, **{"stack_layers": None, **options})
