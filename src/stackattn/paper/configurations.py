"""Loading configurations by path or by the name of a shipped one, and applying presets.

A name such as `figure-2/dyck/tf-nd` is the path of a file in `configs/`, without `.yaml`:

- `demo/MODEL`: the three models of `stackattn demo`
- `figure-2/TASK/MODEL`, `table-2/ptb/MODEL`, `table-3/D_MODEL/MODEL`: the paper's experiments
- `validity/TASK/MODEL`: single stack layers without softmax attention or positions, for length generalisation
- `long/TASK/MODEL`: models whose stacks have a window or a limited depth, and exact models for comparison
- `documents/TASK/MODEL`: language models trained on articles, with softmax attention alone and with limited stacks
- `sentences/TASK/MODEL`: small language models of sentences, with a control for the initial weights
- `table-2/wikitext-2/MODEL`, `table-3/small/MODEL`: smaller models on other corpora
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

CONFIGS = Path(str(files("stackattn.paper"))) / "configs"


def configuration_names() -> list[str]:
    """Names of all shipped configurations."""
    return sorted(path.relative_to(CONFIGS).with_suffix("").as_posix() for path in CONFIGS.rglob("*.yaml"))


def find_configuration(name: str) -> Path:
    """Path of a configuration file, given its path or the name of a shipped configuration.

    Raises:
        FileNotFoundError: if there is neither a file nor a shipped configuration of that name.
    """
    path, shipped = Path(name), CONFIGS / f"{name}.yaml"
    if path.is_file():
        return path
    if name in configuration_names():
        return shipped
    near = difflib.get_close_matches(name, configuration_names(), 1, 0.8)
    hint = f"did you mean {near[0]!r}?" if near else "`stackattn config list` lists the shipped configurations"
    raise FileNotFoundError(
        f"CONFIG: expected an existing YAML file or the name of a shipped configuration, got {name!r}; {hint}"
    )


def load_configuration(
    command: str, name: str | Path | None, overrides: Sequence[str] = (), preset: str | None = None
) -> Any:
    """Load a configuration and expand its preset.

    Args:
        command: the training command, `cfl`, `lm` or `mt`.
        name: path of a YAML file or name of a shipped configuration; None if there are only overrides.
        overrides: changes such as `"training.max_epochs=5"`.
        preset: `paper` or `published`; replaces the preset of the file.

    Raises:
        FileNotFoundError: if there is neither a file nor a shipped configuration of that name.
        ValueError: if there is neither a name nor an override.
        ConfigError: if the configuration is invalid.

    Example:
        >>> load_configuration("cfl", "figure-2/dyck/tf-nd", ["training.max_epochs=5"]).model.d_model
        28
    """
    # Imported here because torch is slow to load, and `--help` needs only the names.
    from ..config import ConfigError, from_values, load_config
    from ..training.experiment import config_class
    from .presets import PRESETS

    changes = [*overrides, *([] if preset is None else [f"preset={preset}"])]
    if name is None and not overrides:
        raise ValueError(
            "expected a configuration: a YAML file, the name of a shipped configuration (`stackattn config list`) or "
            f"keys after --set (`stackattn config {command}` lists them), got none"
        )
    if name is None:
        return from_values(config_class(command), {}, changes, presets=PRESETS)
    try:
        return load_config(config_class(command), find_configuration(str(name)), changes, PRESETS)
    except ConfigError as error:
        if overrides or Path(name).exists():
            raise
        # shipped configurations are valid
        raise ConfigError(f"{error}; this shipped configuration belongs to a command other than {command}") from None
