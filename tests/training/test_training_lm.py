"""Language modelling of sentences: perplexity, batches, restarts, resuming, and saved models."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
from runs import Killed, outcome

from stackattn.config import from_values
from stackattn.models import TransformerLM
from stackattn.text.monolingual_corpus import write_monolingual
from stackattn.text.vocabulary import Vocabulary, count_vocabulary
from stackattn.training import ConfigError, RunError, TrainingRun, loop, run_experiment
from stackattn.training.lm import (
    LMConfig,
    LMDataOptions,
    LMTask,
    evaluate_run,
    evaluate_sentences,
    load_language_model,
    negative_log_likelihood,
    score_sentences,
)

SENTENCES = [x.split() for x in ("a b", "a b c", "b", "a a a a a b", "c b a", "b c", "a b b", "c")]


@pytest.fixture
def folder(tmp_path):
    splits = {"train": SENTENCES, "validation": SENTENCES[:4], "test": SENTENCES[3:6]}
    write_monolingual(tmp_path / "data", splits, count_vocabulary(SENTENCES, 1, "<unk>"), {})
    return tmp_path / "data"


def config(folder, layers="1.nondeterministic-2-2-3", data=None, **training):
    values = {
        "data": {"folder": str(folder), "batch_tokens": 8, **(data or {})},
        "model": {"layers": layers, "d_model": 8, "heads": 2, "tied": True, "dropout": 0.2},
        "training": {"max_epochs": 3, "evaluate_every": 5, "learning_rate": 0.02, **training},
    }
    return from_values(LMConfig, values)


@pytest.mark.parametrize("layers", ["2", "1.superposition-5", "1.nondeterministic-2-2-3"])
def test_perplexity_equals_that_of_reading_token_by_token(layers, folder):
    """The oracle uses neither padding nor batches: it reads one token at a time with the model's state."""
    task, model = config(folder, layers).make()
    model.eval()
    vocabulary, logs = task.tokenizer, []
    for sentence in task.validation:
        state, last, row = model.initial_state(1), vocabulary.bos, []
        for token in [*sentence, vocabulary.eos]:
            logits, state = model.extend(torch.tensor([[last]]), state)
            assert logits.shape[-1] == 5  # <unk>, a, b, c and EOS: BOS and padding cannot be predicted
            row.append(logits[0, 0].log_softmax(-1)[token].item())
            last = token
        logs.append(row)
    for i, row in score_sentences(model, task.validation, vocabulary):
        assert row == pytest.approx(logs[i], rel=1e-5)
    total, tokens = sum(map(sum, logs)), sum(map(len, logs))
    assert tokens == sum(len(x) + 1 for x in SENTENCES[:4])
    found = evaluate_sentences(model, task.validation, vocabulary)
    assert found["perplexity"] == pytest.approx(math.exp(-total / tokens), rel=1e-5)
    assert task.evaluate(model)["score"] == pytest.approx(-total / tokens, rel=1e-5)
    loss = task.loss(model, [0, 3]).item()  # of training sentences: summed over tokens, averaged over sentences
    assert loss == pytest.approx(-(sum(logs[0]) + sum(logs[3])) / 2, rel=1e-5)
    nats = negative_log_likelihood(model, task.validation, vocabulary)
    assert nats.shape == (4, 7)
    assert nats[2, 2:].tolist() == [0] * 5  # after EOS


@pytest.mark.parametrize("layers", ["2", "superposition-5d2.1", "1.nondeterministic-2-2-3", "stratified-3"])
def test_documents_that_share_a_row_are_read_separately(layers, folder):
    """The documents have 3, 4, 2, 7, ... tokens with EOS: the first row of 8 ends with the first token of the third."""
    task, model = config(folder, layers, {"row_tokens": 8}).make()
    model.double().eval()
    vocabulary, steps = task.tokenizer, [(t, i) for t, x in enumerate(task.training) for i in range(len(x) + 1)]
    rows = [steps[at : at + 8] for at in range(0, len(steps), 8)]
    assert sorted(i for batch in task.epoch(torch.Generator()) for i in batch) == list(range(len(rows)))
    for number, row in enumerate(rows):
        total = 0.0
        for document in sorted({t for t, _ in row}):
            taken = [i for t, i in row if t == document]
            read = [vocabulary.bos, *task.training[document]][taken[0] : taken[-1] + 1]
            wanted = [*task.training[document], vocabulary.eos][taken[0] : taken[-1] + 1]
            logs = model(torch.tensor([read]))[0].log_softmax(-1)
            total -= logs[range(len(wanted)), wanted].sum().item()
        assert task.loss(model, [number]).item() == pytest.approx(total, rel=1e-12)
    found = task.evaluate(model)
    assert found["examples_per_epoch"] == len(rows)
    assert math.isfinite(found["perplexity"])


@pytest.mark.parametrize("count_bos", [True, False])
def test_batches(folder, count_bos):
    task = LMTask(LMDataOptions(str(folder), batch_tokens=8, count_bos=count_bos))
    batches = task.epoch(torch.Generator().manual_seed(1))
    assert sorted(i for batch in batches for i in batch) == list(range(len(SENTENCES)))
    sizes = [(len(batch), max(len(SENTENCES[i]) for i in batch)) for batch in batches]
    # The lengths are 1 1 2 2 3 3 3 6. The paper counts BOS, which adds 1 to each of them.
    expected = [(2, 1), (2, 2), (2, 3), (1, 3), (1, 6)] if count_bos else [(4, 2), (2, 3), (1, 3), (1, 6)]
    assert sorted(sizes) == sorted(expected)
    assert task.epoch(torch.Generator().manual_seed(1)) == batches
    assert sorted(task.share(batches[0], 0, 2) + task.share(batches[0], 1, 2)) == sorted(batches[0])


