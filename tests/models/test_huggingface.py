"""GPT-2 of Hugging Face with stack attention: generation, padding, saving."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

from stackattn.models.huggingface import (  # noqa: E402
    GPT2StackAttention,
    StackCacheLayer,
    StackGPT2Config,
    StackGPT2LMHeadModel,
)
from stackattn.nn import NondeterministicStackAttention, SuperpositionStackAttention  # noqa: E402

SIZES = {"vocab_size": 12, "n_positions": 40, "n_embd": 8, "n_layer": 3, "n_head": 2}
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
ONLY_STACKS = "superposition-4.superposition-4.superposition-4"
STACKS = [
    "1.superposition-4x2.1",
    "1.nondeterministic-2-2-3.1",
    "superposition-4.1.nondeterministic-2-2-3",
    ONLY_STACKS,
]


def gpt2(stack_layers=STACKS[0], **options):
    """A model in float64 whose large weights make outputs depend on earlier tokens."""
    torch.manual_seed(0)
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = StackGPT2Config(
        **{**SIZES, **TOKENS, **dropouts, "initializer_range": 0.5, "stack_layers": stack_layers, **options}
    )
    model = StackGPT2LMHeadModel(config).double().eval()
    for module in model.modules():
        if isinstance(module, SuperpositionStackAttention | NondeterministicStackAttention):
            module.to_output.weight.data *= 5
    return model


def prompts(batch=3, length=5):
    torch.manual_seed(1)
    return torch.randint(3, 12, (batch, length))


WAYS = {
    "greedy": {},
    "sampling": {"do_sample": True, "top_k": 0, "top_p": 0.9},
    "beam": {"num_beams": 4},
    "beam sampling": {"num_beams": 3, "do_sample": True, "num_return_sequences": 2},
}


def generate(model, tokens, **options):
    torch.manual_seed(2)
    options = {"attention_mask": torch.ones_like(tokens), "max_new_tokens": 16, **options}
    return model.generate(tokens, **options)


@pytest.mark.parametrize("stack_layers", STACKS)
@pytest.mark.parametrize("way", WAYS)
def test_generation_with_and_without_cache_agree(stack_layers, way):
    model = gpt2(stack_layers)
    widths = []
    model.transformer.h[0].register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[1]))
    cached = generate(model, prompts(), **WAYS[way])
    assert widths == [5] + [1] * (len(widths) - 1), "one token at a time"
    assert torch.equal(cached, generate(model, prompts(), use_cache=False, **WAYS[way]))
    assert len({tuple(row[5:]) for row in cached.tolist()}) > 1, "not the same whatever the prompt"


def test_greedy_generation_equals_full_passes():
    model, tokens = gpt2(), prompts()
    found = generate(model, tokens, min_new_tokens=16)
    with torch.no_grad():
        for _ in range(16):
            logits = model(tokens).logits[:, -1]
            logits[:, TOKENS["eos_token_id"]] = -torch.inf
            tokens = torch.cat([tokens, logits.argmax(-1)[:, None]], dim=1)
    assert torch.equal(found, tokens)


@pytest.mark.parametrize("stack_layers", STACKS)
@torch.no_grad()
def test_logits_step_by_step(stack_layers):
    model, tokens = gpt2(stack_layers), prompts(2, 9)
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
def test_the_last_output_depends_on_the_first_input():
    """All layers have stacks, so no softmax attention can carry the information."""
    model, tokens = gpt2(ONLY_STACKS), prompts(1, 6)
    last = model(tokens).logits[0, -1]
    tokens[0, 0] = (tokens[0, 0] + 1) % 12
    assert (model(tokens).logits[0, -1] - last).abs().max() > 1e-3


@torch.no_grad()
def test_causal():
    model, tokens = gpt2(), prompts(2, 6)
    logits = model(tokens).logits
    tokens[:, 4] = 0
    changed = (model(tokens).logits != logits).any(2).any(0)
    assert changed.tolist() == [False] * 4 + [True] * 2


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("way", ["greedy", "beam"])
@pytest.mark.parametrize("stack_layers", STACKS[:2])
def test_padding_on_the_left(stack_layers, way, attention):
    model, tokens = gpt2(stack_layers, attn_implementation=attention), prompts(3, 6)
    lengths = torch.tensor([6, 2, 4])
    mask = (torch.arange(6) >= 6 - lengths[:, None]).long()
    tokens = tokens.where(mask.bool(), TOKENS["pad_token_id"])
    found = generate(model, tokens, attention_mask=mask, **WAYS[way])
    for row, prompt, n in zip(found, tokens, lengths.tolist(), strict=True):
        alone = generate(model, prompt[6 - n :][None], **WAYS[way])[0, n:]
        assert row[6 : 6 + len(alone)].tolist() == alone.tolist()
        assert (row[6 + len(alone) :] == TOKENS["pad_token_id"]).all()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@torch.no_grad()
def test_padding_on_the_right(attention):
    model, tokens = gpt2(attn_implementation=attention), prompts(2, 6)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    logits = model(tokens, attention_mask=mask).logits
    torch.testing.assert_close(logits[0, :3], model(tokens[:1, :3]).logits[0])
    torch.testing.assert_close(logits[1], model(tokens[1:]).logits[0])


def test_training():
    model = gpt2("1.nondeterministic-2-2-3.1").train()
    tokens = prompts(4, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 4
    stack = model.transformer.h[1].attn.stack
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in stack.parameters())


@pytest.mark.parametrize("stack_layers", STACKS)
def test_saved_and_loaded(stack_layers, tmp_path):
    model = gpt2(stack_layers).float()
    model.save_pretrained(tmp_path)
    for loader in (StackGPT2LMHeadModel, transformers.AutoModelForCausalLM):
        again, info = loader.from_pretrained(tmp_path, output_loading_info=True)
        assert type(again) is StackGPT2LMHeadModel
        assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert again.config.stack_layers == stack_layers
        with torch.no_grad():
            assert torch.equal(again(prompts()).logits, model(prompts()).logits)


def test_stack_in_a_trained_gpt2(tmp_path):
    """All other weights are GPT-2's; those of the stack are initialised, not left uninitialised."""
    torch.manual_seed(0)
    plain = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, **TOKENS))
    plain.save_pretrained(tmp_path)
    model = StackGPT2LMHeadModel.from_pretrained(tmp_path, stack_layers="1.nondeterministic-2-2-3.1")
    stack = model.transformer.h[1].attn.stack
    old = plain.state_dict()
    shared = {name: x for name, x in model.state_dict().items() if "attn.stack" not in name}
    assert len(shared) == len(old) - 4
    assert all(torch.equal(x, old[name]) for name, x in shared.items())
    for linear in (stack.to_actions, stack.to_values, stack.to_output):
        bound = (6 / sum(linear.weight.shape)) ** 0.5
        assert bound / 2 < linear.weight.abs().max() <= bound, "Xavier uniform"
    assert 0 < stack.bottom.abs().max() <= 0.1


