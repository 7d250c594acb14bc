"""Conversion of old configurations and tensor names to the current format."""

from __future__ import annotations

from typing import Any

MODEL_FORMAT = 3
"""Current format of saved models. All formats from 1 onwards can be read."""


def upgrade_model_config(kind: str, values: dict[str, Any], format_version: int) -> dict[str, Any]:
    """Convert the configuration of a saved model to the current format.

    Args:
        kind: name of the model class.
        values: the configuration as stored.
        format_version: the format of the saved model.

    Returns:
        A new dictionary; unknown keys are kept, so that the validator can report them.
    """
    values = dict(values)
    if format_version < 2:
        values.setdefault("published", False)
        _upgrade_published(values, lstm=kind == "LSTMLM")
        if kind == "Seq2SeqTransformer" and "encoder_layers" in values:
            values["layers"] = values.pop("encoder_layers")
    if format_version < 3 and kind != "LSTMLM":
        values.update(positions="sinusoidal", xavier_layer=None)
    return values


def upgrade_tensor_name(kind: str, name: str, format_version: int) -> str:
    """Convert the name of a tensor of a saved model to the current format."""
    if format_version < 2 and kind == "TransformerLM" and name.startswith("stack."):
        return f"trunk.{name.removeprefix('stack.')}"
    return name


def upgrade_run_config(values: dict[str, Any]) -> dict[str, Any]:
    """Convert the configuration of a run, as stored in its config.json, to the current options.

    Returns:
        A new dictionary; unknown keys are kept, so that the validator can report them.
    """
    values = {key: dict(section) if isinstance(section, dict) else section for key, section in values.items()}
    training, data, model = (
        section if isinstance(section := values.get(key), dict) else {} for key in ("training", "data", "model")
    )
    if "published" in training:
        training["plateau"] = "pytorch" if training.pop("published") else "paper"
    if "published" in data:
        data["count_bos"] = not data.pop("published")
    for name in ("checksum", "digest"):
        if name in data:
            data["fingerprint"] = data.pop(name)
    if "piece_tokens" in data:
        data["row_tokens"] = data.pop("piece_tokens")
    if "published" in model:
        _upgrade_published(model, lstm=model.get("kind") == "lstm")
    return values


def _upgrade_published(model: dict[str, Any], lstm: bool) -> None:
    """Replace the old option `published` of a model with its current equivalent."""
    published = model.pop("published")
    if lstm:
        model["stack_init"] = "uniform" if published else "xavier"
    else:
        model["push_activation"] = "published" if published else "sigmoid"
