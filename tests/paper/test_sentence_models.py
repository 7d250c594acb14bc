"""The tables of `stackattn reproduce sentences`, which compares small language models."""

import json

import pytest

from stackattn.cli import main
from stackattn.files import write_json
from stackattn.paper.sentences import FILE
from stackattn.text.subject_verb import NOUNS, PREPOSITIONS, VERBS
from stackattn.training import TrainingRun


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus with the words that the test of subject-verb agreement uses."""
    folder = tmp_path_factory.mktemp("text")
    lines = [
        f"the {noun[number]} {preposition} the house {verb[number]} here"
        for noun in NOUNS
        for verb in VERBS
        for preposition in PREPOSITIONS
        for number in (0, 1)
    ]
    for name in ("train", "validation", "test"):
        (folder / f"{name}.txt").write_text("\n".join(lines))
    files = [str(folder / f"{name}.txt") for name in ("train", "validation", "test")]
    assert main(["lm", "prepare", *files, str(folder / "data")]) == 0
    return folder / "data"


def table(path):
    lines = [line.strip("| ").split(" | ") for line in path.read_text().splitlines() if line.startswith("|")]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def test_tables_of_two_restarts(corpus, tmp_path, capsys):
    runs = [tmp_path / "out/wikitext-2/tf-xavier" / number for number in ("00", "01")]
    for rate, run in zip((0.001, 0.004), runs, strict=True):
        changes = [f"data.folder={corpus}", "training.max_epochs=2", f"training.learning_rate={rate}"]
        assert main(["lm", "train", "sentences/wikitext-2/tf-xavier", "--out", str(run), "--set", *changes]) == 0
    assert main(["reproduce", "sentences", "--budget", "0", "--out", str(tmp_path / "out")]) == 0
    best = [TrainingRun(run).best_evaluation()["perplexity"] for run in runs]
    (row,) = table(tmp_path / "out/sentences.md")
    assert (row["model"], row["finished"]) == ("Tf, Xavier layer", "2 of 2")
    assert [row["best"], row["worst"]] == [f"{x:.2f}" for x in sorted(best)]
    assert row["restarts (rate: perplexity, epochs)"] == f"0.001: {best[0]:.2f}, 2; 0.004: {best[1]:.2f}, 2"
    test = TrainingRun(runs[best.index(min(best))]).test()
    assert row["test"] == f"{test['perplexity']:.2f}"

    rows = table(tmp_path / "out/subject-verb.md")
    assert [row["run"] for row in rows] == ["00", "01"]
    for row, run in zip(rows, runs, strict=True):
        stored = json.loads((run / FILE).read_text())
        assert [row[name] for name in ("0", "1", "1, misleading", "2", "2, misleading")] == [
            f"{condition['accuracy']:.3f}" for condition in stored["conditions"]
        ]
        assert all(condition["sentences"] == 500 for condition in stored["conditions"])

    write_json(runs[0] / FILE, {**json.loads((runs[0] / FILE).read_text()), "model": "of another run"})
    before = (runs[0] / FILE).read_text()
    assert main(["reproduce", "sentences", "--budget", "0", "--out", str(tmp_path / "out")]) == 0
    assert (runs[0] / FILE).read_text() != before  # measured again
    assert table(tmp_path / "out/subject-verb.md") == rows
    assert "written to" in capsys.readouterr().out
