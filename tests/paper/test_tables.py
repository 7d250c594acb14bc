"""Tables in every format, and the tables and figures that need no training."""

import csv
import math
import shutil
from pathlib import Path

import pytest
import torch

from stackattn.cli import main
from stackattn.paper import table_1, table_4
from stackattn.paper.experiments import MEASUREMENTS, TARGETS
from stackattn.paper.figure_3 import expected_actions, stack_actions
from stackattn.paper.table_1 import DependentSteps, count_steps
from stackattn.paper.tables import fitted_exponent, publish

RESULTS = Path(__file__).parents[2] / "experiments/results/figure-2"


def test_formats_of_a_table(tmp_path, capsys):
    rows = [["dyck", "Tf", "10,051,072", "a, b"], ["x_1", "Tf+Nd", "1.5", "5 % & #{}$~^\\"]]
    assert publish("numbers", ["task", "model", "parameters", "notes"], rows, "A note.", tmp_path) == 0
    assert f"written to {tmp_path / 'numbers'}.md, .csv and .tex" in capsys.readouterr().out
    assert (tmp_path / "numbers.md").read_text().splitlines()[2] == "| dyck | Tf | 10,051,072 | a, b |"
    with (tmp_path / "numbers.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"task": "dyck", "model": "Tf", "parameters": "10051072", "notes": "a, b"},
            {"task": "x_1", "model": "Tf+Nd", "parameters": "1.5", "notes": "5 % & #{}$~^\\"},
        ]
    assert (tmp_path / "numbers.tex").read_text().splitlines() == [
        "% A note.",
        r"\begin{tabular}{llrr}",
        r"    \toprule",
        r"    task & model & parameters & notes \\",
        r"    \midrule",
        r"    dyck & Tf & 10,051,072 & a, b \\",
        r"    \midrule",
        r"    x\_1 & Tf+Nd & 1.5 & 5 \% \& \#\{\}\$\textasciitilde{}\textasciicircum{}\textbackslash{} \\",
        r"    \bottomrule",
        r"\end{tabular}",
    ]


