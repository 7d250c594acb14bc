"""Presets: the options in which the published code differs from the paper, set together by one key.

The defaults of all options follow the paper. `preset: published` in a configuration (or `--preset published`) follows
the published code instead, which produced the paper's numbers. An option that the configuration sets itself keeps its
value, and a run folder stores the resulting options, not the preset.
"""

from __future__ import annotations

import inspect
from typing import Any

from ..config import Preset
from ..config_keys import describe
from ..languages import TASKS

PUBLISHED = {
    "push_activation": "published",
    "stack_init": "uniform",
    "plateau": "pytorch",
    "count_bos": False,
}
"""Values of the published code by the last part of the key, such as `plateau` for `training.plateau`."""


def published(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """The options that `preset: published` sets in a configuration.

    Args:
        cls: class of the configuration.
        values: its values as nested dictionaries; only `language.name` and the `kind` of a section are read.

    Returns:
        Nested dictionaries of options.

    Example:
        >>> from stackattn.training.cfl import CFLConfig
        >>> published(CFLConfig, {"language": {"name": "dyck"}})["language"]
        {'parameters': {'variant': 'published'}}
    """
    options: dict[str, Any] = {}
    kinds: dict[str, Any] = {}
    for key in describe(cls):
        section, _, name = key.key.rpartition(".")
        given = values.get(section)
        if name == "kind":
            kinds[section] = given.get("kind", key.default) if isinstance(given, dict) else key.default
        elif name in PUBLISHED and key.kind in (None, kinds.get(section)):
            options.setdefault(section, {})[name] = PUBLISHED[name]
    language = values.get("language")
    if isinstance(language, dict) and has_variants(language.get("name")):
        options["language"] = {"parameters": {"variant": "published"}}
    return options


def has_variants(language: object) -> bool:
    """Whether a language has the parameter `variant`, as the paper's languages do."""
    make = TASKS.get(language) if isinstance(language, str) else None
    return make is not None and "variant" in inspect.signature(make).parameters


def paper(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """The options that `preset: paper` sets: none, because the defaults follow the paper."""
    return {}


PRESETS: dict[str, Preset] = {"paper": paper, "published": published}
"""The presets by name, for `stackattn.config.load_config`."""
