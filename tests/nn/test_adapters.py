"""Stack attention inside PyTorch's own transformer layers."""

import copy

import pytest
import torch
from gpu_with_values import gpu_with_values
from torch import nn

from stackattn.nn import NondeterministicStackAttention, StackSelfAttention, SuperpositionStackAttention
from stackattn.nn import replace_self_attention as replace

B, T, D = 3, 6, 8
STACKS = {
    "superposition": lambda: SuperpositionStackAttention(D, 4, heads=2),
    "nondeterministic": lambda: NondeterministicStackAttention(D, 2, 2, 3),
}


def encoder(stack: str = "superposition", *, index=1, seed=0, **options):
    torch.manual_seed(seed)
    options = {"batch_first": True, "dropout": 0.0, **options}
    layer = nn.TransformerEncoderLayer(D, 2, 16, **options)
    nested = options["batch_first"] and not options.get("norm_first")
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=nested)
    replace(model, {index: STACKS[stack]()})
    return model.eval()


def by_hand(layer, x, causal, padding=None):
    """An encoder layer with post-norm, written out."""
    if isinstance(layer.self_attn, StackSelfAttention):
        y = layer.self_attn.stack(x, None if padding is None else (~padding).sum(1))
    else:
        y = layer.self_attn(x, x, x, attn_mask=causal, key_padding_mask=padding, need_weights=False)[0]
    x = layer.norm1(x + y)
    return layer.norm2(x + layer.linear2(layer.linear1(x).relu()))


CAUSAL = torch.ones(T, T, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "fast path"])
def test_encoder_equals_its_layers_written_out(stack, grad):
    model, x = encoder(stack), torch.randn(B, T, D)
    with torch.set_grad_enabled(grad):
        y = model(x, mask=CAUSAL)
    for layer in model.layers:
        x = by_hand(layer, x, CAUSAL)
    torch.testing.assert_close(y, x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stack", STACKS)
def test_on_a_gpu(stack):
    """With padding anywhere, nothing is read from the GPU, and results and gradients are those of the CPU."""
    padding = torch.zeros(B, T, dtype=torch.bool)
    padding[0, 2], padding[1, 4:] = True, True
    models, data = [encoder(stack).double() for _ in range(2)], (torch.randn(B, T, D).double(), CAUSAL, padding)
    found = []
    with gpu_with_values() as gpu:
        for device, model in zip(("cpu", "cuda"), models, strict=True):
            x, causal, unused = (tensor.to(device) for tensor in data)
            model.to(device)
            gpu.strict = device == "cuda"
            y = model(x, mask=causal, src_key_padding_mask=unused, is_causal=True)
            y.square().sum().backward()
            gpu.strict = False
            found.append([y.detach().cpu(), *(p.grad.cpu() for p in model.parameters())])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("stack", STACKS)
def test_causal(stack):
    model, x = encoder(stack), torch.randn(B, T, D)
    y = model(x, mask=CAUSAL)
    x[:, 4] += 1
    changed = (model(x, mask=CAUSAL) != y).flatten(2).any(2).any(0)
    assert changed.tolist() == [False] * 4 + [True] * 2


@pytest.mark.parametrize("stack", STACKS)
def test_the_last_output_depends_on_the_first_input(stack):
    """There is no softmax attention that could carry the information."""
    attention = StackSelfAttention(STACKS[stack](), batch_first=True)
    x = torch.randn(B, T, D, requires_grad=True)
    attention(x, x, x, need_weights=False)[0][:, -1].sum().backward()
    assert x.grad is not None
    assert (x.grad.abs().sum(-1) > 0).all()


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "fast path"])
def test_padding(stack, index, grad):
    """Padding changes no result, even without gradients, when PyTorch's encoder would use nested tensors."""
    model, x = encoder(stack, index=index), torch.randn(B, T, D)
    lengths = torch.tensor([6, 2, 4])
    padding = torch.arange(T) >= lengths[:, None]
    x[padding] = 1e3
    with torch.set_grad_enabled(grad):
        y = model(x, src_key_padding_mask=padding)
        for b, n in enumerate(lengths):
            torch.testing.assert_close(y[b, :n], model(x[b : b + 1, :n])[0], rtol=1e-4, atol=1e-5)


def test_padding_anywhere():
    attention = StackSelfAttention(STACKS["superposition"](), batch_first=True)
    x = torch.randn(2, T, D)
    padding = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 1, 0]]).bool()
    x[padding] = torch.nan
    y, _ = attention(x, x, x, key_padding_mask=padding, need_weights=False)
    for b in range(2):
        torch.testing.assert_close(y[b, ~padding[b]], attention.stack(x[b, ~padding[b]][None])[0])
    assert (y[padding] == 0).all()


