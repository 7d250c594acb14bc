"""Translation of old files to the current format: the only module that knows old names."""

from __future__ import annotations

from typing import Any

MODEL_FORMAT = 2
"""Current format of saved models. All formats from 1 on can be read."""


def upgrade_model_config(kind: str, values: dict[str, Any], format_version: int) -> dict[str, Any]:
    """Translate the configuration of a saved model to the current format.

    Args:
        kind: name of the model class.
        values: the configuration as stored.
        format_version: format in which it is stored.

    Returns:
        New values; unknown keys are kept, so that the validator can report them.
    """
    values = dict(values)
    if format_version < 2:
        published = values.pop("published", False)
        if kind == "LSTMLM":
            values["stack_init"] = "uniform" if published else "xavier"
        else:
            values["push_activation"] = "published" if published else "sigmoid"
        if kind == "Seq2SeqTransformer" and "encoder_layers" in values:
            values["layers"] = values.pop("encoder_layers")
    return values


def upgrade_tensor_name(kind: str, name: str, format_version: int) -> str:
    """Translate the name of a tensor of a saved model to the current format."""
    if format_version < 2 and kind == "TransformerLM" and name.startswith("stack."):
        return f"trunk.{name.removeprefix('stack.')}"
    return name
