"""The claims of the paper's Section 6 as comparisons of cells, and the rule that decides them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..analysis.real_stack import DETERMINISTIC
from ..training import TrainingRun
from .cells import Cell
from .figure_2 import LONGEST_SEEN, test_by_length
from .names import LABELS
from .tables import number, publish

RULE = (
    "The rule was fixed before the runs that it judges: only finished runs count, and a comparison needs at least "
    'three of each model. "A is better than B" is confirmed if both the best and the median restart of A are better '
    "than those of B, contradicted if both are worse, and open otherwise. A claim is confirmed if all its comparisons "
    "are confirmed, contradicted if at least one is contradicted, and open otherwise; for a claim about most tasks, "
    "more than half of the comparisons must be confirmed or contradicted."
)
CONFIRMED, CONTRADICTED, OPEN = "confirmed", "contradicted", "open"
FEWEST = 3  # restarts of each model

NONDETERMINISTIC = ("unmarked-reversal", "padded-reversal", "hardest-cfl")
ALL = (*DETERMINISTIC, *NONDETERMINISTIC)


def validation(folder: Path) -> float:
    """The lowest validation difference of a run."""
    best = TrainingRun(folder).best_evaluation()
    assert best is not None  # a finished run has been evaluated
    return best["cross_entropy_difference"]


def seen(folder: Path) -> float:
    """The mean test difference on the training lengths."""
    return statistics.mean(row["difference"] for row in test_by_length(folder) if row["length"] <= LONGEST_SEEN)


def gap(folder: Path) -> float:
    """How much larger the test difference is on longer strings than on the training lengths."""
    longer = statistics.mean(row["difference"] for row in test_by_length(folder) if row["length"] > LONGEST_SEEN)
    return longer - seen(folder)


Measure = Callable[[Path], float]
MEASURES: dict[Measure, str] = {validation: "validation", seen: "test, seen lengths", gap: "longer less seen lengths"}


@dataclass(frozen=True)
class Claim:
    """A claim that one model is better than others."""

    text: str
    """The claim in words."""
    better: str
    """Slug of the model that is claimed to be better."""
    worse: tuple[str, ...]
    tasks: tuple[str, ...]
    measure: Measure = validation
    """Function of a run folder whose value compares the models; lower is better."""
    most: bool = False
    """Whether the claim is only about most of the comparisons."""


CLAIMS = (
    Claim(
        "Tf+Sup outperforms Tf on all tasks except hardest CFL",
        "tf-sup",
        ("tf",),
        ("marked-reversal", "unmarked-reversal", "padded-reversal", "dyck"),
    ),
    Claim("Tf+Nd outperforms Tf on all tasks", "tf-nd", ("tf",), ALL),
    Claim(
        "Tf+Nd outperforms Tf and Tf+Sup on all nondeterministic languages", "tf-nd", ("tf", "tf-sup"), NONDETERMINISTIC
    ),
    Claim(
        "Tf+Nd is the best model on hardest CFL on seen lengths",
        "tf-nd",
        tuple(slug for slug in LABELS if slug != "tf-nd"),
        ("hardest-cfl",),
        seen,
    ),
    Claim(
        "LSTM outperforms Tf except on Dyck",
        "lstm",
        ("tf",),
        ("marked-reversal", *NONDETERMINISTIC),
    ),
    Claim("LSTM+Sup generally outperforms Tf+Sup", "lstm-sup", ("tf-sup",), ALL, most=True),
    Claim("LSTM+Nd outperforms Tf+Nd on unmarked reversal", "lstm-nd", ("tf-nd",), ("unmarked-reversal",)),
    Claim("LSTM+Nd has better length generalisation than Tf+Nd", "lstm-nd", ("tf-nd",), ALL, gap),
    Claim(
        "Tf+Nd has better length generalisation than Tf and Tf+Sup on nondeterministic languages",
        "tf-nd",
        ("tf", "tf-sup"),
        NONDETERMINISTIC,
        gap,
    ),
)
"""The claims that compare cross-entropies; docs/results.md also discusses the others."""


def compare(better: Sequence[float], worse: Sequence[float]) -> str:
    """Decide a comparison from the values of the finished restarts of both models."""
    if min(len(better), len(worse)) < FEWEST:
        return OPEN
    signs = {
        min(better) < min(worse),
        statistics.median(better) < statistics.median(worse),
    }
    return OPEN if len(signs) > 1 else CONFIRMED if signs == {True} else CONTRADICTED


def decide(comparisons: Sequence[str], most: bool = False) -> str:
    """Decide a claim from its comparisons."""
    needed = len(comparisons) // 2 + 1
    if comparisons.count(CONFIRMED) >= (needed if most else len(comparisons)):
        return CONFIRMED
    if comparisons.count(CONTRADICTED) >= (needed if most else 1):
        return CONTRADICTED
    return OPEN


def sign_flip_test(differences: Sequence[float]) -> float:
    """One-sided p-value for a mean below 0: the share of all sign choices whose mean is at most the observed one."""
    total = sum(differences)
    signs = list(itertools.product((1, -1), repeat=len(differences)))
    sums = [sum(sign * abs(value) for sign, value in zip(choice, differences, strict=True)) for choice in signs]
    return sum(value <= total + 1e-12 * abs(total) for value in sums) / len(signs)


def at_equal(budget: str, first: Sequence[Path], second: Sequence[Path]) -> tuple[float, float]:
    """Median of the best validation difference of each model, at the largest budget that all runs of both reached.

    Args:
        budget: a key of the metrics whose value increases: `epoch`, or `cpu_seconds` for equal time.
        first, second: the runs of the two models.
    """
    histories = [[TrainingRun(folder).metrics() for folder in folders] for folders in (first, second)]
    limit = min(metrics[-1][budget] for histories_of_model in histories for metrics in histories_of_model)
    medians = [
        statistics.median(
            min((m["cross_entropy_difference"] for m in metrics if m[budget] <= limit), default=float("inf"))
            for metrics in histories_of_model
        )
        for histories_of_model in histories
    ]
    return medians[0], medians[1]


def show(cells: Sequence[Cell], out: Path) -> int:
    """Print all comparisons and the verdict on each claim, and write them to `out` as `claims`.

    Returns:
        The exit code 0: without runs, all claims are open.
    """
    finished = {
        (cell.task, cell.model): [folder for folder in cell.folders if TrainingRun(folder).finished] for cell in cells
    }
    rows = []
    for claim in CLAIMS:
        found = [
            _compare_cells(task, finished.get((task, claim.better), []), finished.get((task, worse), []), claim, worse)
            for task in claim.tasks
            for worse in claim.worse
        ]
        verdict = decide([row["verdict"] for row in found], claim.most)
        rows += [_row(claim, verdict, row) for row in found]
    header = ["claim", "comparison", "restarts", "best", "median", "equal epochs", "equal time", "p", "result"]
    notes = (
        f"{RULE} Each cell contains the cross-entropy differences of both models in nats, in the order of the "
        "comparison. `Equal epochs` and `equal time` (CPU time) are medians of the best validation difference at the "
        "largest budget that all runs reached; `p` is the one-sided sign-flip test of the differences between restarts "
        "with the same number."
    )
    return publish("claims", header, rows, notes, out)


def _compare_cells(
    task: str, better: Sequence[Path], worse: Sequence[Path], claim: Claim, other: str
) -> dict[str, Any]:
    ours, theirs = [claim.measure(folder) for folder in better], [claim.measure(folder) for folder in worse]
    found: dict[str, Any] = {
        "comparison": f"{LABELS[claim.better]} < {LABELS[other]}, {task}, {MEASURES[claim.measure]}",
        "restarts": f"{len(ours)}, {len(theirs)}",
        "verdict": compare(ours, theirs),
    }
    if not ours or not theirs:
        return found
    found["best"] = min(ours), min(theirs)
    found["median"] = statistics.median(ours), statistics.median(theirs)
    found["equal epochs"] = at_equal("epoch", better, worse)
    if all("cpu_seconds" in TrainingRun(folder).metrics()[-1] for folder in (*better, *worse)):
        found["equal time"] = at_equal("cpu_seconds", better, worse)
    pairs = [
        claim.measure(folder) - claim.measure(other_folder)
        for folder in better
        for other_folder in worse
        if folder.name == other_folder.name
    ]
    if len(pairs) >= FEWEST:
        found["p"] = sign_flip_test(pairs)
    return found


def _row(claim: Claim, verdict: str, found: dict[str, Any]) -> list[str]:
    pairs = ["{:.4f}, {:.4f}".format(*found[name]) if name in found else "" for name in ("best", "median")]
    equal = ["{:.4f}, {:.4f}".format(*found[n]) if n in found else "" for n in ("equal epochs", "equal time")]
    return [
        f"{claim.text}: {verdict}",
        found["comparison"],
        found["restarts"],
        *pairs,
        *equal,
        number(found.get("p"), ".3f"),
        found["verdict"],
    ]
