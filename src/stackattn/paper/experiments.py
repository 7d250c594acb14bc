"""The figures and tables that `stackattn reproduce` makes, and the training runs that each of them shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .configurations import CONFIGS, load_configuration
from .names import LABELS, STACKS_ALONE, TRANSFORMERS

if TYPE_CHECKING:
    from .cells import Cell

# Modules that import torch are imported inside the functions below, so that `--help` is fast.


@dataclass(frozen=True)
class Target:
    """A figure or table, and the experiments that it shows."""

    summary: str
    command: str
    """The command that trains its models: `cfl`, `lm` or `mt`."""
    tasks: tuple[str, ...]
    """Tasks that it shows, and that are trained by default."""
    models: tuple[str, ...]
    """Slugs of its models."""
    restarts: int
    """Default number of restarts of each cell; for the paper's figures and tables, the paper's number."""
    show: Callable[[Sequence[Cell], Path], int]
    """Prints the cells and writes them to a folder; returns an exit code."""
    configs: str
    """Name of the folder of its configurations, and of its default output folder."""
    other_tasks: tuple[str, ...] = ()
    """Further tasks that it shows, which are trained only if they are chosen; they are not in the paper."""
    other_models: tuple[str, ...] = ()
    """Models of other targets that it shows as well."""
    needs_matplotlib: bool = False
    """Whether showing it needs matplotlib."""
    same_draws: bool = False
    """Whether all models have the same learning rates and seeds; if not, each cell draws its own, as in the paper."""
    trains: bool = True
    """False if it only shows the runs of another target."""

    @property
    def out(self) -> str:
        """Default folder of its runs."""
        return f"out/{self.configs}"

    def cells(self, out: Path) -> list[Cell]:
        """Return all cells that have runs in `out`, so that a table shows earlier runs as well."""
        from .cells import find_cells

        return find_cells(self.tasks + self.other_tasks, self.other_models + self.models, out)

    def jobs(
        self,
        out: Path,
        tasks: Sequence[str],
        models: Sequence[str],
        restarts: Sequence[int],
        configs: Path | None = None,
        overrides: Sequence[str] = (),
        preset: str | None = None,
    ) -> list[tuple[Path, Any]]:
        """Return run folders and configurations: the first restart of every cell, then the second, and so on.

        Args:
            out: folder of the runs.
            tasks: tasks to train.
            models: slugs of the models to train.
            restarts: numbers of the restarts of each cell, counted from 0.
            configs: folder of the configurations, TASK/MODEL.yaml; the shipped ones by default.
            overrides: changes to every configuration, such as `training.max_epochs=5`.
            preset: `paper` or `published`; replaces the preset of the configurations.

        Raises:
            ValueError: if `configs` is not a folder or lacks a configuration, or if a configuration is invalid.
        """
        from ..training.sweep import restart

        folder = configs or CONFIGS / self.configs
        if not folder.is_dir():
            raise ValueError(f"--configs: expected a folder, got {folder}")
        paths = {(task, model): folder / task / f"{model}.yaml" for task in tasks for model in models}
        for path in paths.values():
            if not path.is_file():
                raise ValueError(f"--configs: expected a folder with TASK/MODEL.yaml for all runs, found no {path}")
        loaded = {cell: load_configuration(self.command, path, overrides, preset) for cell, path in paths.items()}
        return [
            (
                out / task / model / f"{number:02d}",
                restart(config, number, cell=task if self.same_draws else f"{task}/{model}"),
            )
            for number in restarts
            for (task, model), config in loaded.items()
        ]


def _shown_by(module: str, function: str = "show") -> Callable[..., int]:
    """Return a function that imports a module of this package and calls one of its functions."""

    def show(*arguments: Any) -> int:
        return getattr(import_module(f".{module}", __package__), function)(*arguments)

    return show


def _actions(summary: str, task: str, number: int) -> Target:
    """A figure of the actions of Tf+Sup, from runs of Figure 2."""
    show = _shown_by("figure_3", f"show_figure_{number}")
    return Target(summary, "cfl", (task,), ("tf-sup",), 10, show, "figure-2", needs_matplotlib=True)


_PENN_TREEBANK: Mapping[str, Any] = {
    "command": "lm",
    "tasks": ("ptb",),
    "other_tasks": ("wikitext-2",),
    "models": TRANSFORMERS,
    "restarts": 20,
    "configs": "table-2",
}

_LANGUAGES = ("marked-reversal", "unmarked-reversal", "padded-reversal", "dyck", "hardest-cfl")
_FIGURE_2: Mapping[str, Any] = {
    "command": "cfl",
    "tasks": _LANGUAGES,
    "models": tuple(LABELS),
    "restarts": 10,
    "configs": "figure-2",
}

TARGETS = {
    "figure-2": Target(
        summary="Figure 2: cross-entropy differences on five context-free languages",
        show=_shown_by("figure_2"),
        needs_matplotlib=True,
        **_FIGURE_2,
    ),
    "figure-3": _actions("Figure 3: actions of Tf+Sup on a string of marked reversal", "marked-reversal", 3),
    "figure-4": _actions("Figure 4: actions of Tf+Sup on a string of the Dyck language", "dyck", 4),
    "claims": Target(
        summary="The claims of the paper's Section 6, tested on the runs of Figure 2",
        show=_shown_by("claims"),
        trains=False,
        **_FIGURE_2,
    ),
    "validity": Target(
        summary="Validity up to five times the training lengths; trains models with one stack layer (not in the paper)",
        command="cfl",
        tasks=_LANGUAGES,
        models=tuple(STACKS_ALONE),
        other_models=tuple(LABELS),
        restarts=3,
        show=_shown_by("validity"),
        needs_matplotlib=True,
        configs="validity",
    ),
    "agreement": Target(
        summary="How closely the models' stacks agree with real stacks, plotted against cross-entropy "
        "(not in the paper)",
        show=_shown_by("agreement"),
        needs_matplotlib=True,
        trains=False,
        other_models=tuple(STACKS_ALONE),
        **_FIGURE_2,
    ),
    "long": Target(
        summary="Validity of models with a window or a limited depth, compared with exact models (not in the paper)",
        command="cfl",
        tasks=("dyck", "unmarked-reversal"),
        models=("nd", "nd-w32", "nd-w64", "sup", "sup-d32", "tf-nd", "tf-nd-w32", "tf-sup", "tf-sup-d32"),
        restarts=1,
        show=_shown_by("validity", "show_limited"),
        needs_matplotlib=True,
        configs="long",
        same_draws=True,
    ),
    "documents": Target(
        summary="Perplexity and speed of language models trained on articles in rows of 512 tokens (not in the paper)",
        command="lm",
        tasks=("wikitext-2",),
        models=("tf", "tf-sup-d64", "tf-nd-w64"),
        restarts=1,
        show=_shown_by("documents"),
        configs="documents",
        same_draws=True,
    ),
    "sentences": Target(
        summary="Perplexity and subject-verb agreement of small language models of sentences (not in the paper)",
        command="lm",
        tasks=("wikitext-2", "ptb-sample"),
        models=("tf", "tf-xavier", "tf-sup", "tf-nd"),
        restarts=3,
        show=_shown_by("sentences"),
        configs="sentences",
        same_draws=True,
    ),
    "table-2": Target(
        summary="Table 2: perplexities on the Penn Treebank", show=_shown_by("table_2"), **_PENN_TREEBANK
    ),
    "table-ptb-cost": Target(
        summary="Table 6: speed and memory of the runs of Table 2",
        show=_shown_by("table_2", "show_cost"),
        trains=False,
        **_PENN_TREEBANK,
    ),
    "table-3": Target(
        summary="Table 3: perplexity and BLEU of translation, in three sizes (d_model)",
        command="mt",
        tasks=("160", "240", "360"),
        models=TRANSFORMERS,
        restarts=5,
        show=_shown_by("table_3"),
        configs="table-3",
        other_tasks=("small",),
    ),
}
"""The figures and tables that `stackattn reproduce` makes from training runs, by name."""


@dataclass(frozen=True)
class Measurement:
    """A table that is measured or counted, without training runs."""

    summary: str
    show: Callable[[Path], int]
    """Prints the table and writes it to a folder; returns an exit code."""
    out: str = "out/tables"
    """Default folder."""


MEASUREMENTS = {
    "table-1": Measurement("Table 1: parallel time of attention, by counting dependent steps", _shown_by("table_1")),
    "table-4": Measurement(
        "Table 4: time and memory of attention by length, measured on this machine", _shown_by("table_4")
    ),
    "table-5": Measurement("Table 5: parameter counts on context-free languages", _shown_by("table_5")),
}
"""The tables that `stackattn reproduce` makes without training runs, by name."""