def test_words_of_headers_are_not_cut(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    header = ["task", "model", "finished", "validation", "test, seen lengths", "longer", "epoch", "rate"]
    publish("numbers", header, [["dyck", "Tf", "0 of 1", "0.3", "0.4", "0.4", "1", "0.002"]], "", tmp_path)
    printed = capsys.readouterr().out
    assert all(word in printed for column in header[1:] for word in column.split())


def test_every_table_and_figure_has_a_command():
    """Only Figure 1, a diagram, has none; the command for Table 6 is `reproduce table-ptb-cost`."""
    shown = " ".join(target.summary for target in [*TARGETS.values(), *MEASUREMENTS.values()])
    for name in ("Figure 2", "Figure 3", "Figure 4", *(f"Table {i}" for i in range(1, 7))):
        assert f"{name}:" in shown


def test_fitted_exponent():
    assert fitted_exponent([2, 4, 16], [8, 64, 4096]) == pytest.approx(3)
    assert fitted_exponent([2, 4, 8], [1, 4, 64]) == pytest.approx(3)  # between slopes of 2 and 4
    assert math.isnan(fitted_exponent([2, 4], [0, 16]))
    assert math.isnan(fitted_exponent([2, 4], [math.nan, 16]))


def test_dependent_steps():
    """Steps add up along a chain, not over independent operations; writing to a buffer continues the chain."""

    def loop(n):
        buffer = torch.zeros(n)
        for t in range(1, n):
            buffer[t] = buffer[t - 1] * 2

    def parallel(n):
        return [torch.zeros(4) + i for i in range(n)]

    def tree(n):
        return torch.zeros(1, n) @ torch.zeros(n, 1)

    assert [count_steps(loop, n) for n in (2, 3, 10)] == [3, 5, 19]  # a product and a copy per step
    assert [count_steps(parallel, n) for n in (1, 9)] == [2, 2]
    assert [count_steps(tree, n) for n in (2, 16, 17)] == [3, 6, 7]
    with DependentSteps() as counted:
        x = torch.zeros(2, 3)
        x.T[1:].reshape(-1)[:1].add_(1)
    assert counted.steps == 3  # zeros, the copy that reshape makes, the sum; views take no step


def test_table_1(tmp_path, capsys):
    assert table_1.show(tmp_path, lengths=(8, 16, 32)) == 0
    with (tmp_path / "table-1.csv").open(newline="") as file:
        rows = {row["attention"]: row for row in csv.DictReader(file)}
    counts = {name: [int(row[f"n = {n}"]) for n in (8, 16, 32)] for name, row in rows.items()}
    first, second, third = counts["softmax"]
    assert first < second < third
    assert third - second == second - first  # logarithmic: each doubling adds the same number of steps
    for name in ("superposition", "nondeterministic"):
        first, second, third = counts[name]
        assert 2 * second < third < 2.5 * second  # n log n, not n^2
        assert 1 < float(rows[name]["exponent"]) < 1.35
    assert (rows["nondeterministic"]["paper"], rows["nondeterministic"]["ours"]) == ("O(n^2)", "O(n log n)")


def test_table_4(tmp_path, monkeypatch):
    """The exponents of known costs; the measurement itself is tested below."""

    def fake(name, lengths, backward):
        power = {"softmax": 2, "superposition": 2, "nondeterministic": 3}[name]
        return [table_4.Measured(1e-6 * n**power, 1e-3 * n ** (2 if backward else 1)) for n in lengths]

    monkeypatch.setattr(table_4, "_measure_alone", fake)
    assert table_4.show(tmp_path, (64, 128)) == 0
    with (tmp_path / "table-4.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["exponent"] for row in rows] == [*("2.00", "2.00", "3.00"), *["2.00"] * 3, *["1.00"] * 3]
    assert [row["paper"] for row in rows[:3]] == ["O(n^2)", "O(n^2)", "O(n^3)"]
    assert rows[0]["n = 64"] == "0.0041"
    assert table_4.show(tmp_path, (256, 512, 1024, 2048)) == 0
    with (tmp_path / "table-4.csv").open(newline="") as file:
        row = list(csv.DictReader(file))[2]  # cubic in time, so the longest lengths are left out
    assert (row["n = 1024"], row["n = 2048"], row["exponent"]) == ("1073.7418", "", "3.00")


@pytest.mark.slow
def test_measured_costs_grow():
    small, large = table_4._measure_alone("nondeterministic", [32, 256], backward=True)
    assert 0 < small.seconds < large.seconds
    assert small.megabytes < large.megabytes


def test_table_5(tmp_path, capsys):
    assert main(["reproduce", "table-5", "--out", str(tmp_path)]) == 0
    assert "30 of 30 counts match the paper." in capsys.readouterr().out
    assert len((tmp_path / "table-5.csv").read_text().splitlines()) == 31


def test_figures_3_and_4(tmp_path, capsys):
    """On Dyck, the committed run of Tf+Sup does what the paper describes."""
    for task, name in (("dyck", "figure-4"), ("marked-reversal", "figure-3")):
        shutil.copytree(RESULTS / task / "tf-sup", tmp_path / task / "tf-sup")
        assert main(["reproduce", name, "--budget", "0", "--out", str(tmp_path)]) == 0
        assert (tmp_path / f"{name}.png").stat().st_size > 1000
        assert (tmp_path / f"{name}.svg").exists()
    with (tmp_path / "figure-4.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["steps as expected"], row["steps"]) == ("40", "40")


def test_expected_actions():
    assert expected_actions("marked-reversal", "01#10") == [0, 0, 1, 2, 2]
    assert expected_actions("dyck", "([])") == [0, 0, 2, 2]


def test_stack_actions_are_shares():
    from stackattn.languages import dyck

    actions = stack_actions(RESULTS / "dyck/tf-sup/00", dyck(), "([])")
    assert actions.shape == (5, 3)
    torch.testing.assert_close(actions.sum(-1), torch.ones(5, dtype=torch.float64))


def test_without_runs(tmp_path, capsys):
    assert main(["reproduce", "figure-3", "--budget", "0", "--out", str(tmp_path)]) == 1
    assert f"figure-3: expected runs in {tmp_path}, found none; train some with" in capsys.readouterr().err
    assert main(["reproduce", "claims", "--out", str(tmp_path)]) == 1
    assert "found none; train some with `stackattn reproduce figure-2`, or choose" in capsys.readouterr().err
