"""End-to-end tests of `stackattn mt` and `stackattn reproduce table-3` on a few words, too few to learn from."""

import gzip
import io
import json
import os
import shutil
import sys
import types

import pytest
from changed_corpus import check_changed_files

from stackattn.cli import main
from stackattn.files import locked
from stackattn.training import TrainingRun

LINES = ["eins zwei", "drei", "zwei eins drei", "vier eins", "drei vier zwei", "eins"] * 8
TINY = {
    "model": {"layers": "1.superposition-4", "d_model": 8, "heads": 2, "hidden_size": 8},
    "training": {"max_epochs": 2, "evaluate_every": None, "learning_rate": 0.01},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A compressed training set, a validation set in SGML and a plain test set, with pairs that the filters drop."""
    folder = tmp_path_factory.mktemp("files")
    reverse = [" ".join(reversed(line.split())) for line in LINES]
    for side, lines in (("de", LINES), ("en", reverse)):
        text = "\n".join([*lines, "", "." if side == "de" else "x", "y" * (9 if side == "de" else 90)]) + "\n"
        (folder / f"train.{side}.gz").write_bytes(gzip.compress(text.encode()))
        segments = "".join(f'<seg id="{i}">{line}</seg>\n' for i, line in enumerate(lines[:6]))
        (folder / f"validation.{side}.sgm").write_text(f"<refset>\n{segments}</refset>\n")
        (folder / f"test.{side}").write_text("".join(f"{line}\n" for line in [*lines[:5], "z" * 200]))
    return folder


def prepare_command(files, out, **changes):
    named = {"train": "train.{}.gz", "validation": "validation.{}.sgm", "test": "test.{}"} | changes
    splits = [
        x for split, name in named.items() for x in (f"--{split}", *(files / name.format(s) for s in ("de", "en")))
    ]
    return ["mt", "prepare", *map(str, splits), "--out", str(out), "--pieces", "40", "--threshold", "2"]


@pytest.fixture(scope="module")
def corpus(files):
    assert main(prepare_command(files, files / "corpus")) == 0
    return files / "corpus"


@pytest.fixture(scope="module")
def run(corpus):
    config = corpus.parent / "tiny.yaml"
    config.write_text(json.dumps({"data": {"folder": str(corpus)}, **TINY}))
    assert main(["mt", "train", str(config), "--out", str(corpus.parent / "run")]) == 0
    return corpus.parent / "run"


def test_prepare(files, tmp_path, capsys):
    for name in ("one", "two"):
        assert main(prepare_command(files, tmp_path / name)) == 0
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if "length ratio" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["- length ratio", "1", "", ""]
    report = json.loads((tmp_path / "one/report.json").read_text())
    assert report["read"]["train"] == {
        "read": 51,
        "blank": 1,
        "full stop only": 1,
        "length ratio": 1,
        "too long": 0,
        "kept": 48,
        "used": 48,
    }
    assert report["read"]["test"]["too long"] == 1
    assert report["sources"]["train"] == ["train.de.gz", "train.en.gz"]
    assert (tmp_path / "one/validation.source").read_text().splitlines() == LINES[:6]
    for path in (tmp_path / "one").iterdir():  # preparation is deterministic
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two"}


def test_prepare_a_sample(files, tmp_path):
    assert main([*prepare_command(files, tmp_path / "small"), "--sample", "7"]) == 0
    assert len((tmp_path / "small/train.source").read_text().splitlines()) == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test": "train.{}.gz", "train": "missing.{}"}, "missing.de"),
        ({"train": "latin.{}"}, "latin.en, line 2: not UTF-8: byte 0xe9"),
        ({"validation": "uneven.{}"}, "expected the same number of sentences, got 3 and 2"),
        ({"train": "blank.{}"}, "expected at least one pair that passes the filters, found none (blank: 2"),
    ],
)
def test_errors_of_prepare_leave_no_folder(files, changes, message, tmp_path, capsys):
    (files / "latin.de").write_bytes(b"a\nb\n")
    (files / "latin.en").write_bytes(b"a\n\xe9\n")
    (files / "uneven.de").write_text("a\nb\nc\n")
    (files / "uneven.en").write_text("a\nb\n")
    for side in ("de", "en"):
        (files / f"blank.{side}").write_text("\n \n")
    assert main(prepare_command(files, tmp_path / "out", **changes)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("stackattn mt prepare: ")
    assert message in error
    assert not list(tmp_path.iterdir())


def test_prepare_does_not_overwrite(files, corpus, capsys):
    assert main(prepare_command(files, corpus)) == 2
    assert f"{corpus} already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--max-ratio", "0", "expected at least 1, got 0.0"),
        ("--pieces", "0", "expected at least 1 piece, got 0"),
        ("--pieces", "2", "pieces, for the characters of the text and <unk>, got 2"),
        ("--threshold", "-1", "expected at least 0, got -1"),
    ],
)
def test_errors_of_prepare_name_the_option(files, tmp_path, capsys, option, value, message):
    assert main([*prepare_command(files, tmp_path / "out"), option, value]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"stackattn mt prepare: {option}: expected")
    assert error.endswith(message)


def test_prepare_warns_when_the_threshold_removes_most_pieces(files, tmp_path, capsys):
    command = prepare_command(files, tmp_path / "out")
    assert main([*command, "--threshold", "1000"]) == 0
    assert "warning: only 0 of 4 pieces occur at least 1000 times in a language" in capsys.readouterr().err
    command[command.index("--out") + 1] = str(tmp_path / "again")
    assert main(command) == 0
    assert "warning" not in capsys.readouterr().err


def test_training_and_evaluation_refuse_a_changed_corpus(corpus, tmp_path, capsys):
    copy, config = shutil.copytree(corpus, tmp_path / "corpus"), tmp_path / "tiny.yaml"
    config.write_text(json.dumps({"data": {"folder": str(copy)}, **TINY}))
    files = {"train": (copy / "train.target", 48), "test": (copy / "test.target", 5)}
    check_changed_files("mt", config, tmp_path / "run", files, capsys)


def test_a_corpus_for_language_models_is_refused(files, tmp_path, capsys):
    data, texts = tmp_path / "data", [str(files / "test.de")] * 3
    assert main(["lm", "prepare", *texts, str(data)]) == 0
    config = tmp_path / "tiny.yaml"
    config.write_text(json.dumps({"data": {"folder": str(data)}, **TINY}))
    capsys.readouterr()
    assert main(["mt", "train", str(config), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert f"{data}: expected a bitext corpus made by `stackattn mt prepare`, found a monolingual corpus" in error
    assert "KeyError" not in error
    assert not (tmp_path / "run").exists()


def test_translate_files_and_standard_input(run, files, tmp_path, capsys, monkeypatch):
    capsys.readouterr()
    assert main(["mt", "translate", str(run), str(files / "test.de"), "--max-tokens", "6"]) == 0
    from_file = capsys.readouterr().out.split("\n")
    assert len(from_file) == 7  # six lines and the empty string after the last newline
    text = "\n" + "\n\n".join((files / "test.de").read_text().splitlines()) + "\n"
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(text.encode()), isatty=lambda: False))
    assert main(["mt", "translate", str(run / "best"), "--max-tokens", "6", "--batch-tokens", "5"]) == 0
    from_input = capsys.readouterr().out.split("\n")
    assert from_input[:-1:2] == [""] * 6
    assert from_input[1::2] == from_file[:-1]


def test_evaluate(run, corpus, files, tmp_path, capsys):
    capsys.readouterr()
    assert main(["mt", "evaluate", str(run), "--max-tokens", "6"]) == 0
    printed = capsys.readouterr().out
    scores = json.loads((run / "test.json").read_text())
    assert scores["sentences"] == 5
    assert f"BLEU {scores['bleu']:.2f}  {scores['bleu_signature']}" in printed
    assert "tok:13a|smooth:exp|version:" in printed
    assert f"chrF {scores['chrf']:.2f}  nrefs:1|case:mixed|" in printed
    translations = (run / "test.txt").read_text().split("\n")[:-1]
    assert len(translations) == 5
    import sacrebleu

    references = (corpus / "test.target").read_text().splitlines()
    assert scores["bleu"] == sacrebleu.corpus_bleu(translations, [references]).score
    # the same from files, but without the filters
    named = ["--files", str(files / "test.de"), str(files / "test.en"), "--out", str(tmp_path / "new/own")]
    assert main(["mt", "evaluate", str(run), "--max-tokens", "6", *named]) == 0
    own = json.loads((tmp_path / "new/own.json").read_text())
    assert own["sentences"] == 6
    assert own["files"] == ["test.de", "test.en"]
    assert (tmp_path / "new/own.txt").read_text().split("\n")[:5] == translations
    assert main(["mt", "evaluate", str(run), "--split", "validation", "--max-tokens", "6"]) == 0
    validation = json.loads((run / "validation.json").read_text())
    assert validation["perplexity"] == pytest.approx(TrainingRun(run).result()["best"]["perplexity"], rel=1e-5)


def test_errors_of_evaluate_and_translate(run, corpus, tmp_path, capsys):
    assert main(["mt", "evaluate", str(run), "--data", str(tmp_path)]) == 2
    assert "report.json: no such file; expected a bitext corpus made by `stackattn mt" in capsys.readouterr().err
    assert main(["mt", "translate", str(tmp_path), os.devnull]) == 2
    assert "a saved model is a folder with config.json" in capsys.readouterr().err
    assert main(["mt", "translate", str(run), str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
    (tmp_path / "empty").touch()
    empty = str(tmp_path / "empty")
    assert main(["mt", "evaluate", str(run), "--files", empty, empty, "--out", str(tmp_path / "scores")]) == 2
    assert "expected at least one sentence to translate, got none" in capsys.readouterr().err
    assert main(["mt", "translate", str(run), empty, "--device", "abacus"]) == 2
    assert "got 'abacus'" in capsys.readouterr().err
    for option in ("--threads", "--max-tokens"):
        with pytest.raises(SystemExit):
            main(["mt", "translate", str(run), empty, option, "0"])
        assert f"argument {option}: expected at least 1, got 0" in capsys.readouterr().err
    with locked(tmp_path, tmp_path / ".scores.json.lock", temporary=True):
        assert main(["mt", "evaluate", str(run), "--max-tokens", "2", "--out", str(tmp_path / "scores")]) == 2
    assert f"{tmp_path}: another process is writing to this folder" in capsys.readouterr().err
    (run / "best").rename(run / "away")
    assert main(["mt", "translate", str(run), empty]) == 2
    assert f"{run}: the run has no best model (model not kept)" in capsys.readouterr().err
    (run / "away").rename(run / "best")


def test_missing_packages_are_named(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    assert main(prepare_command(files, tmp_path / "out")) == 2
    assert "pip install 'stackattn[text]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_reproduce_table_3(corpus, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "configs/240"
    folder.mkdir(parents=True)
    (folder / "tf-sup.yaml").write_text(json.dumps({"data": {"folder": str(corpus)}, **TINY}))
    out = tmp_path / "out"
    command = ["reproduce", "table-3", "--tasks", "240", "--models", "tf-sup", "--restarts", "2"]
    command += ["--configs", str(tmp_path / "configs"), "--out", str(out), "--processes", "2"]
    assert main([*command, "--budget", "0"]) == 1
    assert f"expected runs in {out}, found none" in capsys.readouterr().err
    assert main(command) == 0
    printed = capsys.readouterr().out
    written = (out / "table-3.md").read_text()
    runs = {run: TrainingRun(run).result()["best"]["perplexity"] for run in (out / "240/tf-sup").iterdir()}
    best = min(runs, key=runs.__getitem__)
    test = json.loads((best / "test.json").read_text())
    numbers = "9,349,920", f"{runs[best]:.2f}", "11.53", f"{test['bleu']:.2f}", "12.81"
    row = ["240", "Tf+Sup", "2", f"{test['parameters']:,}", *numbers]
    assert f"| {' | '.join(row)} |" in written
    assert test["bleu_signature"] in written
    printed_row = next(x for x in printed.splitlines() if "Tf+Sup" in x).split("│")[1:-1]
    assert [cell.strip() for cell in printed_row] == row[1:]
    before = (best / "test.json").stat().st_mtime_ns
    assert main([*command, "--budget", "0"]) == 0
    assert (best / "test.json").stat().st_mtime_ns == before  # not translated again
    assert main(["mt", "evaluate", str(best), "--max-tokens", "1"]) == 0
    assert TrainingRun(best).test()["max_tokens"] == 1
    assert main([*command, "--budget", "0"]) == 0
    assert TrainingRun(best).test()["max_tokens"] == 256  # stored results of another beam search are replaced
    (best / "test.json").unlink()
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    assert main([*command, "--budget", "0"]) == 0
    assert "pip install 'stackattn[text]'" in capsys.readouterr().err
    assert (
        f"| 240 | Tf+Sup | 2 |  | 9,349,920 | {runs[best]:.2f} | 11.53 |  | 12.81 |" in (out / "table-3.md").read_text()
    )
