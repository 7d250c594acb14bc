"""Analysis of language and translation models: sentences, encoder and decoder stacks, the report, errors."""

import json
import math
import shutil

import pytest
import torch

from stackattn.analysis.loaded_runs import SentenceRun, TranslationRun, load_run
from stackattn.analysis.report import write_report
from stackattn.analysis.report_data import page_data
from stackattn.analysis.study import study
from stackattn.cli import main
from stackattn.config import from_values, to_values
from stackattn.text.bitext_corpus import BitextOptions, prepare_bitext
from stackattn.text.monolingual_corpus import write_monolingual
from stackattn.text.vocabulary import Vocabulary, count_vocabulary
from stackattn.training.lm import LMConfig, score_sentences
from stackattn.training.mt import MTConfig, Pairs

SENTENCES = [x.split() for x in ("a bee sees", "a bee", "sees a bee sees", "bee")]
LAYERS = "1.nondeterministic-2-2-3.superposition-4"


def write_run(folder, config):
    """Write a run of an untrained model with two evaluations, and return its folder."""
    task, model = config.make()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(to_values(config)))
    rows = [
        {"evaluation": e, "epoch": e, "examples": 10 * e, "train_loss": 9.0, "score": 3.0 - e}
        | {"cross_entropy": 3.0 - e, "perplexity": math.exp(3.0 - e), "learning_rate": 0.01, "seconds": 60.0}
        for e in (1, 2)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task.save(model, folder / "best")
    return folder


@pytest.fixture(scope="module")
def lm_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    splits = dict.fromkeys(("train", "validation", "test"), SENTENCES)
    write_monolingual(folder / "bees", splits, count_vocabulary(SENTENCES, 1, "<unk>"), {})
    model = {"layers": LAYERS, "d_model": 8, "heads": 2}
    return write_run(folder / "run", from_values(LMConfig, {"data": {"folder": str(folder / "bees")}, "model": model}))


@pytest.fixture(scope="module")
def mt_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mt")
    (folder / "de.txt").write_text("ba do fi\nfi do\nba ba do\n" * 8)
    (folder / "en.txt").write_text("fi do ba\ndo fi\ndo ba ba\n" * 8)
    files = dict.fromkeys(("train", "validation"), (folder / "de.txt", folder / "en.txt"))
    prepare_bitext(files, folder / "corpus", BitextOptions(sample=None, pieces=40, threshold=1))
    model = {"layers": "superposition-4", "d_model": 8, "heads": 2}
    return write_run(
        folder / "run", from_values(MTConfig, {"data": {"folder": str(folder / "corpus")}, "model": model})
    )


def test_a_language_model(lm_run):
    found = study(lm_run)
    (studied,) = found.runs
    assert isinstance(studied.run, SentenceRun)
    assert studied.stacks == ["layer 2", "layer 3"]
    assert studied.agreement == studied.derivation == {}
    assert studied.test is None
    assert studied.run.score == pytest.approx(math.exp(1.0))
    assert len(studied.strings) == 2
    for traced in studied.strings:
        words = traced.tokens[1:]
        assert traced.tokens[0] == "BOS"
        assert words in SENTENCES
        assert [token for token, _ in traced.following] == [*words, "EOS"]
        assert [stack.trace.tops().shape for stack in traced.stacks] == [(1, len(words) + 1, len(words) + 2)] * 2
    vocabulary = Vocabulary.load(lm_run / "best")
    words = studied.strings[0].tokens[1:]
    ((_, expected),) = score_sentences(studied.run.model, [vocabulary.encode(words)], vocabulary)
    probabilities = [p for _, p in studied.strings[0].following]
    assert [math.log(p) for p in probabilities] == pytest.approx(expected, abs=1e-5)
    for row, (token, p) in zip(studied.strings[0].likely, studied.strings[0].following, strict=True):
        assert [x for _, x in row] == sorted((x for _, x in row), reverse=True)
        assert (token, pytest.approx(p)) in row  # all five outputs are listed
        assert sum(x for _, x in row) == pytest.approx(1)


def test_given_sentences(lm_run):
    (studied,) = study(lm_run, texts=["a zebra"]).runs
    assert [traced.tokens for traced in studied.strings] == [["BOS", "a", "<unk>"]]
    assert study(lm_run, samples=1, seed=5).runs[0].strings[0].tokens != []


def test_translation_traces_the_encoder_and_the_decoder(mt_run):
    (studied,) = study(mt_run, samples=1).runs
    assert isinstance(studied.run, TranslationRun)
    assert studied.stacks == ["encoder layer 1", "decoder layer 1"]
    source, target = studied.strings
    assert (source.tokens[-1], target.tokens[0]) == ("EOS", "BOS")
    assert [stack.trace.name for stack in source.stacks] == ["encoder layer 1"]
    assert [stack.trace.name for stack in target.stacks] == ["decoder layer 1"]
    assert source.likely == source.following == []
    assert len(source.stacks[0].trace.tops()[0]) == len(source.tokens)
    run = studied.run
    selected = run.select([], 1, 0)[0]
    pairs = Pairs(run._translator.tokenizer, [], [])
    pairs.source, pairs.target = [[torch.tensor(x) for x in [side]] for side in (selected.source, selected.target)]
    with torch.no_grad():
        nats = pairs.loss(run.model.eval(), [0]).item()
    assert -sum(math.log(p) for _, p in target.following) == pytest.approx(nats, rel=1e-5)


def test_a_given_source_is_traced_with_its_translation(mt_run):
    from stackattn.training.translator import Translator

    (studied,) = study(mt_run, texts=["ba do"]).runs
    source, target = studied.strings
    assert "".join(source.tokens[:-1]).replace("▁", " ").split() == ["ba", "do"]
    assert "the model’s translation" in target.origin
    (translation,) = Translator.load(mt_run).translate(["ba do"])
    assert "".join(target.tokens[1:]).replace("▁", " ").strip().split() == translation.split()


@pytest.mark.parametrize("kind", ["lm_run", "mt_run"])
def test_the_command(kind, request, tmp_path, capsys):
    folder = request.getfixturevalue(kind)
    assert main(["analyse", str(folder), "--samples", "1", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "perplexity" in printed
    assert "difference" not in printed
    assert "real top" not in printed
    assert (tmp_path / "out/report.html").stat().st_size > 10_000
    names = {path.name.split("-", 2)[2] for path in (tmp_path / "out").glob("string-*.svg")}
    expected = {"lm_run": "layer-2-attention.svg", "mt_run": "encoder-layer-1-attention.svg"}[kind]
    assert expected in names


def test_the_data_of_the_page(lm_run, mt_run):
    data = page_data(study(lm_run, samples=1))
    assert data["title"] == "Tf+Sup+Nd on bees"
    assert "trained on sentences of the corpus bees" in data["lede"]
    assert ["Perplexity", "2.72", "validation, epoch 2"] in data["tiles"]
    (run,) = data["runs"]
    assert (run["curve"], run["curveName"]) == ([[1, 2.0], [2, 1.0]], "nats per token")
    (string,) = run["strings"]
    assert len(string["loss"]) == len(string["likely"]) == len(string["tokens"])
    assert string["loss"][0] == pytest.approx(-math.log(string["following"][0][1] / 1000), abs=0.01)
    source, target = page_data(study(mt_run, samples=1))["runs"][0]["strings"]
    assert source["loss"] == []
    assert "source, validation" in source["title"]
    assert len(target["loss"]) == len(target["tokens"])


@pytest.mark.slow
def test_in_the_browser(lm_run, mt_run, tmp_path, open_page):
    page = open_page(write_report(study(lm_run, samples=1), tmp_path / "lm.html"))
    assert page.locator("#next .bar").count() == 5
    assert page.is_hidden("#next-key")
    page.click("#go-last")
    assert page.inner_text("#next-notes").startswith("Actual next token: EOS")
    assert "surprisal" in page.inner_text("#timeline-caption")
    titles = page.locator("h2, h3").all_inner_texts()
    assert {"Step through a sentence", "Token and action", "Next token", "The whole sentence"} <= set(titles)
    assert page.is_hidden("#real-note")
    page = open_page(write_report(study(mt_run, samples=1), tmp_path / "mt.html"))
    assert "An encoder predicts nothing." in page.inner_text("#next-notes")
    assert "surprisal" not in page.inner_text("#timeline-caption")
    assert page.inner_text("label:has(#choose-string)").startswith("Sentence")
    page.select_option("#choose-string", "1")
    assert page.inner_text("#symbol") == "BOS"
    assert page.locator("#next .bar").count() > 2


def test_errors(lm_run, mt_run, make_run, tmp_path, capsys):
    """A missing corpus, an empty sentence, and a folder of two runs, one of them without its corpus."""
    moved = shutil.copytree(lm_run, tmp_path / "sweep/lm")
    values = json.loads((moved / "config.json").read_text())
    values["data"]["folder"] = str(tmp_path / "nowhere")
    (moved / "config.json").write_text(json.dumps(values))
    assert main(["analyse", str(moved)]) == 2
    error = capsys.readouterr().err
    assert "stackattn analyse: cannot read the corpus of the run, from which sentences are drawn: " in error
    assert "pass --string to analyse other sentences" in error
    assert main(["analyse", str(moved), "--string", "a bee", "--no-figures"]) == 0
    for folder in (lm_run, mt_run):
        assert main(["analyse", str(folder), "--string", " "]) == 2
        assert "expected at least one token, got an empty sentence" in capsys.readouterr().err
    make_run(folder="sweep/cfl")
    assert main(["analyse", str(tmp_path / "sweep"), "--samples", "1"]) == 1
    printed = capsys.readouterr()
    assert "skipped run lm: cannot read the corpus of the run" in printed.err
    assert "difference" in printed.out
    assert "perplexity" in printed.out


def test_damaged_metrics_name_the_key(lm_run, tmp_path):
    folder = shutil.copytree(lm_run, tmp_path / "run")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    del rows[1]["perplexity"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(RuntimeError, match="line 2: missing key 'perplexity'"):
        load_run(folder, "run")
