"""The paper's models: their sizes for each task, and the parameter counts of Tables 2, 3 and 5."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from ..models import LSTMConfig, Seq2SeqConfig, TransformerLMConfig, build_model
from .names import LABELS, SLUGS

Config = LSTMConfig | TransformerLMConfig | Seq2SeqConfig


class LanguageSizes(NamedTuple):
    """The properties of a context-free language that determine the sizes of its models."""

    alphabet: int  # number of symbols, without EOS and BOS
    num_states: int  # of the nondeterministic stack


LANGUAGES = {
    "marked-reversal": LanguageSizes(3, 2),
    "unmarked-reversal": LanguageSizes(2, 2),
    "padded-reversal": LanguageSizes(2, 3),
    "dyck": LanguageSizes(4, 2),
    "hardest-cfl": LanguageSizes(7, 3),
}

PTB_TYPES = 23832
MT_TYPES = 6153  # pieces, including UNK


def _counts(*counts: int) -> dict[str, int]:
    """Counts by label: six for all models, or three for the transformers."""
    return dict(zip(tuple(LABELS.values())[-len(counts) :], counts, strict=True))


TABLE_5 = {
    "marked-reversal": _counts(42004, 41402, 31138, 43044, 40964, 33273),
    "unmarked-reversal": _counts(41503, 40936, 30817, 42979, 40899, 33216),
    "padded-reversal": _counts(41503, 40936, 41482, 42979, 40899, 36576),
    "dyck": _counts(42505, 41868, 31459, 43109, 41029, 33330),
    "hardest-cfl": _counts(44008, 43266, 43087, 43304, 41224, 36861),
}
TABLE_2 = {"ptb": _counts(10051072, 10050304, 9861898)}
TABLE_3 = {
    "mt-160": _counts(4595200, 4492480, 4465610),
    "mt-240": _counts(9580800, 9349920, 9232810),
    "mt-360": _counts(20419200, 19900080, 19551610),
}
COUNTS = {"Table 5": TABLE_5, "Table 2": TABLE_2, "Table 3": TABLE_3}
"""The paper's parameter counts by table, task and label. `mt-160` is translation with d_model = 160."""


def paper_models() -> Iterator[tuple[str, str, str, int]]:
    """Table, task, label and parameter count of each of the paper's 42 models."""
    for table, tasks in COUNTS.items():
        for task, counts in tasks.items():
            for label, count in counts.items():
                yield table, task, label, count


def paper_count(task: str, label: str) -> int:
    """The paper's parameter count of a model, such as `paper_count("ptb", "Tf+Nd")`."""
    (count,) = (tasks[task][label] for tasks in COUNTS.values() if task in tasks)
    return count


def paper_config(task: str, label: str, *, published: bool = False) -> Config:
    """The configuration of one of the paper's models.

    Args:
        task: a context-free language of the paper, `ptb`, `mt-160`, `mt-240` or `mt-360`.
        label: the model's name in the paper, such as `Tf+Nd`.
        published: follow the published code where it differs from the paper.

    Raises:
        ValueError: if the paper has no such model.

    Example:
        >>> paper_config("dyck", "Tf+Nd").layers
        '2.nondeterministic-2-3-5.2'
    """
    tasks = [name for names in COUNTS.values() for name in names]
    for argument, name, names in (("task", task, tasks), ("label", label, list(SLUGS))):
        if name not in names:
            raise ValueError(f"{argument}: expected one of {', '.join(names)}, got {name!r}")
    if task in LANGUAGES:
        make = _lstm if label.startswith("LSTM") else _language_transformer
        return make(*LANGUAGES[task], label, published)
    if label.startswith("LSTM"):
        raise ValueError(f"label: expected Tf, Tf+Sup or Tf+Nd for {task}, got {label!r}")
    if task == "ptb":
        return TransformerLMConfig(
            input_size=PTB_TYPES + 3,  # EOS, BOS and padding
            output_size=PTB_TYPES + 1,
            layers=_layers(label, "superposition-511", "nondeterministic-3-3-10"),
            d_model=256,
            heads=8,
            hidden_size=1024,
            tied=True,
            init_range=0.01,
            push_activation="published" if published else "sigmoid",
        )
    d_model = int(task.removeprefix("mt-"))
    layers = _layers(label, f"superposition-{d_model}", "nondeterministic-3-3-5")
    return Seq2SeqConfig(
        input_size=MT_TYPES + 3,
        output_size=MT_TYPES + 1,
        layers=layers,
        d_model=d_model,
        heads=8,
        hidden_size=4 * d_model,
        init_range=0.01,
        push_activation="published" if published else "sigmoid",
    )


def count_parameters(config: Config) -> int:
    """Number of parameters of a model, computed without allocating them."""
    with torch.device("meta"):
        return sum(x.numel() for x in build_model(config).parameters())


def _layers(label: str, superposition: str, nondeterministic: str) -> str:
    """Five layers; in stack models the third one has stack attention."""
    return {"Tf": "5", "Tf+Sup": f"2.{superposition}.2", "Tf+Nd": f"2.{nondeterministic}.2"}[label]


def _language_transformer(alphabet: int, num_states: int, label: str, published: bool) -> TransformerLMConfig:
    d_model = 28 if label == "Tf+Nd" else 32
    return TransformerLMConfig(
        input_size=alphabet + 1,  # BOS
        output_size=alphabet + 1,  # EOS
        layers=_layers(label, f"superposition-{d_model}", f"nondeterministic-{num_states}-3-5"),
        d_model=d_model,
        heads=4,
        hidden_size=2 * d_model,
        push_activation="published" if published else "sigmoid",
    )


def _lstm(alphabet: int, num_states: int, label: str, published: bool) -> LSTMConfig:
    hidden_size, stack = {
        "LSTM": (100, None),
        "LSTM+Sup": (93, "superposition-10"),
        "LSTM+Nd": (64, f"nondeterministic-{num_states}-3-5"),
    }[label]
    return LSTMConfig(
        input_size=alphabet + 1,
        output_size=alphabet + 1,
        hidden_size=hidden_size,
        stack=stack,
        stack_init="uniform" if published else "xavier",
    )
