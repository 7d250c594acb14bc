"""End-to-end tests of `stackattn lm` and `stackattn reproduce table-2` on a small treebank and small texts."""

import csv
import io
import json
import math

import pytest
import torch
from changed_corpus import check_changed_files

from stackattn.cli import main
from stackattn.models import TransformerLM
from stackattn.text import penn_treebank
from stackattn.training import TrainingRun
from stackattn.training.lm import load_language_model

SENTENCES = ["The bank fell .", "The bank rose sharply .", "Bonds rose .", "A bank of the banks fell ."]
TINY = {
    "data": {"batch_tokens": 40},
    "model": {"layers": "1.nondeterministic-2-2-3", "d_model": 8, "heads": 2, "tied": True},
    "training": {"max_epochs": 2, "evaluate_every": 20, "learning_rate": 0.02},
}


def trees(number):
    lines = [SENTENCES[i % len(SENTENCES)].split() for i in range(number)]
    return "".join(f"( (S {' '.join(f'(NN {word})' for word in line)}) )\n" for line in lines)


@pytest.fixture
def data(tmp_path, capsys):
    (tmp_path / "part.mrg").write_text(trees(40))
    assert main(["lm", "prepare-ptb", str(tmp_path / "part.mrg"), str(tmp_path / "data"), "--split", "80/10/10"]) == 0
    capsys.readouterr()
    return tmp_path / "data"


@pytest.fixture
def config(tmp_path, data):
    path = tmp_path / "configs/ptb/tf-nd.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**TINY, "data": {**TINY["data"], "folder": str(data)}}))
    return path


def rows(text):
    return list(csv.DictReader(io.StringIO(text), delimiter="\t"))


def table(path):
    """Return the rows of a Markdown table as dictionaries, indexed by the third cell, `ours` or `paper`."""
    lines = [x for x in path.read_text().splitlines() if x.startswith("|")]
    header, _, *found = [[cell.strip() for cell in x.split("|")[1:-1]] for x in lines]
    return {line[2]: dict(zip(header, line, strict=True)) for line in found}