@pytest.mark.parametrize("norm_first", [True, False])
def test_time_first_and_single_sequences(norm_first):
    first, second = (encoder(batch_first=batch_first, norm_first=norm_first) for batch_first in (True, False))
    x = torch.randn(B, T, D)
    y = first(x, mask=CAUSAL)
    torch.testing.assert_close(second(x.transpose(0, 1), mask=CAUSAL).transpose(0, 1), y)
    torch.testing.assert_close(first(x[1], mask=CAUSAL), y[1])
    padding = torch.tensor([True] * 2 + [False] * 4)
    torch.testing.assert_close(first(x[1], src_key_padding_mask=padding)[2:], first(x[1, 2:]))


@pytest.mark.parametrize("stack", STACKS)
def test_training(stack):
    """The last output must predict the first input.

    All other inputs are equal, and only the stack sees earlier steps.
    """
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 1)
    replace(model, {0: STACKS[stack]()})
    model.train()
    assert all(module.training for module in model.modules())
    table, output = nn.Embedding(3, D), nn.Linear(D, 2)
    parameters = [*model.parameters(), *table.parameters(), *output.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.02)
    x = torch.tensor([[0, 2, 2, 2], [1, 2, 2, 2]])
    losses = []
    for _ in range(60):
        loss = nn.functional.cross_entropy(output(model(table(x)))[:, -1], x[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 0.6
    assert losses[-1] < 0.1
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_decoder():
    torch.manual_seed(0)
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, 2, 16, dropout=0.0, batch_first=True), 2).eval()
    replace(model, {-1: STACKS["superposition"]()})
    x, memory = torch.randn(B, T, D), torch.randn(B, 3, D)
    y = model(x, memory, tgt_mask=CAUSAL)
    layer = model.layers[1]
    z = model.layers[0](x, memory, tgt_mask=CAUSAL)
    z = layer.norm1(z + layer.self_attn.stack(z))
    z = layer.norm2(z + layer.multihead_attn(z, memory, memory)[0])
    z = layer.norm3(z + layer.linear2(layer.linear1(z).relu()))
    torch.testing.assert_close(y, z)


def test_replacement_keeps_device_dtype_and_mode():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, 16, batch_first=True), 2).double().eval()
    replace(model, {0: STACKS["nondeterministic"]()})
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert not any(module.training for module in model.modules())
    again = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, 16, batch_first=True), 2).double().eval()
    replace(again, {0: STACKS["nondeterministic"]()})
    again.load_state_dict(copy.deepcopy(model.state_dict()))
    x = torch.randn(B, T, D, dtype=torch.float64)
    assert torch.equal(model(x), again(x))


def test_causal_masks_are_accepted():
    attention = StackSelfAttention(STACKS["superposition"](), batch_first=True)
    x = torch.randn(B, T, D)
    y, weights = attention(x, x, x, need_weights=False)
    assert weights is None
    nothing, per_head = torch.zeros(T, T), CAUSAL.expand(B * 2, T, T)
    for mask in (CAUSAL, nothing, torch.where(CAUSAL, -torch.inf, 0.0), per_head):
        assert torch.equal(attention(x, x, x, attn_mask=mask, need_weights=False)[0], y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attn_mask": ~CAUSAL}, "attn_mask: .*depends on all earlier steps"),
        ({"attn_mask": CAUSAL | (torch.arange(T) == 0)}, "attn_mask: .*depends on all earlier steps"),
        ({"attn_mask": torch.eye(T).bool()}, "attn_mask: .*depends on all earlier steps"),
        ({"attn_mask": torch.randn(T, T)}, "attn_mask: expected only the values 0 and -inf"),
        ({"key_padding_mask": torch.ones(B, T)}, "key_padding_mask: expected only the values 0 and -inf"),
        ({"need_weights": True}, "need_weights: .*return_weights=True"),
        ({"key": torch.zeros(B, T, D)}, "key, value: expected the same tensor as query"),
        ({"value": torch.zeros(B, T, D)}, "key, value: expected the same tensor as query"),
    ],
)
def test_unsupported_arguments(change, message):
    attention = StackSelfAttention(STACKS["superposition"](), batch_first=True)
    x = torch.randn(B, T, D)
    with pytest.raises(ValueError, match=message):
        attention(**{"query": x, "key": x, "value": x, "need_weights": False, **change})


@pytest.mark.parametrize(
    ("index", "d_model", "message"),
    [(3, D, "expected indices from -3 to 2, got 3"), (0, 10, "expected d_model 8 in layer 0, got 10"),
     (1, D, "expected a MultiheadAttention in layer 1, got StackSelfAttention")],
)  # fmt: skip
def test_wrong_layers(index, d_model, message):
    model = encoder()
    with pytest.raises(ValueError, match=message):
        replace(model, {index: SuperpositionStackAttention(d_model)})
