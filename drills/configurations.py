"""Damaged YAML: refused with an error that names the file, or loaded as a configuration that saving does not change."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stackattn.config import from_values, to_values
from stackattn.paper.configurations import configuration_names, find_configuration, load_configuration
from stackattn.training.experiment import config_class

from .drill import Case, Drill, Failed, cpu_limit
from .grammars import damage

CPU_SECONDS = 5.0
PIECES = (
    ":", "- ", "\n", "  ", "\t", "[", "]", "{", "}", "&a ", "*a", "!!python/object:os.system ", "!!int ", "<<: ", "? ",
    "|\n", ">\n", "---\n", "...\n", "%YAML 1.1\n", "'", '"', "#", "null", "~", "true", ".inf", ".nan", "-.inf", "1e999",
    "-1", "0", "0x1F", "0o7", "1_000", "1:30", "2024-01-01", "9" * 45, "9" * 25, "1e-400", "\0", "\ufeff", "\x85", "é",
    "model:", "training:", "layers: ",
    "layers: 99999999999999999999", "layers: 1.superposition-99999999999", "learning_rate: .inf", "max_epochs: 1e6",
    "evaluate_every: 0", "batch_size: -1", "[" * 50, "{a: " * 50, "lengths: [1, 1e20]", "lengths: [80, 40]", "name: ",
)  # fmt: skip


@contextmanager
def prepare(folder: Path) -> Iterator[Case]:
    paths = {name: find_configuration(name) for name in configuration_names()}
    texts = [(_command(path), path.read_text(encoding="utf-8")) for path in paths.values()]
    path = folder / "damaged.yaml"

    def case(rng: random.Random) -> str:
        command, text = rng.choice(texts)
        text = damage(text, PIECES, rng)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            with cpu_limit(CPU_SECONDS):
                try:
                    config = load_configuration(command, str(path))
                except ValueError as error:
                    if path.name not in str(error):
                        raise Failed(f"the error does not name the file: {error}") from None
                    return "refused"
                if from_values(config_class(command), to_values(config)) != config:
                    raise Failed("the configuration changes when it is saved")
        except Failed as error:
            raise Failed(str(error), text=text, command=command) from error
        except Exception as error:
            raise Failed(f"{type(error).__name__}: {error}", text=text, command=command) from error
        return "accepted and consistent"

    yield case


def _command(path: Path) -> str:
    """The command that a shipped configuration belongs to."""
    for command in ("cfl", "lm", "mt"):
        try:
            load_configuration(command, str(path))
        except ValueError:
            continue
        return command
    raise Failed(f"no command can load {path}")


DRILL = Drill("configurations", 1_500, 30_000, prepare)
