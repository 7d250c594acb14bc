"""Full passes, single steps and chunks give the same results for all layers and models; states are immutable."""

from itertools import pairwise

import pytest
import torch
from subjects import NAMES, make

from stackattn.models import LSTMLM, LSTMConfig, TransformerLM, TransformerLMConfig

B, T = 3, 6
close = {"atol": 1e-10, "rtol": 1e-8}

# Number of steps that each of the three sequences takes in each chunk; a chunk is as long as the largest number.
PLANS = {
    "step by step": [[1, 1, 1]] * T,
    "one chunk": [[T, T, T]],
    "chunks": [[2, 2, 2], [3, 3, 3], [1, 1, 1]],
    "an empty chunk": [[0, 0, 0], [4, 4, 4], [0, 0, 0], [2, 2, 2]],
    "ragged at the end": [[2, 2, 2], [4, 1, 0]],
    "ragged in steps": [[1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 0]],
    "ragged throughout": [[3, 1, 0], [0, 2, 2], [2, 0, 1], [1, 3, 1]],
    "one at a time": [[0, 0, 4], [0, 5, 0], [1, 0, 0], [2, 0, 1]],
}


def run(subject, x, plan):
    """Run the plan, and return one tensor of outputs per sequence."""
    state, at = subject.initial_state(len(x)), torch.zeros(len(x), dtype=torch.long)
    found = [[] for _ in x]
    for shares in plan:
        lengths, c = torch.tensor(shares), max(shares)
        index = (at[:, None] + torch.arange(c)).clamp(max=x.shape[1] - 1)
        chunk = subject.spoil(x[torch.arange(len(x))[:, None], index], lengths)
        y, state = subject.extend(chunk, state, None if (lengths == c).all() else lengths)
        assert y.shape[:2] == chunk.shape[:2]
        for b, share in enumerate(shares):
            found[b].append(y[b, :share])
        at += lengths
    return [torch.cat(rows) for rows in found]


def gradients(subject, x, outputs):
    """Return the gradients of a loss that weights each output differently."""
    generator = torch.Generator().manual_seed(1)
    loss = sum((y * torch.randn(y.shape, generator=generator, dtype=y.dtype)).sum() for y in outputs)
    inputs = list(subject.module.parameters()) + [x] * x.requires_grad
    return torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", NAMES)
