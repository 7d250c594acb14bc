"""A YAML reader for configurations, with limits on size, nesting and numbers.

Accepted: mappings, lists and scalars (text, numbers, true, false, null). Rejected, with an error that names the file
and (unless the document is too long) the line: anchors and aliases, tags, duplicate keys, a second document, and
anything beyond the limits below. Dates are read as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import yaml

MAX_CHARACTERS = 100_000
MAX_DEPTH = 20
LONGEST_NUMBER = 40
"""Maximum number of characters in a number."""

_NUMBERS = {"tag:yaml.org,2002:int": "construct_yaml_int", "tag:yaml.org,2002:float": "construct_yaml_float"}
_CONSTANTS = {"tag:yaml.org,2002:bool": "construct_yaml_bool", "tag:yaml.org,2002:null": "construct_yaml_null"}


def parse_yaml(text: str, source: str) -> tuple[Any, dict[str, str]]:
    """Return the values of a YAML document and, for each dotted key, the file and line that define it.

    Args:
        text: the document.
        source: name of the file, for error messages and for the returned file and line of each key.

    Raises:
        ValueError: the text is not YAML, uses an unsupported feature or exceeds a limit.

    Example:
        >>> parse_yaml("model:\\n  d_model: 32", "config.yaml")
        ({'model': {'d_model': 32}}, {'model': 'config.yaml, line 1', 'model.d_model': 'config.yaml, line 2'})
    """
    check_size(len(text), source)
    return _Reader(text, source).document()


def check_size(characters: int, source: str) -> None:
    """Raise ValueError if a document has more than `MAX_CHARACTERS` characters."""
    if characters > MAX_CHARACTERS:
        raise ValueError(f"{source}: expected at most {MAX_CHARACTERS:,} characters, found more")


class _Reader:
    """Builds values from the events of the YAML parser, so that limits are checked before memory is used."""

    def __init__(self, text: str, source: str):
        self.source = source
        self.places: dict[str, str] = {}
        self.events = self._events(text)

    def document(self) -> tuple[Any, dict[str, str]]:
        value, documents = None, 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._fail(event, "expected one document, found a second one")
                value = self._value(next(self.events), "", 0)
        return value, self.places

    def _events(self, text: str) -> Iterator[Any]:
        try:
            self.loader = yaml.SafeLoader(text)
            while self.loader.check_event():
                yield self.loader.get_event()
        except yaml.MarkedYAMLError as error:
            line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
            raise ValueError(f"{self.source}{line}: not YAML: {error.problem}") from None
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise ValueError(f"{self.source}, line {line}: not YAML: {error.reason}") from None

    def _value(self, event: Any, key: str, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            self._fail(event, "anchors and aliases are not supported; write the value out")
        if getattr(event, "tag", None) not in (None, "!"):
            self._fail(event, f"tags are not supported, got {event.tag[:40]!r}")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if depth == MAX_DEPTH:
            self._fail(event, f"expected at most {MAX_DEPTH} levels of nesting, found more")
        return self._mapping(key, depth) if isinstance(event, yaml.MappingStartEvent) else self._list(key, depth)

    def _mapping(self, key: str, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._fail(event, "expected a plain key, got a list, a mapping or an alias")
            self._value(event, key, depth)  # checks anchors and tags
            name = f"{key}.{event.value}" if key else event.value
            if event.value in values:
                self._fail(event, f"duplicate key {name!r}; also defined at {self.places[name]}")
            self.places[name] = f"{self.source}, line {event.start_mark.line + 1}"
            values[event.value] = self._value(next(self.events), name, depth + 1)
        return values

    def _list(self, key: str, depth: int) -> list[Any]:
        values = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            values.append(self._value(event, key, depth + 1))
        return values

    def _scalar(self, event: Any) -> Any:
        tag = self.loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        node = yaml.ScalarNode(tag, event.value)
        if tag in _NUMBERS:
            if len(event.value) > LONGEST_NUMBER:
                start = event.value[:10]
                self._fail(event, f"expected a number of at most {LONGEST_NUMBER} characters, got {start}...")
            try:
                return getattr(self.loader, _NUMBERS[tag])(node)
            except (ValueError, OverflowError):
                self._fail(event, f"expected a number, got {event.value!r}")
        return getattr(self.loader, _CONSTANTS[tag])(node) if tag in _CONSTANTS else event.value

    def _fail(self, event: Any, message: str) -> NoReturn:
        raise ValueError(f"{self.source}, line {event.start_mark.line + 1}: {message}")
