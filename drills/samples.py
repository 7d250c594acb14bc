"""Small configurations and texts for the drills, and the part of a run that must be reproducible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from stackattn.config import from_values
from stackattn.models import load
from stackattn.training import TrainingRun
from stackattn.training.cfl import CFLConfig
from stackattn.training.lm import LMConfig
from stackattn.training.mt import MTConfig

NOT_REPRODUCIBLE = ("seconds", "train_seconds", "cpu_seconds", "memory")
WORDS = (
    "one two three two one",
    "two one",
    "three three one two",
    "one",
    "two two three one",
    "three one",
    "two three",
)


def cfl_values(batches: int = 6, epochs: int = 3) -> dict[str, Any]:
    """A configuration whose training takes well under a second."""
    language = {"name": "unmarked-reversal", "lengths": [4, 8], "batch_size": 4}
    return {
        "language": {**language, "train_batches": batches, "validation_batches": 2},
        "model": {"layers": "1.nondeterministic-2-2-3", "d_model": 8, "heads": 2, "dropout": 0.3},
        "training": {"learning_rate": 0.02, "max_epochs": epochs, "stop_patience": 1000, "shuffle_seed": 5},
    }


def cfl_config(batches: int = 6, epochs: int = 3) -> CFLConfig:
    return from_values(CFLConfig, cfl_values(batches, epochs))


def write_config(path: Path, values: dict[str, Any]) -> Path:
    path.write_text(json.dumps(values))  # JSON is valid YAML
    return path


def lm_config(corpus: Path) -> LMConfig:
    model = {"layers": "1.superposition-3", "d_model": 8, "heads": 2}
    training = {"max_epochs": 1, "learning_rate": 0.01}
    return from_values(LMConfig, {"data": {"folder": str(corpus)}, "model": model, "training": training})


def mt_config(corpus: Path) -> MTConfig:
    model = {"layers": "1", "decoder_layers": "1.superposition-3", "d_model": 8, "heads": 2}
    training = {"max_epochs": 1, "evaluate_every": None, "learning_rate": 0.01}
    return from_values(MTConfig, {"data": {"folder": str(corpus)}, "model": model, "training": training})


def write_raw_texts(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Write bitext of a few words, and return the two files of each split; each side is also used as plain text."""
    folder.mkdir()
    found = {}
    for split, size in (("train", 40), ("validation", 6), ("test", 6)):
        found[split] = folder / f"{split}.source", folder / f"{split}.target"
        lines = [WORDS[i % len(WORDS)] for i in range(size)]
        found[split][0].write_text("".join(f"{line}\n" for line in lines))
        found[split][1].write_text("".join(f"{' '.join(reversed(line.split()))}\n" for line in lines))
    return found


def outcome(folder: Path) -> Any:
    """Everything reproducible about a finished run: metrics and result without times and memory, and its model."""
    run = TrainingRun(folder)
    result = run.result()
    rows = [
        {key: value for key, value in row.items() if key not in NOT_REPRODUCIBLE}
        for row in [*run.metrics(), result["best"]]
    ]
    tensors = load(folder / "best").state_dict()  # verifies the checksum
    model = {name: (str(x.dtype), x.reshape(-1).view(torch.uint8).tolist()) for name, x in sorted(tensors.items())}
    return rows, result["stopped"], result["evaluations"], model
