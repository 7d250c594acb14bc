"""Hugging Face models with stack attention as exported programs, saved and run in another process."""

import pytest
import torch

pytest.importorskip("transformers")

from huggingface_models import make, prompts, run_python


class Logits(torch.nn.Module):
    """A model that returns only its logits and no cache, because exported programs return tensors."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, mask=None):
        return self.model(tokens, attention_mask=mask, use_cache=False).logits


@pytest.mark.slow
def test_export(tmp_path):
    """The saved program runs in a process that imports only stackattn's operators; batch size and length may vary."""
    model = make("llama", "replaced and inserted", use_cache=False).float()

    dimensions = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=3, max=40)}
    with torch.no_grad():
        program = torch.export.export(Logits(model), (prompts(3, 5),), dynamic_shapes=(dimensions,), strict=False)
    torch.export.save(program, tmp_path / "model.pt2")
    torch.save(prompts(2, 9), tmp_path / "prompts")
    run = """
import sys, torch, stackattn.ops
model = torch.export.load(sys.argv[1]).module()
torch.save(model(torch.load(sys.argv[2])).detach(), sys.argv[3])
"""
    run_python(run, tmp_path / "model.pt2", tmp_path / "prompts", tmp_path / "logits", folder=tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(torch.load(tmp_path / "logits"), model(prompts(2, 9)).logits)


def test_export_refuses_padding_on_the_left(tmp_path):
    """The exported program checks the mask when it runs."""
    model = make("llama", "only stacks").float()
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    tokens = prompts(2, 5)
    program = torch.export.export(Logits(model), (tokens, mask), strict=False).module()
    with torch.no_grad():
        expected = model(tokens, attention_mask=mask).logits
        torch.testing.assert_close(program(tokens, mask)[0], expected[0])
        torch.testing.assert_close(program(tokens, mask)[1, :3], expected[1, :3])
        with pytest.raises(RuntimeError, match="attention_mask: an exported model supports only padding on the right"):
            program(tokens, mask.flip(1))