def test_full_pass_equals_any_chunks(name, plan):
    subject = make(name).with_source(B)
    lengths = torch.tensor(PLANS[plan]).sum(0)
    x = subject.inputs(B, int(lengths.max())).requires_grad_(subject.is_layer)
    garbage = subject.spoil(x, lengths)
    whole = [subject.full(x[b : b + 1, :n]) if subject.source is None else None for b, n in enumerate(lengths)]
    full = subject.full(garbage, lengths)
    full = [full[b, :n] for b, n in enumerate(lengths)]
    split = run(subject, x, PLANS[plan])
    for alone, one, other in zip(whole, full, split, strict=True):
        if alone is not None:
            torch.testing.assert_close(one, alone[0], **close)
        torch.testing.assert_close(other, one, **close)
    expected, found = gradients(subject, x, full), gradients(subject, x, split)
    assert all(grad.isfinite().all() for grad in expected)
    assert sum(grad.abs().sum() > 0 for grad in expected) > len(expected) / 2
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, **close)
    if subject.is_layer:
        beyond = torch.arange(x.shape[1]) >= lengths[:, None]
        assert (expected[-1][beyond] == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_full_lengths_equal_no_lengths(name):
    subject = make(name).with_source(B)
    x = subject.inputs(B, T)
    torch.testing.assert_close(subject.full(x, torch.full((B,), T)), subject.full(x), **close)


@pytest.mark.parametrize("T", [0, 1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_short_sequences_and_empty_batches(name, T):
    subject = make(name).with_source(B)
    x = subject.inputs(B, T)
    y, state = subject.extend(x, subject.initial_state(B))
    torch.testing.assert_close(subject.full(x), y, **close)
    assert y.shape[:2] == (B, T)
    if subject.source is None:
        assert subject.full(x[:0]).shape == y[:0].shape
        assert subject.full(x[:0], torch.zeros(0, dtype=torch.long)).shape == y[:0].shape
    assert subject.extend(x[:, :0], state)[0].shape[:2] == (B, 0)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_states_branch(name, ragged):
    """Two continuations of one state affect neither each other nor the state."""
    subject = make(name).with_source(B)
    lengths = torch.tensor([3, 1, 0] if ragged else [3, 3, 3])
    x, y = subject.inputs(B, T), subject.inputs(B, T)
    given = lengths if ragged else None
    _, state = subject.extend(subject.spoil(x[:, :3], lengths), subject.initial_state(B), given)

    def ways(state):
        one, one_on = subject.extend(x[:, 3:5], state)
        other, other_on = subject.extend(y[:, 3:5], state)
        later = subject.extend(x[:, 5:], one_on)[0], subject.extend(y[:, 5:], other_on)[0]
        again = subject.extend(x[:, 3:5], state)[0]
        return one, other, *later, again

    one, other, one_later, other_later, again = ways(state)
    assert not torch.allclose(one, other)
    torch.testing.assert_close(again, one, atol=0, rtol=0)
    for inputs, found, later in ((x, one, one_later), (y, other, other_later)):
        _, fresh = subject.extend(subject.spoil(x[:, :3], lengths), subject.initial_state(B), given)
        expected, fresh = subject.extend(inputs[:, 3:5], fresh)
        torch.testing.assert_close(found, expected, **close)
        torch.testing.assert_close(later, subject.extend(inputs[:, 5:], fresh)[0], **close)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_states_reorder(name, ragged):
    subject = make(name).with_source(B)
    index = torch.tensor([2, 0, 0, 1, 2])
    lengths = torch.tensor([3, 1, 0] if ragged else [3, 3, 3])
    x = subject.inputs(B, T)
    start = subject.spoil(x[:, :3], lengths)
    given = lengths if ragged else None
    _, state = subject.extend(start, subject.initial_state(B), given)
    found, state = subject.extend(x[index, 3:5], state.reorder(index))
    chosen = subject.pick(index)
    _, fresh = chosen.extend(start[index], chosen.initial_state(5), None if given is None else given[index])
    expected, fresh = chosen.extend(x[index, 3:5], fresh)
    torch.testing.assert_close(found, expected, **close)
    later = subject.extend(x[:2, 5:], state.reorder(torch.tensor([4, 1])))[0]
    torch.testing.assert_close(later, subject.extend(x[:2, 5:], fresh.reorder(torch.tensor([4, 1])))[0], **close)
    if subject.source is None:
        none = subject.extend(x[:0, 5:], state.reorder(index[:0]))[0]
        assert none.shape == later[:0].shape


@pytest.mark.parametrize("name", [name for name in NAMES if make(name).is_layer])
def test_detached_states_have_no_gradients(name):
    subject = make(name)
    x = subject.inputs(B, T).requires_grad_()
    _, state = subject.extend(x[:, :4], subject.initial_state(B))
    y, _ = subject.extend(x[:, 4:], state)
    grad = torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0]
    assert grad[:, :4].abs().sum() > 0
    detached, _ = subject.extend(x[:, 4:], state.detach())
    torch.testing.assert_close(detached, y, atol=0, rtol=0)
    grad = torch.autograd.grad(detached.square().sum(), x)[0]
    assert grad[:, :4].abs().sum() == 0
    assert grad[:, 4:].abs().sum() > 0


@pytest.mark.parametrize("name", [name for name in NAMES if not make(name).is_layer])
def test_detached_states_of_models(name):
    subject = make(name).with_source(B)
    x = subject.inputs(B, T)
    _, state = subject.extend(x[:, :5], subject.initial_state(B))
    attached = subject.extend(x[:, 5:], state)[0]
    detached = subject.extend(x[:, 5:], state.detach())[0]
    torch.testing.assert_close(detached, attached, atol=0, rtol=0)
    grads = [gradients(subject, x, [y]) for y in (attached, detached)]
    assert any(not torch.allclose(one, other) for one, other in zip(*grads, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_causality(name):
    """A change at step t changes the output at step t and later ones, but no earlier one, up to rounding."""
    subject = make(name).with_source(B)
    x = subject.inputs(B, T)
    before = subject.full(x)
    for t in range(1, T):
        other = x.clone()
        other[:, t] = torch.randn_like(x[:, t]) if subject.is_layer else (x[:, t] + 1) % 4
        after = subject.full(other)
        torch.testing.assert_close(after[:, :t], before[:, :t], atol=1e-14, rtol=1e-12)
        assert not torch.isclose(after[:, t:], before[:, t:], **close).all(-1).all(0).any()


def test_repr_of_states():
    subject = make("Tf+Nd")
    _, state = subject.extend(subject.inputs(2, 3), subject.initial_state(2))
    assert repr(state).startswith("TransformerState(layers=[LayerState(attention=AttentionState(keys=(2, 2, 3, 3), ")
    assert "StackState(stack=WeightedStack(state=NondeterministicState(batch_size=2, length=3, device=cpu)" in repr(
        state
    )
    assert repr(state).endswith("positions=(2,))")
    assert "hidden=(2, 4), cell=(2, 4), stack=None, started=False" in repr(make("LSTM").initial_state(2))


def test_reordering_beams_of_one_source_does_not_copy_the_memory():
    subject = make("Seq2Seq").with_source(2)
    state = subject.initial_state(2).reorder(torch.tensor([0, 0, 1, 1, 1]))
    memory = state.layers[0].memory
    moved = state.reorder(torch.tensor([1, 0, 4, 2, 2])).layers[0].memory
    assert moved.keys.data_ptr() == memory.keys.data_ptr()
    other = state.reorder(torch.tensor([2, 0, 1])).layers[0].memory
    torch.testing.assert_close(other.keys, memory.keys[[2, 0, 1]], atol=0, rtol=0)
    torch.testing.assert_close(other.source, torch.tensor([1, 0, 0]))
    back = state.reorder(torch.tensor([2, 0, 1])).reorder(torch.tensor([1, 0])).layers[0].memory
    torch.testing.assert_close(back.keys, memory.keys[[0, 2]], atol=0, rtol=0)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("layer")])
def test_inputs_on_another_device(name):
    subject = make(name).with_source(B)
    x = subject.inputs(B, T).to("meta")
    with pytest.raises(ValueError, match="expected device cpu like the parameters, got meta; move one of them"):
        subject.full(x)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(("Seq2Seq", "layer", "softmax"))])