def test_from_trees_to_tables(config, data, tmp_path, capsys):
    out = tmp_path / "out"
    run = out / "ptb/tf-nd/00"
    assert main(["lm", "train", str(config), "--out", str(run)]) == 0
    assert "perplexity" in capsys.readouterr().out
    metrics = TrainingRun(run).metrics()
    types = json.loads((data / "vocabulary.json").read_text())["types"]
    assert metrics[-1]["perplexity"] < len(types)  # better than a uniform distribution
    assert metrics[-1]["examples_per_epoch"] == 32

    assert main(["lm", "evaluate", str(run)]) == 0
    printed = capsys.readouterr().out
    test = json.loads((run / "test.json").read_text())
    assert f"perplexity {test['perplexity']:.2f}" in printed
    assert test["sentences"] == 4

    # unprepared test sentences have the same log-probability
    (tmp_path / "text").write_text("".join(f"{SENTENCES[i % 4]}\n" for i in range(36, 40)))
    assert main(["lm", "score", "--model", str(run), str(tmp_path / "text"), "--sentences"]) == 0
    sentences = rows(capsys.readouterr().out)
    assert sum(int(row["tokens"]) for row in sentences) == test["tokens"]
    total = sum(float(row["log_prob"]) for row in sentences)
    assert math.exp(-total / test["tokens"]) == pytest.approx(test["perplexity"], rel=1e-5)
    assert (
        main(["lm", "score", "--model", str(run / "best"), str(tmp_path / "text"), "--out", str(tmp_path / "tsv")]) == 0
    )
    assert capsys.readouterr().out == f"written to {tmp_path / 'tsv'}\n"
    tokens = rows((tmp_path / "tsv").read_text())
    for i, sentence in enumerate(sentences, 1):
        found = [row for row in tokens if row["sentence"] == str(i)]
        assert [row["token"] for row in found] == [*SENTENCES[i - 1].split(), "</s>"]
        assert sum(float(row["log_prob"]) for row in found) == pytest.approx(float(sentence["log_prob"]), abs=1e-4)

    command = ["lm", "generate", "--model", str(run), "--number", "5", "--prompt", "The bank", "--max-length", "4"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert main(command) == 0
    assert capsys.readouterr().out == printed
    types = set(load_language_model(run)[1].types)
    for line in printed.splitlines():
        assert line.startswith("The bank")
        assert set(line.removesuffix(" ...").split()) <= types
        assert len(line.removesuffix(" ...").split()) <= 6
    assert len(printed.splitlines()) == 5

    reproduce = ["--configs", str(tmp_path / "configs"), "--out", str(out), "--models", "tf-nd", "--budget", "0"]
    assert main(["reproduce", "table-2", *reproduce]) == 0
    row = table(out / "table-2.md")
    best = min(metrics, key=lambda x: x["score"])
    parameters = sum(x.numel() for x in load_language_model(run)[0].parameters())
    figures = {"params": f"{parameters:,}", "val.": f"{best['perplexity']:.2f}", "test": f"{test['perplexity']:.2f}"}
    figures |= {"task": "ptb", "model": "Tf+Nd", "runs": "1", "rate": "0.02", "batch": "40"}
    assert row["ours"].items() >= figures.items()
    assert row["paper"].items() >= {"params": "9,861,898", "val.": "110.59", "test": "88.54", "runs": "20"}.items()
    assert main(["reproduce", "table-ptb-cost", "--out", str(out)]) == 0  # trains nothing
    row = table(out / "table-ptb-cost.md")
    speed, memory = metrics[-1]["examples"] / metrics[-1]["train_seconds"], metrics[-1]["memory"] / 1e6
    figures = {"examples/s": f"{speed:.1f}", "min./epoch": f"{32 / speed / 60:.1f}", "memory, MB": f"{memory:,.0f}"}
    assert row["ours"].items() >= figures.items()
    assert row["paper"].items() >= {"examples/s": "27.0", "min./epoch": "24.3", "memory, MB": "1,910"}.items()
    assert "written to" in capsys.readouterr().out


def test_tables_without_data_or_models(config, data, tmp_path, capsys):
    out = tmp_path / "out"
    reproduce = ["reproduce", "table-2", "--configs", str(tmp_path / "configs"), "--out", str(out), "--models", "tf-nd"]
    reproduce += ["--budget", "0"]
    assert main(reproduce) == 1
    assert f"expected runs in {out}, found none" in capsys.readouterr().err
    run = out / "ptb/tf-nd/00"
    assert main(["lm", "train", str(config), "--out", str(run)]) == 0
    data.rename(tmp_path / "moved")
    assert main(reproduce) == 0
    assert f"no results for {run}: " in capsys.readouterr().err
    assert table(out / "table-2.md")["ours"]["test"] == ""
    (tmp_path / "moved").rename(data)
    assert main(reproduce) == 0
    with_test = (out / "table-2.md").read_text()
    assert table(out / "table-2.md")["ours"]["test"] != ""
    (run / "best/model.safetensors").unlink()  # as in a folder that keeps only the metrics
    assert main(reproduce) == 0
    assert (out / "table-2.md").read_text() == with_test


def test_only_results_on_the_run_s_own_corpus_are_written(config, data, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["lm", "train", str(config), "--out", str(run), "--set", "training.max_epochs=1"]) == 0
    data.rename(tmp_path / "moved")
    (tmp_path / "part.mrg").write_text(trees(50))
    assert main(["lm", "prepare-ptb", str(tmp_path / "part.mrg"), str(data), "--split", "80/10/10"]) == 0
    capsys.readouterr()
    assert main(["lm", "evaluate", str(run)]) == 2
    assert "data contains another corpus: expected the fingerprint " in capsys.readouterr().err
    assert main(["lm", "evaluate", str(run), "--data", str(data)]) == 0
    assert "perplexity" in (printed := capsys.readouterr().out)
    assert "not written: this is not the corpus of the run" in printed
    assert not (run / "test.json").exists()
    assert main(["lm", "evaluate", str(run), "--data", str(tmp_path / "moved")]) == 0
    assert f"written to {run / 'test.json'}" in capsys.readouterr().out
    assert json.loads((run / "test.json").read_text())["sentences"] == 4


def test_training_and_evaluation_refuse_a_changed_corpus(config, data, tmp_path, capsys):
    files = {"train": (data / "train.txt", 32), "test": (data / "test.txt", 4)}
    check_changed_files("lm", config, tmp_path / "run", files, capsys)


def test_counts_of_the_treebank_are_compared_with_the_expected_ones(tmp_path, capsys, monkeypatch):
    for section in (*range(2, 22), 23, 24):
        for number in ("00", "23", "24"):
            (tmp_path / "wsj").mkdir(exist_ok=True)
            (tmp_path / f"wsj/wsj_{section:02d}{number}.mrg").write_text(trees(4))
    command = ["lm", "prepare-ptb", str(tmp_path / "wsj"), str(tmp_path / "data")]
    assert main(command) == 1
    printed = capsys.readouterr()
    assert "-39,591" in printed.out  # 20 * 3 * 4 instead of 39,831
    assert "this is not the paper's data" in printed.err
    found = {"training sentences": 240, "training tokens": 1140, "types": 11, "classes of unknown words": 0}
    found |= {"sentences of section 24": 12, "test sentences": 12}
    monkeypatch.setattr(penn_treebank, "EXPECTED", found)
    command[-1] = str(tmp_path / "again")
    assert main(command) == 0
    for name in ("train.txt", "vocabulary.json", "report.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "data" / name).read_bytes()
    # a missing validation file and an empty training section
    capsys.readouterr()
    (tmp_path / "wsj/wsj_2400.mrg").unlink()
    for path in (tmp_path / "wsj").glob("wsj_07*"):
        path.write_text("")
    command[-1] = str(tmp_path / "holes")
    assert main(command) == 1
    printed = capsys.readouterr()
    lines = [x.replace("│", " ").split() for x in printed.out.splitlines()]
    assert ["sentences", "of", "section", "24", "12", "8", "-4"] in lines
    assert ["training", "sentences", "240", "228", "-12"] in lines
    assert "06: 12, 07: 0, 08: 12" in printed.err
    assert printed.err.endswith("23: 12, 24: 8\n")


def test_plain_text_in_words_and_pieces(tmp_path, capsys):
    paragraph = " ".join(SENTENCES)
    (tmp_path / "train").write_text(f" = Title = \n\n {paragraph} \n" * 5)
    (tmp_path / "valid").write_text("The bonk fell .\nA sentence with far too many words in it .\n")
    files = [str(tmp_path / x) for x in ("train", "valid", "valid")]
    options = ["--drop-headings", "--split-sentences", "--max-length", "7"]
    assert main(["lm", "prepare", *files, str(tmp_path / "words"), *options]) == 0
    printed = capsys.readouterr().out
    assert "read: headings" in printed
    assert "dropped: sentences" in printed
    assert "dropped: tokens" in printed
    report = json.loads((tmp_path / "words/report.json").read_text())
    train = {"lines": 15, "blank": 5, "headings": 5, "sentences": 20, "too_long": 0, "tokens_too_long": 0}
    assert report["read"]["train"] == train
    assert report["read"]["validation"]["tokens_too_long"] == 10
    assert report["written"]["validation"] == {"sentences": 1, "tokens": 4, "unknown": 1}
    assert (tmp_path / "words/validation.txt").read_text() == "The <unk> fell .\n"
    assert report["options"]["min_count"] == 2

    pytest.importorskip("sentencepiece")
    assert main(["lm", "prepare", *files, str(tmp_path / "pieces"), *options[:2], "--pieces", "30"]) == 0
    config = tmp_path / "tiny.yaml"
    config.write_text(json.dumps({**TINY, "data": {"folder": str(tmp_path / "pieces"), "batch_tokens": 100}}))
    run = str(tmp_path / "run")
    assert main(["lm", "train", str(config), "--out", run, "--set", "training.max_epochs=1"]) == 0
    again = ["--pieces", str(tmp_path / "run/best/pieces.model")]  # stored with the run
    assert main(["lm", "prepare", *files, str(tmp_path / "same"), *options[:2], *again]) == 0
    assert (tmp_path / "same/train.txt").read_bytes() == (tmp_path / "pieces/train.txt").read_bytes()
    capsys.readouterr()
    assert main(["lm", "score", "--model", run, str(tmp_path / "valid")]) == 0
    first = [row["token"] for row in rows(capsys.readouterr().out) if row["sentence"] == "1"]
    assert "".join(first[:-1]).replace("▁", " ").split() == ["The", "bonk", "fell", "."]
    assert main(["lm", "generate", "--model", run, "--number", "1"]) == 0
    assert "▁" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["prepare-ptb", "PART", "OUT"],
            "expected a folder with sections, got a file; divide its sentences with --split",
        ),
        (
            ["prepare-ptb", "PART", "OUT", "--split", "80/20"],
            "--split: expected 3 positive numbers such as 80/10/10, got 80/20",
        ),
        (
            ["prepare-ptb", "PART", "OUT", "--split", "most"],
            "--split: expected proportions such as 80/10/10, got 'most'",
        ),
        (["prepare-ptb", "PART", "PART", "--split", "80/10/10"], "already exists"),
        (["prepare-ptb", "NOWHERE", "OUT"], "no such file or folder"),
        (["prepare", "PART", "PART", "PART", "OUT", "--min-count", "0"], "--min-count: expected at least 1, got 0"),
        (
            ["prepare", "PART", "PART", "PART", "OUT", "--max-length", "1"],
            "train: expected at least one sentence",
        ),
        (["prepare", "PART", "PART", "PART", "OUT", "--unknown", "a b"], "--unknown: expected a token without"),
        (["prepare", "PART", "PART", "PART", "OUT", "--pieces", "0"], "--pieces: expected at least 1 piece"),
        (["prepare", "PART", "PART", "PART", "OUT", "--pieces", "PART"], "not a SentencePiece model"),
        (
            ["train", "--out", "OUT", "--set", "data.folder=NOWHERE"],
            "data.folder: NOWHERE: no such folder; expected a monolingual corpus",
        ),
        (["evaluate", "NOWHERE"], "is the folder of a run"),
        (["generate", "--model", "NOWHERE"], "a saved model is a folder"),
        (["score", "PART", "--model", "NOWHERE"], "a saved model is a folder"),
    ],
)
def test_errors_are_one_line(arguments, message, tmp_path, capsys):
    (tmp_path / "part.mrg").write_text(trees(8))
    names = {"PART": "part.mrg", "OUT": "out", "NOWHERE": "nowhere"}
    for name, file in names.items():
        arguments = [x.replace(name, str(tmp_path / file)) for x in arguments]
        message = message.replace(name, str(tmp_path / file))
    assert main(["lm", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"stackattn lm {arguments[0]}: ")
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_generate_names_its_options_and_refuses_other_models(config, tmp_path, capsys):
    run = str(tmp_path / "run")
    assert main(["lm", "train", str(config), "--out", run, "--set", "training.max_epochs=1"]) == 0
    for option, value, message in (
        ("--temperature", "0", "expected a positive number, got 0; pass --top-k 1 for the most likely tokens"),
        ("--top-k", "0", "expected a positive integer, got 0"),
        ("--top-p", "2", "expected a number greater than 0 and at most 1, got 2.0"),
    ):
        capsys.readouterr()
        assert main(["lm", "generate", "--model", run, option, value]) == 2
        assert capsys.readouterr().err == f"stackattn lm generate: {option}: {message}\n"
    (tmp_path / "run/best/vocabulary.json").unlink()
    assert main(["lm", "generate", "--model", run]) == 2
    expected = "best: expected a model trained by `stackattn lm train`, found no vocabulary.json\n"
    assert capsys.readouterr().err.endswith(expected)


def test_empty_lines_and_quotation_marks_are_scored(config, tmp_path, capsys):
    run = str(tmp_path / "run")
    assert main(["lm", "train", str(config), "--out", run, "--set", "training.max_epochs=1"]) == 0
    (tmp_path / "text").write_text('\nThe " bank"\n')
    capsys.readouterr()
    assert main(["lm", "score", "--model", run, str(tmp_path / "text")]) == 0
    found = rows(capsys.readouterr().out)
    assert [(row["sentence"], row["token"]) for row in found] == [
        ("1", "</s>"),
        *(("2", x) for x in ("The", '"', 'bank"', "</s>")),
    ]
    assert torch.is_grad_enabled()


def test_device(config, tmp_path, capsys, monkeypatch):
    run = str(tmp_path / "run")
    assert main(["lm", "train", str(config), "--out", run, "--set", "training.max_epochs=1"]) == 0
    (tmp_path / "text").write_text("The bank fell .\n")
    asked_for, to = [], TransformerLM.to
    monkeypatch.setattr(TransformerLM, "to", lambda model, device: asked_for.append(device) or to(model, device))
    for command in (["evaluate", run], ["generate", "--model", run], ["score", str(tmp_path / "text"), "--model", run]):
        found = []
        for device in ("cpu", "cpu:0"):
            capsys.readouterr()
            assert main(["lm", *command, "--device", device]) == 0
            found.append(capsys.readouterr().out)
        assert found[0] == found[1]
        assert main(["lm", *command, "--device", "abacus"]) == 2
        assert "expected a PyTorch device, such as cpu or cuda, got 'abacus'" in capsys.readouterr().err
    devices = [str(x) for x in asked_for if isinstance(x, torch.device)]  # loading also calls `to` with dtypes
    assert devices == ["cpu", "cpu:0"] * 3


def test_standard_input_is_decoded_like_files(config, tmp_path, capsys, monkeypatch):
    run = str(tmp_path / "run")
    assert main(["lm", "train", str(config), "--out", run, "--set", "training.max_epochs=1"]) == 0
    content = "\ufeffThe bank\r\nbanks\u2028fell\n".encode()
    (tmp_path / "text").write_bytes(content)
    found = []
    for file in (str(tmp_path / "text"), "-"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))
        capsys.readouterr()
        assert main(["lm", "score", "--model", run, file]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1]
    assert [row["token"] for row in rows(found[1])] == ["The", "bank", "</s>", "banks", "fell", "</s>"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"The\nb\xff\n"), encoding="utf-8"))
    assert main(["lm", "score", "--model", run, "-"]) == 2
    error = capsys.readouterr().err
    assert error == "stackattn lm score: standard input, line 2: not UTF-8: byte 0xff at column 2\n"


@pytest.mark.slow
def test_sweep(config, tmp_path, capsys):
    """Each restart draws a learning rate and a batch size; running the same command again trains nothing."""
    out = tmp_path / "runs"
    command = ["lm", "sweep", str(config), "--restarts", "2", "--out", str(out), "--processes", "1"]
    command += ["--set", "training.max_epochs=1", "data.batch_tokens_range=[20,60]"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    configs = [TrainingRun(out / name).config() for name in ("00", "01")]
    assert len({config["training"]["learning_rate"] for config in configs}) == 2
    assert len({config["data"]["batch_tokens"] for config in configs}) == 2
    perplexities = {name: TrainingRun(out / name).result()["best"]["perplexity"] for name in ("00", "01")}
    best = min(perplexities, key=perplexities.__getitem__)
    assert f"the best run is in {out / best}" in printed
    written = [(out / name / "metrics.jsonl").stat().st_mtime_ns for name in ("00", "01")]
    assert main(command) == 0
    assert [(out / name / "metrics.jsonl").stat().st_mtime_ns for name in ("00", "01")] == written
