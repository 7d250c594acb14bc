"""Hugging Face models on a simulated GPU: stacks never wait for the device, and unsupported masks give nan."""

import pytest
import torch
from fake_gpu import fake_gpu
from gpu_with_values import gpu_with_values

pytest.importorskip("transformers")
from huggingface_models import CLASSES, SIZES, STACKS, TOKENS, VOCABULARY
from transformers import DynamicCache, PreTrainedModel

from stackattn.models.huggingface import attention
from stackattn.models.huggingface.attention import CachedStackAttention
from stackattn.nn import SuperpositionStackAttention, adapters
from stackattn.ops import extension, states

B, T = 2, 4


@pytest.fixture(autouse=True)
def _without_addresses(monkeypatch):
    # GPT-2 in transformers reads the token values to warn about padding
    monkeypatch.setattr(PreTrainedModel, "warn_if_padding_and_no_attention_mask", lambda *_, **__: None)
    for module in (extension, states):  # fake tensors have no addresses
        monkeypatch.setattr(module, "same_place", lambda one, other: one is other)


def on(device, architecture, stacks):
    config_class, model_class = CLASSES[architecture]
    with device:
        return model_class(config_class(**SIZES[architecture], **TOKENS, **STACKS[stacks]))


@pytest.mark.parametrize("stacks", ["both", "inserted"])
@pytest.mark.parametrize("architecture", CLASSES)
def test_a_training_step_and_a_cache(architecture, stacks):
    with gpu_with_values() as gpu:
        model = on(gpu.device, architecture, stacks)
        gpu.reads.clear(), gpu.copies.clear()  # those of the initialisation
        tokens = torch.randint(VOCABULARY, (B, T), device=gpu.device)
        cache, results = DynamicCache(config=model.config), [model(tokens, labels=tokens)]
        results += [model(part, past_key_values=cache, use_cache=True) for part in (tokens, tokens[:, :1])]
        sum(result.logits.square().mean() for result in results).backward()
        torch.optim.AdamW(model.parameters()).step()
        assert {x.device for x in (*(p.grad for p in model.parameters()), results[0].loss)} == {gpu.device}
        cache.reorder_cache(torch.arange(B, device=gpu.device).flip(0))
        cache.batch_repeat_interleave(2)
        assert model(tokens[:, :1].repeat(2, 1), past_key_values=cache).logits.shape[0] == 2 * B
        assert gpu.reads == gpu.copies == []
        found = model.eval()(tokens).logits.cpu()
        torch.testing.assert_close(found, model.cpu()(tokens.cpu()).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["rows", "booleans", "numbers"])
def test_padding(form):
    """A mask in each format that transformers passes to an attention layer."""
    with fake_gpu() as gpu:
        with gpu:
            layer = CachedStackAttention(SuperpositionStackAttention(6, 3), 0)
        mask = torch.ones(B, T, dtype=torch.bool, device=gpu)
        if form != "rows":
            mask = mask[:, None, None].expand(B, 1, T, T).tril()
        if form == "numbers":
            mask = torch.zeros(B, 1, T, T, device=gpu).masked_fill(~mask, -torch.inf)
        y, _ = layer(torch.randn(B, T, 6, device=gpu), attention_mask=mask)
        assert y.device == gpu


class Copy(torch.nn.Module):
    def forward(self, x, lengths):
        return x


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_an_unsupported_mask_gives_nan(monkeypatch, dtype):
    layer, x = CachedStackAttention(Copy(), 0), torch.randn(B, T, 6)
    visible = torch.ones(B, 1, T, T, dtype=torch.bool).tril()
    for module in (adapters, attention):
        monkeypatch.setattr(module, "reads_values", lambda device: False)

    def masked(visible):
        mask = visible if dtype == torch.bool else torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)
        return layer(x, attention_mask=mask)[0]

    assert torch.equal(masked(visible), x)
    visible[0, 0, 2, 1] = False
    assert masked(visible).isnan().all()
    if dtype == torch.float32:
        assert layer(x, attention_mask=torch.full((B, 1, T, T), 0.5))[0].isnan().all()
