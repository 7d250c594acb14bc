"""The rule that decides the claims of Section 6."""

import json

import pytest

from stackattn.cli import main
from stackattn.paper import claims
from stackattn.paper.claims import CLAIMS, at_equal, compare, decide, sign_flip_test


@pytest.mark.parametrize(
    ("better", "worse", "expected"),
    [
        ([1, 2, 3], [2, 3, 4], "confirmed"),
        ([2, 3, 4], [1, 2, 3], "contradicted"),
        ([1, 5, 6], [2, 3, 4], "open"),  # the best restart is better, the median is worse
        ([1, 2], [2, 3, 4], "open"),
        ([], [], "open"),
    ],
)
def test_comparisons(better, worse, expected):
    assert compare(better, worse) == expected


@pytest.mark.parametrize(
    ("comparisons", "most", "expected"),
    [
        (["confirmed"] * 3, False, "confirmed"),
        (["confirmed", "open"], False, "open"),
        (["confirmed", "contradicted", "open"], False, "contradicted"),
        (["confirmed", "confirmed", "contradicted"], True, "confirmed"),
        (["confirmed", "contradicted"], True, "open"),
        (["contradicted", "contradicted", "open"], True, "contradicted"),
    ],
)
def test_claims_follow_from_their_comparisons(comparisons, most, expected):
    assert decide(comparisons, most) == expected


def test_sign_flips():
    assert sign_flip_test([-1, -2, -3]) == 1 / 8
    assert sign_flip_test([1, 2, 3]) == 1
    assert sign_flip_test([-3, 1, 1]) == 4 / 8  # the sums -5, -3, -3 and -1 are at most -1


def write_run(folder, differences, finished=True):
    folder.mkdir(parents=True)
    evaluations = [
        {
            **{"evaluation": n, "epoch": n, "examples": 10 * n, "train_loss": 1.0, "score": value},
            **{"cross_entropy_difference": value, "learning_rate": 0.001, "seconds": n, "cpu_seconds": n / 2},
        }
        for n, value in enumerate(differences, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(values) + "\n" for values in evaluations))
    if finished:
        best = min(evaluations, key=lambda values: values["score"])
        result = {"stopped": "no improvement", "evaluations": len(evaluations), "best": best, "seconds": 1.0}
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_budgets_are_equal(tmp_path):
    first = [write_run(tmp_path / "a" / str(k), [0.9, 0.5, 0.1]) for k in range(3)]
    second = [write_run(tmp_path / "b" / str(k), [0.8, 0.6]) for k in range(3)]
    assert at_equal("epoch", first, second) == (0.5, 0.6)
    assert at_equal("cpu_seconds", first, second) == (0.5, 0.6)


def test_the_command_counts_finished_runs_only(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(claims, "CLAIMS", [claim for claim in CLAIMS if claim.text.startswith("LSTM outperforms")])
    for task in ("marked-reversal", "unmarked-reversal", "padded-reversal", "hardest-cfl"):
        for k in range(3):
            write_run(tmp_path / task / "lstm" / f"0{k}", [0.3, 0.1 + k / 100])
            write_run(tmp_path / task / "tf" / f"0{k}", [0.4, 0.2], finished=task != "hardest-cfl" or k > 0)
    assert main(["reproduce", "claims", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    rows = [line.split(" | ") for line in (tmp_path / "claims.md").read_text().splitlines() if "LSTM < Tf" in line]
    assert all(row[0] == "| LSTM outperforms Tf except on Dyck: open" for row in rows)
    results = [row[-1].removesuffix(" |") for row in rows]
    assert results == ["confirmed", "confirmed", "confirmed", "open"]
    assert rows[0][2:8] == ["3, 3", "0.1000, 0.2000", "0.1100, 0.2000", "0.1100, 0.2000", "0.1100, 0.2000", "0.125"]
    assert rows[3][2] == "3, 2"