def test_documents_that_share_a_row(name):
    """Each document has the outputs and gradients that it has alone."""
    subject = make(name)
    x = subject.inputs(2, 9)
    starts = torch.tensor([[1, 0, 0, 0, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 1, 0, 0]]).bool()
    if not subject.is_layer:
        x[starts] = x[0, 0]  # BOS
    x.requires_grad_(subject.is_layer)
    ranges = [(0, 0, 4), (0, 4, 5), (0, 5, 8), (1, 0, 6), (1, 6, 9)]
    packed = subject.module(subject.spoil(x, torch.tensor([8, 9])), torch.tensor([8, 9]), starts=starts)
    found = [packed[b, first:last] for b, first, last in ranges]
    alone = [subject.full(x[b : b + 1, first:last])[0] for b, first, last in ranges]
    for one, other in zip(alone, found, strict=True):
        torch.testing.assert_close(other, one, **close)
    for one, other in zip(gradients(subject, x, alone), gradients(subject, x, found), strict=True):
        torch.testing.assert_close(other, one, **close)


@pytest.mark.parametrize("ends", [(12, 12, 12, 12), (11, 12, 10, 12)], ids=["full", "lengths"])
@pytest.mark.parametrize(
    "name", [name for name in NAMES if not name.startswith(("Seq2Seq", "layer", "softmax", "LSTM"))]
)
def test_documents_that_start_while_a_state_is_extended(name, ends):
    """The four rows start no document in the chunk, one in its middle, one at its first step, and several.

    The last document of each row continues after the chunk.
    """
    subject = make(name)
    x = subject.inputs(4, 14).requires_grad_(subject.is_layer)
    firsts = [[0], [0, 5], [0, 3], [0, 6, 8, 9]]
    starts = torch.zeros(4, 12, dtype=torch.bool)
    for row, times in zip(starts, firsts, strict=True):
        row[times[1:]] = True
    before, state = subject.extend(x[:, :3], subject.initial_state(4))
    lengths = None if min(ends) == 12 else torch.tensor(ends) - 3
    chunk = x[:, 3:12] if lengths is None else subject.spoil(x[:, 3:12], lengths)
    middle, state = subject.module.extend(chunk, state, lengths, starts=starts[:, 3:])
    after, _ = subject.extend(x[:, 12:], state)
    found, alone = [], []
    for b, end in enumerate(ends):
        steps, outputs = [*range(end), 12, 13], torch.cat([before[b], middle[b], after[b]])
        for document in (steps[first:last] for first, last in pairwise([*firsts[b], len(steps)])):
            found.append(outputs[document])
            alone.append(subject.full(x[b : b + 1, document])[0])
    for one, other in zip(alone, found, strict=True):
        torch.testing.assert_close(other, one, **close)
    for one, other in zip(gradients(subject, x, alone), gradients(subject, x, found), strict=True):
        torch.testing.assert_close(other, one, **close)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_that_does_not_fit(name):
    subject = make(name).with_source(B)
    x = subject.inputs(B, T)
    argument = "x" if subject.is_layer else "tokens" if subject.source is None else "target"
    state = subject.initial_state(B)
    assert (state.batch_size, state.device) == (B, x.device)
    with pytest.raises(ValueError, match=f"{argument}: expected batch size {B} like the state, got {B - 1}"):
        subject.extend(x[:-1], state)
    with pytest.raises(TypeError, match="state: expected a state from initial_state or extend, got NoneType"):
        subject.extend(x, None)


