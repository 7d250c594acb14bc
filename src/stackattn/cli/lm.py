"""Language models of sentences: prepare text, train models on it, evaluate them, and generate and score sentences."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import lm_prepare
from .arguments import (
    add_actions,
    add_corpus_of_run,
    add_evaluation,
    add_number,
    add_output_file,
    add_output_folder,
    add_seed,
    add_torch_arguments,
    add_training_arguments,
    naming,
    path,
    read_input,
    write_output,
)
from .training import run_action

if TYPE_CHECKING:
    from ..text.vocabulary import Vocabulary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = add_actions(parser)
    lm_prepare.add_arguments(commands)
    add_training_arguments(commands, "table-2/ptb/tf-nd")
    evaluate = add_evaluation(
        commands,
        "measure the perplexity of a run's best model",
        "Measure the perplexity of a run's best model. Results on the test set of the run's own corpus are "
        "written to RUN/test.json.",
    )
    add_corpus_of_run(evaluate, ("train", "validation", "test"))
    generate = commands.add_parser(
        "generate", help="sample sentences from a model", description="Sample sentences from a model."
    )
    add_number(generate, "--number", "number of sentences", 10, least=1)
    generate.add_argument("--prompt", default="", metavar="TEXT", help="first words of every sentence (default: none)")
    add_number(generate, "--max-length", "maximum number of tokens after the prompt", 100, least=1)
    temperature = "temperature of the softmax; values below 1 favour likely tokens"
    add_number(generate, "--temperature", temperature, 1.0, kind=float, metavar="T")
    add_number(generate, "--top-k", "sample only from the K most likely tokens", "all", metavar="K")
    share = "sample only from the most likely tokens with total probability P"
    add_number(generate, "--top-p", share, "all", kind=float, metavar="P")
    add_number(generate, "--seed", "seed of the random numbers", 0)
    score = commands.add_parser(
        "score",
        help="write the log-probabilities of tokens or sentences as TSV",
        description="Write the log-probability of each token of a file, or of each sentence, as tab-separated values. "
        "Logarithms are natural.",
    )
    score.add_argument(
        "file", metavar="FILE", help="one sentence per line, tokenised like the training text; - reads standard input"
    )
    score.add_argument("--sentences", action="store_true", help="write one row per sentence instead of one per token")
    add_output_file(score)
    agreement = commands.add_parser(
        "agreement",
        help="test subject-verb agreement",
        description="Measure how often a model gives a higher probability to the verb that agrees with the subject "
        "than to the verb that does not, on sentences made from templates with up to two nouns between subject and "
        "verb.",
    )
    add_number(agreement, "--number", "number of sentences for each condition", 200, least=1)
    add_seed(agreement, "the sentences")
    stacks = commands.add_parser(
        "stacks",
        help="measure what a model's stacks read on treebank sentences",
        description="Measure which earlier words the stacks of a model read on sentences of a treebank: by distance, "
        "by word class, and for related words (subject and verb, brackets, quotation marks).",
    )
    stacks.add_argument("trees", type=path, metavar="TREES", help="file in the format of the Penn Treebank (.mrg)")
    add_number(stacks, "--number", "use at most this many sentences, from the start of the file", "all", least=1)
    add_output_folder(stacks, "folder for stacks.md, stacks.json and the figures")
    for command in (generate, score, agreement, stacks):
        command.add_argument(
            "--model", required=True, metavar="FOLDER", help="folder of a run, or of a saved model (required)"
        )
        add_torch_arguments(command)


def run(args: argparse.Namespace) -> int:
    actions = {
        "prepare": lm_prepare.prepare_plain,
        "prepare-ptb": lm_prepare.prepare_treebank,
        "evaluate": _evaluate,
        "generate": _generate,
        "score": _score,
        "agreement": _agreement,
        "stacks": _stacks,
    }
    return run_action(args, actions)


def _evaluate(args: argparse.Namespace) -> int:
    from ..training import TrainingRun
    from ..training.lm import LMConfig, evaluate_run
    from ..training.run import config_of

    found = evaluate_run(args.run, args.split, args.data, args.device)
    print(f"{args.split}: {found['sentences']:,} sentences, {found['tokens']:,} tokens with EOS")
    print(f"cross-entropy {found['cross_entropy']:.4f} nats per token, perplexity {found['perplexity']:.2f}")
    if args.split == "test":
        if found["corpus"] == config_of(LMConfig, args.run).data.fingerprint:
            print(f"written to {TrainingRun(args.run).write_test(found)}")
        else:
            print("not written: this is not the corpus of the run")
    return 0


def _generate(args: argparse.Namespace) -> int:
    import torch

    from ..models import sample
    from ..training.lm import load_language_model

    model, vocabulary = load_language_model(args.model, args.device)
    prompt = vocabulary.split(args.prompt)
    start = vocabulary.encode(prompt)
    if unknown := [token for token, i in zip(prompt, start, strict=True) if vocabulary.types[i] != token]:
        print(f"--prompt: replaced tokens that are not in the vocabulary: {' '.join(unknown)}", file=sys.stderr)
    if not args.temperature > 0:
        advice = "pass --top-k 1 for the most likely tokens"
        raise ValueError(f"--temperature: expected a positive number, got {args.temperature:g}; {advice}")
    with naming(top_k="--top-k", top_p="--top-p"):
        sentences = sample(
            model,
            torch.tensor([[vocabulary.bos, *start]] * args.number, device=args.device),
            max_new_tokens=args.max_length + 1,  # one more for EOS
            eos=vocabulary.eos,
            temperature=args.temperature,
            top_k=args.top_k,
            top_p=args.top_p,
            generator=torch.Generator().manual_seed(args.seed),
        )
    for sentence in sentences:
        words = vocabulary.decode([*start, *sentence.tokens[: args.max_length]])
        print(words if sentence.finished else f"{words} ...")
    return 0


def _score(args: argparse.Namespace) -> int:
    from ..training.lm import load_language_model, score_sentences
    from .progress import track

    model, vocabulary = load_language_model(args.model, args.device)
    sentences = [vocabulary.split(line) for line in read_input(args.file)]
    numbers = [vocabulary.encode(sentence) for sentence in sentences]
    scores: list[list[float]] = [[] for _ in sentences]
    for i, row in track(score_sentences(model, numbers, vocabulary), "scoring", len(sentences)):
        scores[i] = row
    rows = _sentence_rows(scores) if args.sentences else _token_rows(sentences, numbers, scores, vocabulary)
    text = io.StringIO()
    csv.writer(text, "excel-tab", lineterminator="\n").writerows(rows)  # quotes tokens that contain quotation marks
    write_output(args.out, text.getvalue())
    return 0


def _agreement(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from ..training.lm import load_language_model, subject_verb_agreement

    model, vocabulary = load_language_model(args.model, args.device)
    table = Table("attractors", "grammatical number", "sentences", "accuracy", "margin in nats")
    for row in subject_verb_agreement(model, vocabulary, args.number, args.seed):
        kind = "" if not row["attractors"] else "misleading" if row["misleading"] else "like the subject"
        figures = f"{row['accuracy']:.3f}", f"{row['margin']:.2f}"
        table.add_row(str(row["attractors"]), kind, str(row["sentences"]), *figures)
    Console().print(table)
    return 0


def _stacks(args: argparse.Namespace) -> int:
    from ..analysis.figures import import_matplotlib
    from ..analysis.text_stacks import measure_text_stacks, tag_sentences, text_stack_tables, write_text_stacks
    from ..text.trees import read_trees
    from ..training.lm import load_language_model

    import_matplotlib()  # before the measurement, so that a missing package is reported at once
    model, vocabulary = load_language_model(args.model, args.device)
    sentences = tag_sentences(read_trees(args.trees), vocabulary, args.number)
    stacks = measure_text_stacks(model, vocabulary, sentences)
    print("\n".join(map(text_stack_tables, stacks)))
    for written in write_text_stacks(stacks, args.out):
        print(f"written to {written}")
    return 0


def _sentence_rows(scores: list[list[float]]) -> Iterator[tuple]:
    yield "sentence", "tokens", "log_prob"
    for i, row in enumerate(scores, 1):
        yield i, len(row), f"{sum(row):.6f}"


def _token_rows(
    sentences: list[list[str]], numbers: list[list[int]], scores: list[list[float]], vocabulary: Vocabulary
) -> Iterator[tuple]:
    from ..text.vocabulary import EOS_TEXT

    yield "sentence", "position", "token", "type", "log_prob"
    for i, (sentence, types, row) in enumerate(zip(sentences, numbers, scores, strict=True), 1):
        names = [*(vocabulary.types[number] for number in types), EOS_TEXT]
        for position, (token, name, log_prob) in enumerate(zip([*sentence, EOS_TEXT], names, row, strict=True), 1):
            yield i, position, token, name, f"{log_prob:.6f}"
