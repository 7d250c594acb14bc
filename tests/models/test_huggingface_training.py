"""Hugging Face models with stack attention: training, saving, loading, inserted stacks and pipelines."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

import huggingface_models as small  # noqa: E402

from stackattn.models.huggingface import train_only_stacks  # noqa: E402

pytestmark = pytest.mark.parametrize("architecture", ["gpt2", "llama"])
# transformers 5.23 deprecates these names of options, but 5.22 does not have the new ones
OLD_NAMES = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning")
INSERTED = "1.superposition-4.1.nondeterministic-2-2-3.1"


def train(model, steps=30, learning_rate=0.01):
    """Train on one batch, and return the losses."""
    tokens = small.prompts(4, 8)
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=learning_rate)
    losses = []
    for _ in range(steps):
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("stacks", ["nondeterministic", "inserted"])
def test_training(architecture, stacks):
    model = small.make(architecture, stacks).train()
    losses = train(model)
    assert losses[-1] < losses[0] / 2
    unused = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert unused == []


@OLD_NAMES
@pytest.mark.parametrize("stacks", ["both", "inserted"])
def test_gradient_checkpointing_gives_the_same_gradients(architecture, stacks):
    gradients = []
    for checkpointing in (False, True):
        model = small.make(architecture, stacks).train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model(small.prompts(), labels=small.prompts(), use_cache=False).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0])


@torch.no_grad()
def test_bfloat16(architecture):
    model = small.make(architecture, "both")
    exact = model(small.prompts()).logits
    found = model.bfloat16()(small.prompts()).logits
    assert found.dtype == torch.bfloat16
    assert (found.double() - exact).abs().max() < 0.1 * exact.abs().max()


@OLD_NAMES
@pytest.mark.filterwarnings("ignore:.*pin_memory:UserWarning")
def test_trainer(architecture, tmp_path):
    """Gradient checkpointing and bfloat16 together; the checkpoint can be loaded."""
    pytest.importorskip("accelerate")
    model = small.make(architecture, "inserted").float()
    data = [{"input_ids": row, "labels": row} for row in small.prompts(8, 8)]
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        max_steps=4,
        per_device_train_batch_size=4,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        bf16=True,
        use_cpu=True,
        learning_rate=0.01,
        logging_steps=1,
        save_steps=4,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    again = small.CLASSES[architecture][1].from_pretrained(tmp_path / "checkpoint-4")
    torch.testing.assert_close(again.state_dict(), model.state_dict())


@pytest.mark.parametrize("stacks", small.STACKS)
def test_saved_and_loaded(architecture, stacks, tmp_path):
    """Loading keeps trained values of the inserted stacks' output maps, which are initialised with zeros."""
    model = small.make(architecture, stacks).float()
    model.save_pretrained(tmp_path)
    for loader in (small.CLASSES[architecture][1], transformers.AutoModelForCausalLM):
        again, info = loader.from_pretrained(tmp_path, output_loading_info=True)
        assert type(again) is small.CLASSES[architecture][1]
        assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert {name: getattr(again.config, name) for name in small.STACKS[stacks]} == small.STACKS[stacks]
        with torch.no_grad():
            assert torch.equal(again(small.prompts()).logits, model(small.prompts()).logits)
    base = transformers.AutoModel.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(base(small.prompts()).last_hidden_state, model.base_model(small.prompts()).last_hidden_state)


@pytest.mark.slow
def test_a_saved_model_says_how_to_load_it(architecture, tmp_path):
    """The model can be loaded in a process that has not imported stackattn, and its card says what to install."""
    model = small.make(architecture, "both").float()
    model.save_pretrained(tmp_path / "model")
    program = """
import sys, torch
from transformers import AutoModelForCausalLM
assert "stackattn" not in sys.modules
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
print(type(model).__name__)
torch.save(model(torch.load(sys.argv[2])).logits.detach(), sys.argv[3])
"""
    torch.save(small.prompts(), tmp_path / "prompts")
    printed = small.run_python(program, tmp_path / "model", tmp_path / "prompts", tmp_path / "logits", folder=tmp_path)
    assert printed.strip() == small.CLASSES[architecture][1].__name__
    with torch.no_grad():
        assert torch.equal(torch.load(tmp_path / "logits"), model(small.prompts()).logits)
    card = (tmp_path / "model/README.md").read_text()
    assert "pip install stackattn" in card
    assert "import stackattn.models.huggingface" in card
    assert small.STACKS["both"]["stack_layers"] in card
    (tmp_path / "model/README.md").write_text("my own card")
    model.save_pretrained(tmp_path / "model")
    assert (tmp_path / "model/README.md").read_text() == "my own card"


@pytest.mark.parametrize("stack", ["nondeterministic-2-2-3", "superposition-4"])
def test_stack_in_place_of_attention_of_a_trained_model(architecture, stack, tmp_path):
    """The weights of the stack are initialised; all others are those of the trained model."""
    trained = small.plain(architecture)
    trained.save_pretrained(tmp_path)
    model = small.CLASSES[architecture][1].from_pretrained(tmp_path, stack_layers=f"1.{stack}.1")
    stack = small.attention(small.layers(model)[1]).stack
    old = trained.state_dict()
    shared = {name: x for name, x in model.state_dict().items() if "attn.stack" not in name}
    assert len(shared) == len(old) - 4
    assert all(torch.equal(x, old[name]) for name, x in shared.items())
    for linear in (stack.to_actions, stack.to_values, stack.to_output):
        bound = (6 / sum(linear.weight.shape)) ** 0.5
        assert bound / 2 < linear.weight.abs().max() <= bound, "expected a Xavier uniform distribution"
    if stack.kind == "nondeterministic":
        assert 0 < stack.bottom.abs().max() <= 0.1


def test_inserted_stacks_do_not_change_a_trained_model_at_first(architecture, tmp_path):
    trained = small.plain(architecture)
    trained.save_pretrained(tmp_path)
    model = small.CLASSES[architecture][1].from_pretrained(tmp_path, inserted_stacks=INSERTED)
    with torch.no_grad():
        assert torch.equal(model(small.prompts()).logits, trained(small.prompts()).logits)
    assert torch.equal(
        small.generate(model, small.prompts(), num_beams=3), small.generate(trained, small.prompts(), num_beams=3)
    )

    count = train_only_stacks(model)
    before = {name: p.clone() for name, p in model.named_parameters()}
    losses = train(model.train(), steps=10)
    assert losses[-1] < losses[0]
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {name for name in before if ".inserted." in name}
    assert count == sum(before[name].numel() for name in changed) < sum(p.numel() for p in model.parameters())


def test_training_only_stacks_needs_stacks(architecture):
    with pytest.raises(ValueError, match="model: expected stack layers, found none"):
        train_only_stacks(small.plain(architecture))


def test_pipeline(architecture):
    tokenizers = pytest.importorskip("tokenizers")
    words = {**{"<bos>": 0, "<eos>": 1, "<pad>": 2}, **{chr(97 + i): i + 3 for i in range(small.VOCABULARY - 3)}}
    plain_tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
    plain_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain_tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", padding_side="left"
    )
    model = small.make(architecture, "both")
    pipe = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    found = pipe(["a b c", "d"], batch_size=2, return_tensors=True, **options)
    for (result,), prompt in zip(found, ([3, 4, 5], [6]), strict=True):
        expected = small.generate(model, torch.tensor([prompt]), **options)[0].tolist()
        assert result["generated_token_ids"][-len(expected) :] == expected