def test_restarts_draw_the_batch_size(folder):
    made = config(folder, data={"batch_tokens_range": [3, 5]})
    drawn = [made.redraw(seed).data.batch_tokens for seed in range(60)]
    assert set(drawn) == {3, 4, 5}
    assert drawn == [made.redraw(seed).data.batch_tokens for seed in range(60)]
    assert replace(made.redraw(0), data=made.data) == made  # nothing else changes


def test_default_hidden_size_is_four_times_d_model():
    assert from_values(LMConfig, {"data": {"folder": "here"}, "model": {"d_model": 40}}).model.hidden_size == 160
    assert from_values(LMConfig, {"data": {"folder": "here"}, "model": {"hidden_size": 7}}).model.hidden_size == 7


def test_resuming_in_the_middle_of_an_epoch_gives_the_same_results(folder, tmp_path, monkeypatch):
    made, batches = config(folder), []
    run_experiment(made, tmp_path / "whole")
    examples = [row["examples"] for row in TrainingRun(tmp_path / "whole").metrics()]
    assert any(x % len(SENTENCES) for x in examples)  # some evaluations are in the middle of an epoch

    class Stop:
        def on_batch(self, epoch, done, total, loss):
            batches.append(loss)
            if len(batches) % 3 == 0 and len(batches) < 8:
                raise Killed

        def on_evaluation(self, values, best):
            pass

    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    for _ in range(2):
        with pytest.raises(Killed):
            run_experiment(made, tmp_path / "run", resume=True, callback=Stop())
    run_experiment(made, tmp_path / "run", resume=True, callback=Stop())
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_saved_model_contains_its_vocabulary(folder, tmp_path):
    run_experiment(config(folder, max_epochs=1), tmp_path / "run")
    expected = evaluate_run(tmp_path / "run")
    assert expected["tokens"] == sum(len(x) + 1 for x in SENTENCES[3:6])
    (tmp_path / "run/best").rename(tmp_path / "model")
    folder.rename(tmp_path / "moved")
    model, vocabulary = load_language_model(tmp_path / "model")
    assert isinstance(model, TransformerLM)
    assert vocabulary.types == ("<unk>", "a", "b", "c")
    assert next(load_language_model(tmp_path / "model", "meta")[0].parameters()).is_meta
    sentences = [vocabulary.encode(x) for x in SENTENCES[3:6]]
    assert evaluate_sentences(model, sentences, vocabulary)["perplexity"] == expected["perplexity"]
    Vocabulary(("a",)).save(tmp_path / "model")
    with pytest.raises(
        ValueError, match="model: expected a TransformerLM with 2 outputs, the size of its vocabulary, got "
    ):
        load_language_model(tmp_path / "model")


def test_a_run_cannot_be_resumed_with_another_corpus(folder, tmp_path):
    run_experiment(config(folder), tmp_path / "run", minutes=0)
    shutil.rmtree(folder)
    splits = {"train": SENTENCES, "validation": SENTENCES[:4], "test": SENTENCES[:2]}
    other = write_monolingual(folder, splits, count_vocabulary(SENTENCES, 1, "<unk>"), {})["fingerprint"]
    with pytest.raises(
        RunError, match=rf"another configuration \(data\.fingerprint: .* in the run, '{other}' requested\)"
    ):
        run_experiment(config(folder), tmp_path / "run", resume=True)


def test_a_language_model_run_is_bound_to_its_corpus(folder, tmp_path):
    made = config(folder, max_epochs=1)
    run_experiment(made, tmp_path / "run")
    moved = folder.rename(tmp_path / "moved")
    own = evaluate_run(tmp_path / "run", data=moved)
    assert own["corpus"] == made.data.fingerprint
    with pytest.raises(ValueError, match=r"data: no such folder"):
        evaluate_run(tmp_path / "run")
    others = {"train": SENTENCES, "validation": SENTENCES[:4], "test": SENTENCES[:2]}
    report = write_monolingual(folder, others, count_vocabulary(SENTENCES, 1, "<unk>"), {})
    message = (
        f"data contains another corpus: expected the fingerprint {made.data.fingerprint}, found {report['fingerprint']}"
    )
    with pytest.raises(ValueError, match=message):
        evaluate_run(tmp_path / "run")
    with pytest.raises(ConfigError, match=f"data.folder: .*{message}"):
        made.make()
    requested = evaluate_run(tmp_path / "run", data=folder)
    assert requested["corpus"] == report["fingerprint"]
    assert requested["tokens"] != own["tokens"]


def test_invalid_data_and_options(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"data\.folder: .*nowhere: no such folder; expected a monolingual corpus"):
        run_experiment(config(tmp_path / "nowhere"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"model\.d_model: expected a multiple of heads = 3"):
        run_experiment(replace(config(folder), model=replace(config(folder).model, heads=3)), tmp_path / "run")
    for key, value in (("batch_tokens", 0), ("batch_tokens_range", [5, 3])):
        with pytest.raises(ConfigError, match=f"{key}: expected"):
            config(folder, data={key: value})
    values = json.loads((folder / "vocabulary.json").read_text())
    (folder / "vocabulary.json").write_text(json.dumps({**values, "types": ["a", "b"], "unknown": None}))
    with pytest.raises(ConfigError, match=r"data\.folder: .*vocabulary\.json: expected line count 11, .*, found "):
        run_experiment(config(folder), tmp_path / "run")
    assert not (tmp_path / "run").exists()
