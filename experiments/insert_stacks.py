"""Insert stacks into a pretrained Llama and train only the stacks: `python experiments/insert_stacks.py`.

A small Llama is pretrained on the characters of WikiText-2, whose files train.txt.gz and valid.txt are in
`$STACKATTN_DATA/wikitext-2`. Then three models are trained for the same number of further steps on the same batches:

- all: the pretrained model, all parameters
- superposition, nondeterministic: the pretrained model with an inserted stack, only the parameters of the stack

The printed table has the validation loss in nats per character before and after these steps.
"""

from __future__ import annotations

import argparse
import gzip
import os
import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stackattn.models.huggingface import StackLlamaForCausalLM, train_only_stacks

BATCH, LENGTH = 16, 64
INSERTED = {"superposition": "2.superposition-32.2", "nondeterministic": "2.nondeterministic-3-3-5.2"}


def read(path: Path, characters: int) -> str:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return file.read(characters)


def batches(tokens: torch.Tensor, count: int, seed: int):
    """Random excerpts of the text, the same for every model."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        starts = torch.randint(len(tokens) - LENGTH, (BATCH,), generator=generator)
        yield torch.stack([tokens[start : start + LENGTH] for start in starts.tolist()])


def train(model: torch.nn.Module, tokens: torch.Tensor, steps: int, rate: float, seed: int) -> None:
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=rate)
    model.train()
    for batch in batches(tokens, steps, seed):
        optimizer.zero_grad()
        model(batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@torch.no_grad()
def evaluate(model: torch.nn.Module, tokens: torch.Tensor, count: int) -> float:
    model.eval()
    losses = [model(batch, labels=batch).loss for batch in batches(tokens, count, seed=1)]
    return float(torch.stack(losses).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pretrain", type=int, default=1500, help="number of pretraining steps (default: %(default)s)")
    parser.add_argument(
        "--steps", type=int, default=500, help="number of further training steps (default: %(default)s)"
    )
    args = parser.parse_args()
    if "STACKATTN_DATA" not in os.environ:
        parser.error("STACKATTN_DATA: expected the folder that contains wikitext-2, but the variable is not set")
    folder = Path(os.environ["STACKATTN_DATA"]) / "wikitext-2"
    text, validation = read(folder / "train.txt.gz", 2_000_000), read(folder / "valid.txt", 400_000)
    ids = {character: i for i, character in enumerate(sorted(set(text)), start=1)}  # 0: unknown
    training, validation = (torch.tensor([ids.get(c, 0) for c in part]) for part in (text, validation))

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(ids) + 1, num_key_value_heads=2, max_position_embeddings=LENGTH, **sizes)
    pretrained = LlamaForCausalLM(config)
    train(pretrained, training, args.pretrain, rate=3e-3, seed=0)
    print("| model | trained parameters | before | after |\n| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as saved:
        pretrained.save_pretrained(saved)
        for name in ("all", *INSERTED):
            torch.manual_seed(0)
            if name == "all":
                model = LlamaForCausalLM.from_pretrained(saved)
                count = model.num_parameters()
            else:
                model = StackLlamaForCausalLM.from_pretrained(saved, inserted_stacks=INSERTED[name])
                count = train_only_stacks(model)
            before = evaluate(model, validation, 40)
            train(model, training, args.steps, rate=1e-3, seed=2)
            print(f"| {name} | {count:,} | {before:.4f} | {evaluate(model, validation, 40):.4f} |", flush=True)


if __name__ == "__main__":
    main()
