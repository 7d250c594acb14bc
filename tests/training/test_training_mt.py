"""Translation: loss and perplexity, resuming, and a model that learns to reverse sentences."""

import math
import shutil
import signal
import time

import pytest
import torch
from fork_server import processes
from reversal import SIZES, experiment, make_corpus, write_files
from runs import outcome, train_in_process
from torch import nn

from stackattn.config import from_values
from stackattn.text.bitext_corpus import BitextCorpus, BitextOptions, prepare_bitext
from stackattn.training import ConfigError, TrainingRun, run_experiment
from stackattn.training.mt import MTConfig, MTDataOptions, MTTask, read_sentence_pairs
from stackattn.training.translator import Translator


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("reversal"))


class Fixed(nn.Module):
    """A model without parameters, whose logits depend on the current target token and the length of the source."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.table = torch.randn(9, inputs, outputs, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def forward(self, source, target, source_lengths, target_lengths):
        assert source.shape[1] == source_lengths.max()
        assert target.shape[1] == target_lengths.max()
        return self.table[source_lengths[:, None], target]


def nats(task, model, i, smoothing, pairs):
    """Return the loss of one pair, summed token by token."""
    source, target = pairs.source[i].tolist(), pairs.target[i].tolist()
    total = 0.0
    for before, token in zip([task.tokenizer.bos, *target], [*target, task.tokenizer.eos], strict=True):
        log_probs = model.table[len(source) + 1, before].log_softmax(-1)  # the source ends with EOS
        total -= (1 - smoothing) * log_probs[token].item() + smoothing * log_probs.mean().item()
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_is_summed_over_tokens_and_averaged_over_sentences(corpus, smoothing):
    task = MTTask(MTDataOptions(str(corpus), batch_tokens=64, label_smoothing=smoothing))
    model = Fixed(task.tokenizer.input_size, task.tokenizer.output_size)
    batch = max(task.epoch(torch.Generator()), key=len)
    lengths = {len(task.training.target[i]) for i in batch}
    batch = [*batch, next(i for i, x in enumerate(task.training.target) if len(x) not in lengths)]  # adds padding
    expected = sum(nats(task, model, i, smoothing, task.training) for i in batch) / len(batch)
    assert task.loss(model, batch).item() == pytest.approx(expected)
    assert task.size(batch) == len(batch)


def test_validation_is_not_smoothed(corpus):
    task = MTTask(MTDataOptions(str(corpus), label_smoothing=0.3))
    model = Fixed(task.tokenizer.input_size, task.tokenizer.output_size)
    pairs = task.validation
    total = sum(nats(task, model, i, 0.0, pairs) for i in range(len(pairs.source)))
    expected = total / sum(len(target) + 1 for target in pairs.target)
    found = task.evaluate(model)
    assert found["score"] == found["cross_entropy"] == pytest.approx(expected)
    assert found["perplexity"] == pytest.approx(math.exp(expected))


def test_batches_are_limited_by_the_longer_side(corpus):
    task = MTTask(MTDataOptions(str(corpus), batch_tokens=40))
    pairs = task.training
    pairs.target[0] = pairs.target[0].repeat(20)[:19]
    epoch = task.epoch(torch.Generator().manual_seed(1))
    assert sorted(i for batch in epoch for i in batch) == list(range(SIZES["train"]))
    for batch in epoch:
        longest = max(max(len(pairs.source[i]), len(pairs.target[i])) + 1 for i in batch)
        assert len(batch) * longest <= 40
    assert [len(batch) for batch in epoch if 0 in batch] in ([1], [2])


def test_gradients_reach_every_parameter_and_padding_does_not_matter(corpus):
    task = MTTask(MTDataOptions(str(corpus)))
    model = experiment(corpus, {"layers": "1.nondeterministic-2-2-3"}).build_model(task.tokenizer).double().eval()
    lengths = [len(x) for x in task.training.source]
    short, long = lengths.index(1), lengths.index(5)
    apart = sum(task.loss(model, [i]).item() for i in (short, long)) / 2
    loss = task.loss(model, [short, long])
    assert loss.item() == pytest.approx(apart, abs=1e-9)
    loss.backward()
    assert all(x.grad is not None and x.grad.abs().sum() > 0 for x in model.parameters())


@pytest.mark.parametrize(
    "layers",
    [
        "1",
        pytest.param("superposition-32.1", marks=[pytest.mark.slow, pytest.mark.full]),
        pytest.param("nondeterministic-2-2-4.1", marks=pytest.mark.slow),
    ],
    ids=["Tf", "Tf+Sup", "Tf+Nd"],
)
def test_learns_to_reverse_and_the_saved_model_is_self_contained(corpus, layers, tmp_path):
    config = experiment(corpus, {"layers": layers})
    run_experiment(config, tmp_path / "run")
    source, target = BitextCorpus(corpus).read_split("test")
    shutil.copytree(tmp_path / "run/best", tmp_path / "model")
    shutil.rmtree(tmp_path / "run")
    translator = Translator.load(tmp_path / "model")
    scores, translations = translator.evaluate(source, target)
    correct = sum(a == b for a, b in zip(translations, target, strict=True))
    assert correct >= 0.95 * len(target)
    assert scores["bleu"] > 95
    assert scores["chrf"] > 95
    assert scores["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert scores["perplexity"] < 1.5
    # the order, the batches and blank lines do not change the translations
    again = translator.translate([source[3], "", " ", source[0], source[3]])
    assert again == [translations[3], "", "", translations[0], translations[3]]
    small = Translator.load(tmp_path / "model", batch_tokens=1)
    assert small.translate(source[:5]) == translations[:5]
    assert list(translator.translate_lines(iter(source), 7)) == translations


def test_inputs_are_normalised(corpus):
    """Other words give another translation, but other Unicode forms of the same words do not."""
    task = MTTask(MTDataOptions(str(corpus)))
    model = experiment(corpus, {"init_range": 1.0}).build_model(task.tokenizer)
    translator = Translator(model, task.tokenizer, max_tokens=5)
    one, same, other = translator.translate(["ba do", "ｂａ\u00a0do", "ba"])
    assert one == same
    assert one != other


def test_resuming_after_a_kill_gives_the_same_results(corpus, tmp_path):
    config = experiment(corpus, {"dropout": 0.1}, max_epochs=2, evaluate_every=250)
    run_experiment(config, tmp_path / "whole")
    folder = tmp_path / "killed"
    process = processes().Process(target=train_in_process, args=(config, folder))
    process.start()
    while process.is_alive() and len(TrainingRun(folder).metrics()) < 3:
        time.sleep(0.001)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert 3 <= len(TrainingRun(folder).metrics()) < 10
    run_experiment(config, folder, resume=True)
    assert outcome(folder) == outcome(tmp_path / "whole")
    assert len(TrainingRun(folder).metrics()) == 10  # every 250 pairs of 2400, and at the end


def test_a_translation_run_is_bound_to_its_corpus(corpus, tmp_path):
    config = experiment(corpus, max_epochs=1)
    run_experiment(config, tmp_path / "run")
    assert TrainingRun(tmp_path / "run").config()["data"]["fingerprint"] == config.data.fingerprint
    moved = shutil.copytree(corpus, tmp_path / "moved")
    assert read_sentence_pairs(tmp_path / "run", folder=str(moved)) == BitextCorpus(corpus).read_split("test")
    shutil.rmtree(moved)
    other = prepare_bitext(write_files(tmp_path), moved, BitextOptions(pieces=60, threshold=5, max_characters=8))[
        "fingerprint"
    ]
    with pytest.raises(
        ValueError,
        match=f"moved contains another corpus: expected the fingerprint {config.data.fingerprint}, found {other}",
    ):
        read_sentence_pairs(tmp_path / "run", folder=str(moved))


def test_errors_name_the_section(corpus, tmp_path):
    with pytest.raises(
        ConfigError, match=r"data\.folder: .*report.json: no such file; .* bitext corpus made by .*, found an empty"
    ):
        from_values(MTConfig, {"data": {"folder": str(tmp_path)}}).make()
    with pytest.raises(ConfigError, match=r"model\.layers: expected parts like"):
        experiment(corpus, {"layers": "1.stack"}).make()
    with pytest.raises(ConfigError, match="label_smoothing: expected a number from 0 to less than 1, got 1"):
        from_values(MTConfig, {"data": {"folder": str(corpus), "label_smoothing": 1}})
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="a saved model is a folder"):
        Translator.load(tmp_path / "empty")
