"""Saving and loading models: a folder with `config.json` (the configuration) and `model.safetensors` (the parameters).

Loading a model does not execute code from its files. The header of `model.safetensors` has a checksum of the tensors,
which is verified on load; files without one, written by earlier versions, are accepted.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from .. import __version__
from ..compatibility import MODEL_FORMAT, upgrade_model_config, upgrade_tensor_name
from ..config import from_values, to_values
from ..files import bytes_writer, json_text, tensors_writer, write_together
from ..lines import read_json_object
from .building import MODELS

CONFIG, TENSORS = "config.json", "model.safetensors"
CHECKSUM = "checksum"  # key in the header of the tensor file


@dataclass(frozen=True)
class SavedConfig:
    """Contents of `config.json`."""

    format_version: int
    """Version of the format; see `compatibility.MODEL_FORMAT`."""
    kind: str
    """Name of the model class."""
    config: dict[str, Any]
    """Configuration of the model."""
    library_version: str
    """Version of stackattn that wrote the file."""


def save(model: nn.Module, folder: str | Path) -> Path:
    """Save a model in a folder, which is created if necessary.

    If the call is interrupted, the folder contains the old model, the new model, or no `config.json`. If the disk is
    full, the old model is kept. Other files in the folder are not changed.

    Args:
        model: a `TransformerLM`, `Seq2SeqTransformer` or `LSTMLM`, possibly compiled.
        folder: the folder.

    Returns:
        The folder.

    Raises:
        ValueError: another kind of model, or parameters of several dtypes.
        OSError: a file cannot be written; the message names it.

    Examples::

        save(model, "models/reversal")
        model = load("models/reversal")
    """
    model = getattr(model, "_orig_mod", model)  # unwrap a compiled model
    kind = type(model).__name__
    if kind not in MODELS or type(model) is not MODELS[kind][1]:
        raise ValueError(f"model: expected one of {', '.join(MODELS)}, got {kind}")
    tensors = {key: x.detach().cpu().contiguous() for key, x in model.state_dict().items()}
    if len(dtypes := {x.dtype for x in tensors.values()}) > 1:
        raise ValueError(f"model: expected one dtype, got {', '.join(sorted(map(str, dtypes)))}")
    saved = SavedConfig(MODEL_FORMAT, kind, to_values(model.config), __version__)

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_together(
        {
            folder / TENSORS: tensors_writer(tensors, {CHECKSUM: _checksum(tensors)}),
            folder / CONFIG: bytes_writer(json_text(to_values(saved)).encode()),
        }
    )
    return folder


def load(folder: str | Path) -> nn.Module:
    """Load a model that `save` wrote, on the CPU and in evaluation mode.

    Args:
        folder: the folder.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ValueError: a file is invalid, or `folder` is not a folder; the message names the path and, where possible,
            the key or tensor.

    Examples::

        model = load("experiments/results/figure-2/dyck/tf-nd/00/best")
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder with {CONFIG} and {TENSORS}, got a file")
    for path in (folder, folder / CONFIG, folder / TENSORS):
        if not path.exists():
            expected = f"a saved model is a folder with {CONFIG} and {TENSORS}, such as best/ in the folder of a run"
            raise FileNotFoundError(f"{path}: not found; {expected}")
    saved, config = _read_config(folder / CONFIG)
    with torch.device("meta"):  # shapes only: an invalid file is rejected before memory is allocated
        expected = _build(saved.kind, config, folder / CONFIG).state_dict()

    def upgrade(name: str) -> str:
        return upgrade_tensor_name(saved.kind, name, saved.format_version)

    tensors = _read_tensors(folder / TENSORS, expected, upgrade)
    with torch.random.fork_rng(devices=[]):  # do not advance the caller's generator for parameters that are replaced
        model = _build(saved.kind, config, folder / CONFIG)
    model.to(next(iter(tensors.values())).dtype).load_state_dict(tensors)
    return model.eval()


def _read_config(path: Path) -> tuple[SavedConfig, Any]:
    values = read_json_object(path)
    saved = from_values(SavedConfig, values, source=str(path))
    if not 1 <= saved.format_version <= MODEL_FORMAT:
        raise ValueError(
            f"{path}: expected a format from 1 to {MODEL_FORMAT}, got {saved.format_version}, written by stackattn "
            f"{saved.library_version}; this is stackattn {__version__}"
        )
    if saved.kind not in MODELS:
        near = difflib.get_close_matches(saved.kind, MODELS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(MODELS)}"
        raise ValueError(f"{path}: unknown kind {saved.kind!r}; {hint}")
    cls = MODELS[saved.kind][0]
    config = upgrade_model_config(saved.kind, saved.config, saved.format_version)
    parsed = from_values(cls, config, source=f"{path}: config")
    # Defaults may change, and some options, such as heads, cannot be checked against the tensors.
    for field in fields(cls):
        if field.name not in config:
            raise ValueError(f"{path}: config: missing key {field.name!r} of {saved.kind}")
    return saved, parsed


def _build(kind: str, config: Any, path: Path) -> nn.Module:
    try:
        return MODELS[kind][1](config)
    except (ValueError, TypeError, RuntimeError, ZeroDivisionError) as error:
        raise ValueError(f"{path}: cannot build this {kind}: {error}") from error


class _TensorInfo(NamedTuple):
    shape: list[int]
    dtype: str


def _read_tensors(path: Path, expected: Mapping[str, Tensor], upgrade: Callable[[str], str]) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            stored = {upgrade(name): name for name in file.keys()}  # noqa: SIM118
            slices = {name: file.get_slice(old) for name, old in stored.items()}
            found = {name: _TensorInfo(list(x.get_shape()), x.get_dtype()) for name, x in slices.items()}
            _check_tensors(path, found, expected)
            metadata = file.metadata() or {}
            tensors = {stored[name]: file.get_tensor(stored[name]) for name in expected}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a safetensors file, or damaged: {error}") from error
    if metadata.get(CHECKSUM) not in (None, _checksum(tensors)):
        raise ValueError(f"{path}: damaged: the tensors do not match the checksum in the header of the file")
    return {name: tensors[stored[name]] for name in expected}


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of the names, dtypes, shapes and values of contiguous tensors on the CPU."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _check_tensors(path: Path, found: Mapping[str, _TensorInfo], expected: Mapping[str, Tensor]) -> None:
    missing = [name for name in expected if name not in found]
    if extra := [name for name in found if name not in expected]:
        close = difflib.get_close_matches(extra[0], missing, 1)
        hint = f"; {close[0]!r} is missing" if close else ""
        raise ValueError(f"{path}: tensors that do not belong to this model: {len(extra)}, such as {extra[0]!r}{hint}")
    if missing:
        raise ValueError(f"{path}: missing tensors: {len(missing)} of {len(expected)}, such as {missing[0]!r}")
    for name, x in expected.items():
        if found[name].shape != list(x.shape):
            raise ValueError(f"{path}: {name}: expected shape {list(x.shape)}, got {found[name].shape}")
    dtypes = sorted({x.dtype for x in found.values()})
    if len(dtypes) > 1 or dtypes[0] not in ("F64", "F32", "F16", "BF16"):
        raise ValueError(f"{path}: expected tensors of one floating-point dtype, got {', '.join(dtypes)}")
