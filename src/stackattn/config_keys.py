"""The keys of a configuration class: names, types, defaults and documentation.

The documentation of a key is the string literal below its field.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
import typing
from typing import Any

REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "required"})()
"""Marks a key without a default."""


@dataclasses.dataclass(frozen=True)
class ConfigKey:
    """One key of a configuration class."""

    key: str
    """Dotted name, such as `training.learning_rate`."""
    type: str
    """In the words of YAML: `[int, int]` for a tuple, `null` for None."""
    default: Any
    """`REQUIRED` if there is no default."""
    doc: str
    """The string literal below the field, in one line."""
    kind: str | None = None
    """Value of the section's `kind` for which the key exists; None: the key always exists."""


def describe(cls: type, prefix: str = "", kind: str | None = None) -> list[ConfigKey]:
    """List every key of a configuration class in the order of its fields.

    Example:
        >>> from stackattn.training import TrainingConfig
        >>> next(key for key in describe(TrainingConfig) if key.key == "clip").default
        5.0
    """
    hints, docs = typing.get_type_hints(cls), _docs(cls)
    keys = []
    for field in dataclasses.fields(cls):
        key, hint = f"{prefix}{field.name}", hints[field.name]
        sections = sections_of(field, hint)
        if not sections:
            keys.append(ConfigKey(key, type_name(hint), default_of(field), docs.get(field.name, ""), kind))
        elif "" not in sections:
            choices = f"one of {', '.join(sections)}"
            doc = docs.get(field.name) or f"Selects the keys of the section `{key}`."
            keys.append(ConfigKey(f"{key}.kind", choices, next(iter(sections)), doc, kind))
        for name, section in sections.items():
            keys += describe(section, f"{key}.", name if len(sections) > 1 else kind)
    return keys


def sections_of(field: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    """The dataclasses of a section by kind (the kind is "" if there is only one class); empty for an option."""
    return field.metadata.get("kinds") or ({"": hint} if dataclasses.is_dataclass(hint) else {})


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a field, or `REQUIRED`."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED if field.default is dataclasses.MISSING else field.default


@functools.cache
def _docs(cls: type) -> dict[str, str]:
    """The string literals below the fields of a dataclass and of its bases."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):  # no source, as in an interactive session
            continue
        body = typing.cast(ast.ClassDef, tree.body[0]).body
        for field, doc in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                docs[typing.cast(ast.Name, field.target).id] = " ".join(str(doc.value.value).split())
    return docs


def type_name(hint: Any) -> str:
    """The type of a key in the words of YAML."""
    if typing.get_origin(hint) is typing.Literal:
        return f"one of {', '.join(map(str, typing.get_args(hint)))}"
    is_class = isinstance(hint, type) and not typing.get_args(hint)  # in Python 3.10, tuple[int, int] is also a type
    name = hint.__name__ if is_class else str(hint).replace("typing.", "")
    name = name.replace("dict[str, Any]", "mapping").replace("tuple[", "[")
    return name.replace("None", "null").replace(" | ", " or ")
