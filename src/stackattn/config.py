"""Configurations: dataclasses read from YAML, with overrides, and errors that say where and what was meant."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import json
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml

from .lines import read_text

T = TypeVar("T")


class ConfigError(ValueError):
    """A configuration that cannot be read; the message has the file, the line and the key."""


def load_config(cls: type[T], path: str | Path, overrides: list[str] | None = None) -> T:
    """A `cls` from a YAML file, changed by overrides such as `model.layers=5` or `learning_rate=0.01`."""
    try:
        text = read_text(path)
        values, places = yaml.safe_load(text), _places(yaml.compose(text, Loader=yaml.SafeLoader), str(path))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{where}: not YAML: {getattr(error, 'problem', error)}") from None
    return from_values(cls, {} if values is None else values, overrides, str(path), places)


def from_values(
    cls: type[T],
    values: Any,
    overrides: list[str] | None = None,
    source: str = "configuration",
    places: dict[str, str] | None = None,
) -> T:
    """A `cls` from nested dictionaries, as `json.load` or `yaml.safe_load` give them.

    `places` says for each key, such as `model.layers`, where it was written.
    """
    values, places = copy.deepcopy(values), dict(places or {})
    for override in overrides or []:
        key, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"override: expected KEY=VALUE, got {override!r}")
        *parents, last = key.split(".")
        target = values
        for i, parent in enumerate([*parents, last]):
            if not isinstance(target, dict):
                raise ConfigError(f"override {override!r}: {'.'.join(parents[:i]) or source} has no keys")
            if i < len(parents):
                target = target.setdefault(parent, {})
        try:
            target[last] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"override {override!r}: not YAML: {getattr(error, 'problem', error)}") from None
        places[key] = f"override {override!r}"
    return _build(cls, values, "", source, places)


def to_values(config: Any) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(config)))


def _build(cls: Any, values: Any, prefix: str, source: str, places: dict[str, str]) -> Any:
    def fail(key: str, message: str) -> typing.NoReturn:
        raise ConfigError(f"{places.get(key, source)}: {message}")

    if not isinstance(values, dict):
        fail(prefix.rstrip("."), f"{prefix.rstrip('.') or 'all of it'}: expected keys and values, got {values!r}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, 1, 0.5)
            meant = f"did you mean {prefix + near[0]!r}?" if near else f"expected one of {', '.join(fields)}"
            fail(f"{prefix}{key}", f"unknown key {prefix + str(key)!r}; {meant}")
    made = {}
    for name, field in fields.items():
        key = f"{prefix}{name}"
        if name in values:
            made[name] = _convert(hints[name], values[name], key, source, places, fail)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            fail(prefix.rstrip("."), f"missing key {key!r}")
    try:
        return cls(**made)
    except ConfigError:
        raise
    except ValueError as error:
        name = f"{prefix}{str(error).partition(':')[0]}"  # if the message begins with a key, its line is meant
        fail(name if name in places else prefix.rstrip("."), f"{prefix}{error}")


def _convert(hint: Any, value: Any, key: str, source: str, places: dict[str, str], fail: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, f"{key}.", source, places)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        others = [a for a in arguments if a is not type(None)]
        if isinstance(value, dict) and any(map(dataclasses.is_dataclass, others)):
            return _choose(others, value, key, source, places, fail)
        for argument in others:
            try:
                return _convert(argument, value, key, source, places, _raise)
            except ConfigError:
                continue
        fail(key, f"{key}: expected {_name(hint)}, got {value!r}")
    if origin is tuple and isinstance(value, list | tuple) and len(value) == len(arguments):
        return tuple(_convert(a, v, key, source, places, fail) for a, v in zip(arguments, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return value
    if origin is list and isinstance(value, list):
        return [_convert(arguments[0], v, key, source, places, fail) for v in value]
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is float and isinstance(value, str):  # YAML reads 1e-3 as text
        try:
            return float(value)
        except ValueError:
            pass
    if isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    fail(key, f"{key}: expected {_name(hint)}, got {value!r}")


def _choose(classes: list[Any], value: dict, key: str, source: str, places: dict[str, str], fail: Any) -> Any:
    """Which of several dataclasses is meant: the one whose `kind` the values name."""
    kinds = {c.kind: c for c in classes}
    kind = value.get("kind", classes[0].kind)
    if kind not in kinds:
        fail(f"{key}.kind", f"{key}.kind: expected one of {', '.join(kinds)}, got {kind!r}")
    return _build(kinds[kind], value, f"{key}.", source, places)


def _raise(key: str, message: str) -> typing.NoReturn:
    raise ConfigError(message)


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _places(node: yaml.Node | None, source: str, prefix: str = "") -> dict[str, str]:
    """The file and line of every key."""
    found: dict[str, str] = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name, place = f"{prefix}{key.value}", f"{source}, line {key.start_mark.line + 1}"
            if name in found:
                raise ConfigError(f"{place}: {name!r} is there twice")
            found[name] = place
            found.update(_places(value, source, f"{name}."))
    return found
