"""The models of the paper's three tables: which sizes for which task, and how many parameters the paper counts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from ..models.lstm import LSTMLM, LSTMConfig
from ..models.transformer import Seq2SeqConfig, Seq2SeqTransformer, TransformerLM, TransformerLMConfig

ARCHITECTURES = ("LSTM", "LSTM+Sup", "LSTM+Nd", "Tf", "Tf+Sup", "Tf+Nd")
Config = LSTMConfig | TransformerLMConfig | Seq2SeqConfig


class Language(NamedTuple):
    alphabet: int  # tokens, EOS and BOS not counted
    num_states: int  # of the nondeterministic stack


LANGUAGES = {
    "marked-reversal": Language(3, 2),
    "unmarked-reversal": Language(2, 2),
    "padded-reversal": Language(2, 3),
    "dyck": Language(4, 2),
    "hardest-cfl": Language(7, 3),
}

PTB_TYPES = 23832
MT_TYPES = 6153  # pieces and UNK

COUNTS = {
    "marked-reversal": (42004, 41402, 31138, 43044, 40964, 33273),
    "unmarked-reversal": (41503, 40936, 30817, 42979, 40899, 33216),
    "padded-reversal": (41503, 40936, 41482, 42979, 40899, 36576),
    "dyck": (42505, 41868, 31459, 43109, 41029, 33330),
    "hardest-cfl": (44008, 43266, 43087, 43304, 41224, 36861),
    "ptb": (None, None, None, 10051072, 10050304, 9861898),
    "mt-160": (None, None, None, 4595200, 4492480, 4465610),
    "mt-240": (None, None, None, 9580800, 9349920, 9232810),
    "mt-360": (None, None, None, 20419200, 19900080, 19551610),
}
"""The paper's parameter counts by task, in the order of `ARCHITECTURES`; None where the paper has no such model.
`mt-160` is machine translation with d_model = 160."""


def paper_config(task: str, architecture: str, *, published: bool = False) -> Config:
    """The sizes of a model of the paper. `published` is the preset of that name."""
    for what, name, names in (("task", task, tuple(COUNTS)), ("architecture", architecture, ARCHITECTURES)):
        if name not in names:
            raise ValueError(f"{what}: expected one of {', '.join(names)}, got {name!r}")
    if task in LANGUAGES:
        make = _lstm if architecture.startswith("LSTM") else _language_transformer
        return make(*LANGUAGES[task], architecture, published)
    if architecture.startswith("LSTM"):
        raise ValueError(f"architecture: the paper has no LSTM for {task}, got {architecture!r}")
    if task == "ptb":
        return TransformerLMConfig(
            input_size=PTB_TYPES + 3,  # EOS, BOS and padding
            output_size=PTB_TYPES + 1,
            layers=_layers(architecture, "superposition-511", "nondeterministic-3-3-10"),
            d_model=256,
            heads=8,
            hidden_size=1024,
            tied=True,
            init_range=0.01,
            published=published,
        )
    d_model = int(task.removeprefix("mt-"))
    layers = _layers(architecture, f"superposition-{d_model}", "nondeterministic-3-3-5")
    return Seq2SeqConfig(
        input_size=MT_TYPES + 3,
        output_size=MT_TYPES + 1,
        encoder_layers=layers,
        decoder_layers=layers,
        d_model=d_model,
        heads=8,
        hidden_size=4 * d_model,
        init_range=0.01,
        published=published,
    )


def build(config: Config) -> nn.Module:
    """The model of a config."""
    if isinstance(config, LSTMConfig):
        return LSTMLM(config)
    return TransformerLM(config) if isinstance(config, TransformerLMConfig) else Seq2SeqTransformer(config)


def count_parameters(config: Config) -> int:
    """How many parameters the model of a config has; none of them is made."""
    with torch.device("meta"):
        return sum(x.numel() for x in build(config).parameters())


def _layers(architecture: str, superposition: str, nondeterministic: str) -> str:
    """Five layers, the middle one with a stack."""
    return {"Tf": "5", "Tf+Sup": f"2.{superposition}.2", "Tf+Nd": f"2.{nondeterministic}.2"}[architecture]


def _language_transformer(alphabet: int, num_states: int, architecture: str, published: bool) -> TransformerLMConfig:
    d_model = 28 if architecture == "Tf+Nd" else 32
    return TransformerLMConfig(
        input_size=alphabet + 1,  # BOS
        output_size=alphabet + 1,  # EOS
        layers=_layers(architecture, f"superposition-{d_model}", f"nondeterministic-{num_states}-3-5"),
        d_model=d_model,
        heads=4,
        hidden_size=2 * d_model,
        published=published,
    )


def _lstm(alphabet: int, num_states: int, architecture: str, published: bool) -> LSTMConfig:
    hidden_size, stack = {
        "LSTM": (100, None),
        "LSTM+Sup": (93, "superposition-10"),
        "LSTM+Nd": (64, f"nondeterministic-{num_states}-3-5"),
    }[architecture]
    return LSTMConfig(alphabet + 1, alphabet + 1, hidden_size=hidden_size, stack=stack, published=published)