def test_without_stacks_equals_gpt2():
    torch.manual_seed(0)
    plain = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, **TOKENS)).eval()
    model = StackGPT2LMHeadModel(StackGPT2Config(**SIZES, **TOKENS)).eval()
    model.load_state_dict(plain.state_dict())
    assert torch.equal(model(prompts()).logits, plain(prompts()).logits)


def test_replacing_attention_in_an_existing_model():
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, **TOKENS, initializer_range=0.5)).eval()
    model.transformer.h[2].attn = GPT2StackAttention(SuperpositionStackAttention(8), layer_idx=2)
    model.double()
    assert torch.equal(
        generate(model, prompts(), num_beams=3), generate(model, prompts(), num_beams=3, use_cache=False)
    )


@torch.no_grad()
def test_cache_is_repeated_selected_and_reset():
    model, tokens = gpt2(), prompts(2, 4)
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
def test_unsupported_masks_and_caches():
    model, tokens = gpt2(), prompts(2, 4)
    window = torch.ones(4, 4, dtype=torch.bool).tril().triu(-1).expand(2, 1, 4, 4)
    with pytest.raises(ValueError, match=r"attention_mask: .*depends on all earlier steps"):
        model(tokens, attention_mask=window)
    bias = torch.zeros(2, 1, 4, 4, dtype=torch.float64).masked_fill(~torch.ones(4, 4).bool().tril(), -1.0)
    with pytest.raises(ValueError, match=r"attention_mask: expected only the values 0 and -inf"):
        model(tokens, attention_mask=bias)
    with pytest.raises(ValueError, match=r"past_key_values: expected a DynamicCache, .*StaticLayer in layer 1"):
        generate(model, tokens, cache_implementation="static", disable_compile=True)
    plain = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES)).double().eval()
    filled = plain(tokens, use_cache=True).past_key_values
    with pytest.raises(ValueError, match=r"past_key_values: .*DynamicLayer in layer 1"):
        model(tokens[:, :1], past_key_values=filled)


def test_wrong_number_of_layers():
    with pytest.raises(ValueError, match=r"stack_layers: expected 3 layers in total, got 2 in '1.superposition-4'"):
        gpt2("1.superposition-4")
