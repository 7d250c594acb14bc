"""Configurations: dataclasses built from YAML or JSON values, with validation.

A configuration is a dataclass whose fields are sections (dataclasses) or options. Errors name the file, the line and
the key; for an unknown key, they suggest a similar one.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .bounded_yaml import LONGEST_NUMBER, check_size, parse_yaml
from .config_keys import REQUIRED, default_of, describe, sections_of, type_name
from .lines import read_lines

T = TypeVar("T")
Preset = Callable[[type, dict[str, Any]], dict[str, Any]]
"""Maps the configuration class and the values of the file to the options that the preset sets, as nested values."""


class ConfigError(ValueError):
    """An invalid configuration. The message names the file, the line and the key where they are known."""


class FieldError(ValueError):
    """A dataclass field or an argument with an invalid value.

    Args:
        key: name of the field or argument.
        message: what was expected and what was found.

    Example:
        >>> raise FieldError("clip", "expected a positive number, got -1.0")
        Traceback (most recent call last):
        stackattn.config.FieldError: clip: expected a positive number, got -1.0
    """

    def __init__(self, key: str, message: str):
        super().__init__(key, message)
        self.key, self.message = key, message

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


def require(valid: bool, key: str, expected: str, found: object) -> None:
    """Raise FieldError for the field or argument `key` unless `valid`."""
    if not valid:
        raise FieldError(key, f"expected {expected}, got {_shown(found)}")


def in_section(section: str, make: Callable[..., T], *arguments: Any) -> T:
    """Call `make`; prefix its errors with the section of the configuration."""
    try:
        return make(*arguments)
    except FieldError as error:
        raise ConfigError(f"{section}.{error}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{section}: {error}") from error


def kinds(**classes: type) -> dict[str, Any]:
    """Return dataclass field metadata for a section whose key `kind` selects its class (default: the first class).

    Example:
        >>> from stackattn.training.cfl import CFLConfig
        >>> from_values(CFLConfig, {"language": {"name": "dyck"}, "model": {"kind": "lstm"}}).model.hidden_size
        100
    """
    return {"kinds": classes}


def load_config(
    cls: type[T],
    path: str | Path,
    overrides: list[str] | None = None,
    presets: Mapping[str, Preset] | None = None,
) -> T:
    """Read a configuration from a YAML file.

    Args:
        cls: dataclass of the configuration.
        path: the file.
        overrides: changes such as `"model.layers=5"`; the values are YAML.
        presets: functions that fill in options, by name. The key `preset` of the file selects one; values from the file
            and from overrides take precedence.

    Raises:
        OSError: the file cannot be read.
        ConfigError: the file or an override is invalid.

    Example:
        >>> load_config(CFLConfig, "config.yaml", ["training.max_epochs=3"])  # doctest: +SKIP
    """
    lines, characters = [], 0
    try:
        for line in read_lines(path):
            characters += len(line) + 1
            check_size(characters, str(path))
            lines.append(line)
        values, places = parse_yaml("\n".join(lines), str(path))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return from_values(cls, {} if values is None else values, overrides, str(path), places, presets)


def from_values(
    cls: type[T],
    values: Any,
    overrides: list[str] | None = None,
    source: str = "configuration",
    places: Mapping[str, str] | None = None,
    presets: Mapping[str, Preset] | None = None,
) -> T:
    """Build a configuration from nested dictionaries, such as those of `json.load`.

    Args:
        values: the dictionaries; they are not changed.
        source: name of the source of the values, for error messages.
        places: for each dotted key, such as `model.layers`, the file and line that define it.

    The other arguments and ConfigError are those of `load_config`.

    Example:
        >>> from stackattn.training import TrainingConfig
        >>> from_values(TrainingConfig, {"clip": 1}).clip
        1.0
    """
    values, places = copy.deepcopy(values), dict(places or {})
    for override in overrides or []:
        _override(values, override, source, places)
    if presets and isinstance(values, dict):
        _apply_preset(cls, values, presets, source, places)
    return _Builder(cls, source, places, ["preset"] if presets else []).build(cls, values, "")


def to_values(config: Any) -> dict[str, Any]:
    """Return a configuration as nested dictionaries and lists, ready for JSON; `from_values` is the inverse."""
    return json.loads(json.dumps(_plain(config)))


def _override(values: Any, override: str, source: str, places: dict[str, str]) -> None:
    key, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(f"overrides: expected KEY=VALUE, got {_shown(override)}")
    place = f"overrides: {_shown(override)}"
    *parents, last = key.split(".")
    for i, parent in enumerate([*parents, last]):
        if not isinstance(values, dict):
            section = ".".join(parents[:i]) or source
            raise ConfigError(f"{place}: expected a section at {section}, got {_shown(values)}; set a key of a section")
        if i < len(parents):
            values = values.setdefault(parent, {})
    try:
        values[last], inner = parse_yaml(text, place)
    except ValueError as error:
        raise ConfigError(str(error).replace(", line 1:", ":", 1)) from None
    places[key] = place
    places.update({f"{key}.{name}": place for name in inner})


def _apply_preset(
    cls: type, values: dict[str, Any], presets: Mapping[str, Preset], source: str, places: dict[str, str]
) -> None:
    name = values.pop("preset", None)
    if name is None:
        return
    if name not in list(presets):
        expected = f"expected one of {', '.join(presets)}, got {_shown(name)}"
        raise ConfigError(f"{places.get('preset', source)}: preset: {expected}")
    place = f"{places.get('preset', source)}, preset {name!r}"

    def fill(values: dict[str, Any], options: dict[str, Any], prefix: str) -> None:
        for key, value in options.items():
            if key not in values:
                values[key] = copy.deepcopy(value)
                places[f"{prefix}{key}"] = place
            elif isinstance(value, dict) and isinstance(values[key], dict):
                fill(values[key], value, f"{prefix}{key}.")

    fill(values, presets[name](cls, copy.deepcopy(values)), "")


class _Builder:
    """Builds dataclasses from values and finds the place of each error."""

    def __init__(self, root: Any, source: str, places: Mapping[str, str], extra: Sequence[str]):
        self.root, self.source, self.places = root, source, places
        self.extra = extra  # valid keys that are not fields

    def build(self, cls: Any, values: Any, prefix: str) -> Any:
        section, hints = prefix.rstrip("."), typing.get_type_hints(cls)
        if not isinstance(values, dict):
            message = f"expected keys and values, got {_shown(values)}"
            self.fail(section, f"{section}: {message}" if section else message)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for key in values:
            if key not in fields:
                name = f"{prefix}{key}"
                # an override has a place for the key that it sets, but not for the section
                inner = next((k for k in self.places if k.startswith(f"{name}.")), name)
                place = name if name in self.places else inner
                self.fail(place, f"unknown key {name!r}; {self.suggest(str(key), fields, prefix)}")
        made = {}
        for name, field in fields.items():
            sections = sections_of(field, hints[name])
            if name not in values:
                if default_of(field) is REQUIRED:
                    key = f"{prefix}{name}"
                    inner = [o for section in sections.values() for o in describe(section, f"{key}.")]
                    keys = [option.key for option in inner if option.default is REQUIRED] or [key]
                    self.fail(key, f"expected the {'key' if len(keys) == 1 else 'keys'} {', '.join(keys)}, found none")
            elif sections:
                made[name] = self.section(sections, values[name], f"{prefix}{name}")
            else:
                made[name] = self.convert(hints[name], values[name], f"{prefix}{name}")
        try:
            return cls(**made)
        except ConfigError:
            raise
        except FieldError as error:
            self.fail(f"{prefix}{error.key}", f"{prefix}{error}")
        except (ValueError, TypeError) as error:
            self.fail(section, f"{section}: {error}" if section else str(error))

    def section(self, sections: dict[str, Any], value: Any, key: str) -> Any:
        kind = next(iter(sections))
        if kind and isinstance(value, dict):
            value = dict(value)
            kind = value.pop("kind", kind)
            if kind not in list(sections):
                self.fail(f"{key}.kind", f"{key}.kind: expected one of {', '.join(sections)}, got {_shown(kind)}")
        return self.build(sections[kind], value, f"{key}.")

    def convert(self, hint: Any, value: Any, key: str) -> Any:
        """Convert a value to type `hint`: lists to tuples, integers and text to floats; fail if it does not fit."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (types.UnionType, typing.Union):
            for argument in arguments:
                if _fits(argument, value):
                    return self.convert(argument, value, key)
        if not _fits(hint, value):
            self.fail(key, f"{key}: expected {type_name(hint)}, got {_shown(value)}")
        if origin is tuple:
            return tuple(self.convert(a, v, key) for a, v in zip(arguments, value, strict=True))
        if origin is list:
            return [self.convert(arguments[0], v, key) for v in value]
        if hint is int and not -(2**63) <= value < 2**63:
            self.fail(key, f"{key}: expected a signed 64-bit integer, got {_shown(value)}")
        if hint is float:
            number = _float(value)
            if not math.isfinite(number):
                self.fail(key, f"{key}: expected a finite number, got {_shown(value)}")
            return number
        return value

    def suggest(self, key: str, fields: Mapping[str, Any], prefix: str) -> str:
        """Return a hint for an unknown key: a similar key of this or another section, or all keys of this section."""
        known = [*(option.key for option in describe(self.root)), *self.extra]
        here = [*fields, *(name for name in ("kind", "preset") if f"{prefix}{name}" in known)]
        keys = {name.rpartition(".")[2]: name for name in known} | {name: f"{prefix}{name}" for name in here}
        if keys.get(key) == f"{prefix}{key}":  # the key belongs to another kind of this section
            del keys[key]
        near = difflib.get_close_matches(key, keys, 1, 0.75) or difflib.get_close_matches(key, here, 1, 0.6)
        return f"did you mean {keys[near[0]]!r}?" if near else f"expected one of {', '.join(here)}"

    def fail(self, key: str, message: str) -> typing.NoReturn:
        # use the place of the key, or else that of a key inside its value, or else that of the closest key around it
        if key not in self.places:
            key = next((place for place in self.places if place.startswith(f"{key}.")), key)
        while key not in self.places and "." in key:
            key = key.rpartition(".")[0]
        raise ConfigError(f"{self.places.get(key, self.source)}: {message}")


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value has the outermost type of a hint; False for unions."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return False
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, list | tuple) and len(value) == len(arguments)
    if hint is float and isinstance(value, str):
        try:
            return len(value) <= LONGEST_NUMBER and float(value) is not None
        except ValueError:
            return False
    if hint in (int, float):
        return isinstance(value, hint | int) and not isinstance(value, bool)
    return hint is Any or isinstance(value, origin or hint)


def _float(value: Any) -> float:
    """Convert a number, or text such as 1e-3, which YAML 1.1 does not read as a number; infinity on overflow."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _plain(config: Any) -> dict[str, Any]:
    values = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            names = {cls: kind for kind, cls in field.metadata.get("kinds", {}).items()}
            values[field.name] = ({"kind": names[type(value)]} if names else {}) | _plain(value)
        else:
            values[field.name] = value
    return values


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
