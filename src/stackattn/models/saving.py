"""Models as folders: `config.json` says what to build, `model.safetensors` holds the numbers. Nothing is executed."""

from __future__ import annotations

import difflib
import json
import os
import types
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from .lstm import LSTMLM, LSTMConfig
from .transformer import Seq2SeqConfig, Seq2SeqTransformer, TransformerLM, TransformerLMConfig

FORMAT = 1
KINDS: dict[str, tuple[type, type[nn.Module]]] = {
    "TransformerLM": (TransformerLMConfig, TransformerLM),
    "Seq2SeqTransformer": (Seq2SeqConfig, Seq2SeqTransformer),
    "LSTMLM": (LSTMConfig, LSTMLM),
}
CONFIG, TENSORS = "config.json", "model.safetensors"
KEYS = ("format_version", "kind", "config", "library_version")


def save(model: nn.Module, folder: str | Path) -> Path:
    """Write a model into a folder, which is made if it is not there; `load` reads it.

    Whoever looks at the folder while this runs, or after it was interrupted, finds the old model, the new one, or no
    `config.json`. Other files in the folder stay as they are.
    """
    from safetensors.torch import save_file

    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    name = type(model).__name__
    if name not in KINDS or type(model) is not KINDS[name][1]:
        raise ValueError(f"model: expected one of {', '.join(KINDS)}, got {name}")
    tensors = {key: x.detach().cpu().contiguous() for key, x in model.state_dict().items()}
    if len(dtypes := {x.dtype for x in tensors.values()}) > 1:
        raise ValueError(f"model: expected one dtype, got {', '.join(sorted(map(str, dtypes)))}")
    head = dict(zip(KEYS, (FORMAT, name, asdict(model.config), version("stackattn")), strict=True))  # pyright: ignore
    text = json.dumps(head, indent=2) + "\n"

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config, data = folder / CONFIG, folder / TENSORS
    parts = config.with_suffix(".json.part"), data.with_suffix(".safetensors.part")
    try:
        parts[0].write_text(text, encoding="utf-8")
        save_file(tensors, parts[1])
        for part in parts:
            _flush(part)
        if config.exists() and config.read_bytes() != text.encode():
            config.unlink()  # two files cannot change at once: without a config nothing is mixed up
        os.replace(parts[1], data)
        os.replace(parts[0], config)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return folder


def load(folder: str | Path) -> nn.Module:
    """The model that `save` wrote into a folder, on the CPU and in evaluation mode.

    A file that is missing gives a FileNotFoundError, and one that is wrong a ValueError that names it and its problem.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder with {CONFIG} and {TENSORS}, got a file")
    for path in (folder, folder / CONFIG, folder / TENSORS):
        if not path.exists():
            raise FileNotFoundError(f"{path}: not there; a saved model is a folder with {CONFIG} and {TENSORS}")
    kind, config = _read_config(folder / CONFIG)
    with torch.device("meta"):  # shapes without numbers
        expected = _build(kind, config, folder / CONFIG).state_dict()
    tensors = _read_tensors(folder / TENSORS, expected)
    with torch.random.fork_rng(devices=[]):  # the numbers drawn here are thrown away
        model = _build(kind, config, folder / CONFIG)
    model.to(next(iter(tensors.values())).dtype).load_state_dict(tensors)
    return model.eval()


def _flush(path: Path) -> None:
    """To the disk, so that a rename cannot come before what it renames."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _read_config(path: Path) -> tuple[type[nn.Module], Any]:
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(head, dict):
        raise ValueError(f"{path}: expected an object with {', '.join(KEYS)}, got {type(head).__name__}")
    _check_keys(path, "key", head, KEYS)
    if head["format_version"] != FORMAT:
        here = f"stackattn {version('stackattn')} reads format {FORMAT}"
        raise ValueError(
            f"{path}: {here}, got {head['format_version']!r}, written by stackattn {head['library_version']}"
        )
    kind = head["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"{path}: unknown kind {kind!r}{_nearest(kind, KINDS)}")
    config_type, model_type = KINDS[kind]
    values = head["config"]
    if not isinstance(values, dict):
        raise ValueError(f"{path}: config: expected an object, got {type(values).__name__}")
    _check_keys(path, f"key of a {kind}'s config", values, [field.name for field in fields(config_type)])
    for name, hint in get_type_hints(config_type).items():
        if not _fits(values[name], hint):
            expected = " or ".join(_names(hint))
            raise ValueError(f"{path}: config: {name}: expected {expected}, got {values[name]!r}")
    try:
        return model_type, config_type(**values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: config: {error}") from error


def _check_keys(path: Path, what: str, found: Mapping[str, Any], expected: Iterable[str]) -> None:
    expected = list(expected)
    missing = [key for key in expected if key not in found]
    if unknown := [key for key in found if key not in expected]:
        raise ValueError(f"{path}: unknown {what} {unknown[0]!r}{_nearest(unknown[0], missing or expected)}")
    if missing:
        raise ValueError(f"{path}: missing {what} {missing[0]!r}")


def _nearest(name: Any, names: Iterable[str]) -> str:
    names = list(names)
    close = difflib.get_close_matches(str(name), names, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; expected one of {', '.join(names)}"


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _names(hint: Any) -> list[str]:
    return ["null" if x is type(None) else x.__name__ for x in _alternatives(hint)]


def _fits(value: Any, hint: Any) -> bool:
    """JSON has one kind of number, so an int is a float too; a bool is no number."""
    allowed = _alternatives(hint)
    return type(value) in allowed or (type(value) is int and float in allowed)


def _build(kind: type[nn.Module], config: Any, path: Path) -> nn.Module:
    try:
        return kind(config)
    except (ValueError, TypeError, RuntimeError, ZeroDivisionError) as error:
        raise ValueError(f"{path}: cannot build this {kind.__name__}: {error}") from error


class _Tensor(NamedTuple):
    shape: list[int]
    dtype: str


def _read_tensors(path: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            found = {name: _Tensor(list(x.get_shape()), x.get_dtype()) for name, x in slices.items()}
            _check_tensors(path, found, expected)
            return {name: file.get_tensor(name) for name in expected}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a safetensors file, or a damaged one: {error}") from error


def _check_tensors(path: Path, found: Mapping[str, _Tensor], expected: Mapping[str, Tensor]) -> None:
    missing = [name for name in expected if name not in found]
    if extra := [name for name in found if name not in expected]:
        close = difflib.get_close_matches(extra[0], missing, 1)
        hint = f"; {close[0]!r} is missing" if close else ""
        raise ValueError(f"{path}: {len(extra)} tensors that this model does not have, such as {extra[0]!r}{hint}")
    if missing:
        raise ValueError(f"{path}: {len(missing)} of {len(expected)} tensors are missing, such as {missing[0]!r}")
    for name, x in expected.items():
        if found[name].shape != list(x.shape):
            raise ValueError(f"{path}: {name}: expected shape {list(x.shape)}, got {found[name].shape}")
    dtypes = sorted({x.dtype for x in found.values()})
    if len(dtypes) > 1 or dtypes[0] not in ("F64", "F32", "F16", "BF16"):
        raise ValueError(f"{path}: expected tensors of one floating-point dtype, got {', '.join(dtypes)}")
