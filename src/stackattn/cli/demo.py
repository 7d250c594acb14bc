"""Show how a stack works, then train three small models, two of them with a stack, and compare them.

First, a nondeterministic stack with noisy transitions reads a string of brackets. Then a transformer, a transformer
with stack attention and a single layer of stack attention learn well-nested brackets from short strings, and predict
closing brackets in longer ones. The results are a table, a figure and an HTML report.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..paper.configurations import CONFIGS, load_configuration
from ..paper.names import LABELS, STACKS_ALONE
from .arguments import TO_CONTINUE, add_number, add_output_folder, add_seed, check_output_folder

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from ..training.cfl import CFLConfig

TOKENS = list("([](()[()]))[[]()]")
OPENING = {")": "(", "]": "["}
SYMBOLS = ("⊥", "(", "[")  # stack symbols; the bottom symbol comes first
DEMO_CONFIGS = CONFIGS / "demo"
MODELS = {slug: (LABELS | STACKS_ALONE)[slug] for slug in ("tf", "tf-nd", "nd")}
SHOWN = "[ ( ) ( [ ] ( ) ) ] ( [ ( ) ] )"  # string of the attention map
LENGTHS = (16, 28, 40, 60, 80, 100)  # lengths at which the models are measured; training strings have 10 to 20 symbols
TABLE_LENGTHS = (16, 40, 100)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(to_continue=TO_CONTINUE)
    add_output_folder(parser, "folder for runs, figure and report", "out/demo")
    add_number(parser, "--epochs", "number of epochs", "12, from the configurations", least=1)
    add_seed(parser, "the noise, the data and the training")
    parser.add_argument(
        "--configs",
        default=DEMO_CONFIGS,
        metavar="FOLDER",
        help="folder with tf.yaml, tf-nd.yaml and nd.yaml (default: the shipped ones)",
    )


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    check_output_folder(args.out)
    console = Console(highlight=False)
    jobs = {name: configure(Path(args.configs) / f"{name}.yaml", args.seed, args.epochs) for name in MODELS}
    read_brackets(console, args.seed)
    return compare(console, args.out, jobs, args.seed)


def read_brackets(console: Console, seed: int) -> None:
    """Compare a noisy stack with a Python list on a string of brackets."""
    import torch
    from rich.table import Table

    from ..ops import nondeterministic_weights

    weights = nondeterministic_weights(*bracket_transitions(TOKENS, torch.Generator().manual_seed(seed)))
    weights = weights[0].sum((-2, -1))  # (T, T + 1), summed over states and symbols
    tops = list_stack(TOKENS)
    columns = ["⊥", *TOKENS]
    table = Table(title="1. A nondeterministic stack with noisy transitions reads brackets", title_justify="left")
    for name in ("step", "reads", "top of the list", "top of the stack", "weight"):
        table.add_column(name, justify="right" if name in ("step", "weight") else "left")
    agree = 0
    for t, top in enumerate(tops):
        found = int(weights[t].argmax())
        agree += found == top
        table.add_row(
            str(t), TOKENS[t], _element(columns, top), _element(columns, found), f"{float(weights[t, found]):.2f}"
        )
    console.print(table, markup=False)
    console.print(f"The stack agrees with a Python list at {agree} of {len(tops)} steps.\n")


def bracket_transitions(tokens: list[str], generator, right: float = 5.0) -> tuple[Tensor, Tensor, Tensor]:
    """Normally distributed log weights of an automaton that usually pushes opening brackets and pops at closing ones.

    Args:
        tokens: the T brackets.
        generator: source of the noise.
        right: number added to the log weights of the correct transitions.

    Returns:
        Log weights of push (1, T, 1, 3, 1, 3), replace (1, T, 1, 3, 1, 3) and pop (1, T, 1, 3, 1): one state, three
        stack symbols.
    """
    import torch

    T, S = len(tokens), len(SYMBOLS)
    push, replace, pop = (
        torch.randn(shape, generator=generator) for shape in ((1, T, 1, S, 1, S), (1, T, 1, S, 1, S), (1, T, 1, S, 1))
    )
    for t, token in enumerate(tokens):
        if token in OPENING:
            pop[0, t, 0, SYMBOLS.index(OPENING[token]), 0] += right
        else:
            push[0, t, 0, :, 0, SYMBOLS.index(token)] += right
    return push, replace, pop


def list_stack(tokens: list[str]) -> list[int]:
    """Top of a Python list after each step: 0 for the bottom, i + 1 for the element pushed at step i."""
    stack, tops = [0], []
    for t, token in enumerate(tokens):
        if token in OPENING:
            stack.pop()
        else:
            stack.append(t + 1)
        tops.append(stack[-1])
    return tops


def _element(columns: list[str], index: int) -> str:
    return columns[index] if index == 0 else f"{columns[index]}  from step {index - 1}"


def compare(console: Console, out: Path, jobs: dict[str, CFLConfig], seed: int) -> int:
    """Train the models, each in its own process, and show the results."""
    from ..training import TrainingRun
    from ..training.sweep import run_all
    from .progress import ProgressDisplay, outcome, status

    options = jobs["tf"].language
    console.print(
        "2. A transformer (Tf), one with a stack in its middle layer (Tf+Nd) and one stack layer alone (Nd alone) "
        f"learn well-nested brackets from strings of {options.lengths[0]} to {options.lengths[1]} symbols, for "
        f"{jobs['tf'].training.max_epochs} epochs.\n"
        "   After each epoch: the difference between the model's cross-entropy and the entropy of the language, in "
        "nats per symbol. 0 is perfect.\n"
        "   Then each model predicts the types of closing brackets, which depend on the open ones, in longer strings.",
        markup=False,
        soft_wrap=True,
    )
    if all(TrainingRun(out / name).finished for name in MODELS):
        console.print(f"   All runs in {out} are finished; remove the folder to train again.", soft_wrap=True)
    with ProgressDisplay() as display:
        failed = run_all(
            [(out / name, job) for name, job in jobs.items()],
            report=lambda folder, result: display.done(MODELS[folder.name], outcome(MODELS[folder.name], result)),
            callback_for=lambda folder: display(MODELS[folder.name], jobs[folder.name].training.max_epochs),
        )
    if failed:
        return 2
    console.print()
    with status("measuring the models on longer strings"):
        shares = measure_shares(out, jobs["tf"])
    guess = 2 / len(jobs["tf"].language.make().symbols)  # half of the symbols are closing brackets
    show_table(console, out, shares, guess)
    draw(console, out, jobs["nd"], shares, guess)
    write_report(console, out, seed)
    return 0


def configure(path: Path, seed: int, epochs: int | None) -> CFLConfig:
    """Load a configuration; replace its seeds and, unless `epochs` is None, its number of epochs."""
    if not path.exists():
        raise FileNotFoundError(f"--configs: expected a folder with tf.yaml, tf-nd.yaml and nd.yaml, found no {path}")
    seeds = ("language.seed", "training.init_seed", "training.shuffle_seed")
    overrides = [f"{key}={seed}" for key in seeds]
    config = load_configuration("cfl", path, overrides + ([] if epochs is None else [f"training.max_epochs={epochs}"]))
    if config.language.name != "dyck":
        raise ValueError(
            f"{path}: language.name: expected dyck, whose brackets the demo shows, got {config.language.name}"
        )
    return config


def measure_shares(out: Path, config: CFLConfig) -> dict[str, list[tuple[int, float]]]:
    """The share of closing brackets whose type each model predicts correctly, by length."""
    from ..analysis.demo import closing_bracket_share
    from ..models.saving import load

    language = config.language.make()
    models = {label: load(out / name / "best") for name, label in MODELS.items()}
    return {
        label: [(length, closing_bracket_share(model, language, length)) for length in LENGTHS]
        for label, model in models.items()
    }


def show_table(console: Console, out: Path, shares: dict[str, list[tuple[int, float]]], guess: float) -> None:
    """Print the parameters, training time, validation difference and shares of each model."""
    from rich.table import Table

    from ..models.saving import load
    from ..training import TrainingRun

    table = Table(title="Closing brackets whose type is predicted correctly, by length", title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("parameters", "seconds", "difference", *map(str, TABLE_LENGTHS)):
        table.add_column(column, justify="right")
    for name, label in MODELS.items():
        result = TrainingRun(out / name).result()
        parameters = sum(x.numel() for x in load(out / name / "best").parameters())
        found = [f"{share:.3f}" for length, share in shares[label] if length in TABLE_LENGTHS]
        difference = f"{result['best']['cross_entropy_difference']:.4f}"
        table.add_row(label, f"{parameters:,}", f"{result['seconds']:.0f}", difference, *found)
    console.print(table, markup=False)
    notes = f"difference: on validation strings, in nats per symbol. Guessing the type gives {guess:.2g}.\n"
    console.print(notes, markup=False)


def draw(
    console: Console, out: Path, config: CFLConfig, shares: dict[str, list[tuple[int, float]]], guess: float
) -> None:
    """Draw the shares by length and the attention map of the stack of Nd alone on one string."""
    import torch

    from ..analysis import trace_stacks
    from ..analysis.demo import demo_figure
    from ..models.saving import load
    from ..training.cfl import with_bos

    language = config.language.make()
    string = language.encode(SHOWN)
    (trace,) = trace_stacks(load(out / "nd/best"), with_bos(language, torch.as_tensor(string)[None]))
    tokens = ["BOS", *(language.symbols[i] for i in string)]
    try:
        path = demo_figure(shares, config.language.lengths, trace.tops()[0], tokens, out / "demo.png", guess)
    except ModuleNotFoundError as error:
        console.print(f"No figure: {error}", markup=False)
        return
    console.print(f"Figure with these shares and an attention map of the trained stack: {path}", soft_wrap=True)


def write_report(console: Console, out: Path, seed: int) -> None:
    """Write the HTML report of all runs."""
    from ..analysis.report import write_report
    from ..analysis.study import study
    from .progress import status

    with status("writing the report"):
        path = write_report(study(out, seed=seed), out / "report.html")
    console.print(f"Report with strings to step through, for a browser: {path}", soft_wrap=True)