@pytest.mark.parametrize("name", NAMES)
def test_lengths_out_of_range(name):
    subject = make(name).with_source(B)
    x, lengths = subject.inputs(B, T), torch.tensor([T, T + 1, 0])
    message = f"lengths: expected values from 0 to T = {T}, got {T + 1} for sequence 1"
    for call in (lambda: subject.full(x, lengths), lambda: subject.extend(x, subject.initial_state(B), lengths)):
        with pytest.raises(ValueError, match=message):
            call()


def test_the_state_of_a_model_without_a_stack():
    plain, stacked = (LSTMLM(LSTMConfig(input_size=5, output_size=5, stack=s)) for s in (None, "superposition-3"))
    with pytest.raises(TypeError, match="state: expected the state of a model with a stack"):
        stacked.extend(torch.zeros(B, T, dtype=torch.long), plain.initial_state(B))
    with pytest.raises(TypeError, match="state: expected the state of a model without a stack"):
        plain.extend(torch.zeros(B, T, dtype=torch.long), stacked.initial_state(B))


def test_a_state_with_another_number_of_layers():
    config = {"input_size": 5, "output_size": 5, "d_model": 4, "heads": 2}
    one, two = (TransformerLM(TransformerLMConfig(layers=layers, **config)) for layers in (1, 2))
    with pytest.raises(ValueError, match="state: expected a state with 1 layer, got one with 2 layers"):
        one.extend(torch.zeros(B, T, dtype=torch.long), two.initial_state(B))
