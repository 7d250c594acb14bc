"""Show how a stack works, then train two small models, one of them with a stack, and compare them.

First a nondeterministic stack with noisy transitions reads a string of brackets. Then a transformer and a transformer
with stack attention learn the same context-free language. The results are a table, a figure and an HTML report.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..paper.configurations import CONFIGS, load_configuration
from ..paper.names import LABELS
from .arguments import TO_CONTINUE, add_number, add_seed

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from ..training.cfl import CFLConfig

TOKENS = list("([](()[()]))[[]()]")
OPENING = {")": "(", "]": "["}
SYMBOLS = ("⊥", "(", "[")  # stack symbols; the bottom symbol comes first
DEMO_CONFIGS = CONFIGS / "demo"
MODELS = {slug: LABELS[slug] for slug in ("tf", "tf-nd")}
SHOWN_LENGTH = 16  # symbols in the string of the attention map


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(to_continue=TO_CONTINUE)
    parser.add_argument(
        "--out", default="out/demo", metavar="FOLDER", help="folder for runs, figure and report (default: %(default)s)"
    )
    add_number(parser, "--epochs", "number of epochs", "from the configurations, 20", least=1)
    add_seed(parser, "the noise, the data and the training")
    parser.add_argument(
        "--configs",
        default=DEMO_CONFIGS,
        metavar="FOLDER",
        help="folder with tf.yaml and tf-nd.yaml (default: the shipped ones)",
    )


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    console = Console(highlight=False)
    read_brackets(console, args.seed)
    return compare(console, Path(args.out), Path(args.configs), args.seed, args.epochs)


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
    """Log weights of an automaton that pushes opening brackets and pops them at closing brackets.

    All log weights are normally distributed noise; `right` is added to those of the right transitions.

    Returns:
        Log weights (1, T, 1, 3, 1, 3), (1, T, 1, 3, 1, 3) and (1, T, 1, 3, 1): one state, three stack symbols.
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


def compare(console: Console, out: Path, configs: Path, seed: int, epochs: int | None) -> int:
    """Train both models, each in its own process, and show the results."""
    from ..training import TrainingRun
    from ..training.sweep import run_all
    from .progress import ProgressDisplay, outcome

    jobs = {name: configure(configs / f"{name}.yaml", seed, epochs) for name in MODELS}
    options = jobs["tf"].language
    console.print(
        f"2. A transformer (Tf) and one with a stack in its middle layer (Tf+Nd) learn {options.name} with strings of "
        f"{options.lengths[0]} to {options.lengths[1]} symbols, in two processes, for "
        f"{jobs['tf'].training.max_epochs} epochs.\n"
        "   After each epoch: the difference between the model's cross-entropy and the entropy of the language, in "
        "nats per symbol. 0 is perfect.",
        markup=False,
        soft_wrap=True,
    )
    if all(TrainingRun(out / name).finished for name in MODELS):
        console.print(f"   Both runs in {out} are finished; remove the folder to train again.", soft_wrap=True)
    with ProgressDisplay() as display:
        failed = run_all(
            [(out / name, job) for name, job in jobs.items()],
            processes=len(MODELS),
            report=lambda folder, result: display.done(MODELS[folder.name], outcome(MODELS[folder.name], result)),
            callback_for=lambda folder: display(MODELS[folder.name], jobs[folder.name].training.max_epochs),
        )
    if failed:
        return 2
    console.print()
    show_table(console, out)
    draw(console, out, jobs["tf-nd"])
    write_report(console, out, seed)
    return 0


def configure(path: Path, seed: int, epochs: int | None) -> CFLConfig:
    if not path.exists():
        raise FileNotFoundError(f"--configs: expected a folder with tf.yaml and tf-nd.yaml, but there is no {path}")
    seeds = ("language.seed", "training.init_seed", "training.shuffle_seed")
    overrides = [f"{key}={seed}" for key in seeds]
    return load_configuration("cfl", path, overrides + ([] if epochs is None else [f"training.max_epochs={epochs}"]))


def show_table(console: Console, out: Path) -> None:
    from rich.table import Table

    from ..models.saving import load
    from ..training import TrainingRun

    table = Table(
        title="Validation, in nats per symbol (counting the end of a string as a symbol)", title_justify="left"
    )
    table.add_column("", no_wrap=True)
    for column in ("parameters", "cross-entropy", "difference", "epoch", "seconds"):
        table.add_column(column, justify="right")
    bound = 0.0
    for name, label in MODELS.items():
        result = TrainingRun(out / name).result()
        best = result["best"]
        bound = best["cross_entropy"] - best["cross_entropy_difference"]
        parameters = sum(x.numel() for x in load(out / name / "best").parameters())
        numbers = f"{best['cross_entropy']:.4f}", f"{best['cross_entropy_difference']:.4f}", str(best["epoch"])
        table.add_row(label, f"{parameters:,}", *numbers, f"{result['seconds']:.0f}")
    table.add_section()
    table.add_row("the language", "", f"{bound:.4f}", "0.0000", "", "")
    console.print(table, markup=False)


def draw(console: Console, out: Path, config: CFLConfig) -> None:
    """Draw both learning curves and the attention map of the trained stack on one string."""
    import torch

    from ..analysis import trace_stacks
    from ..analysis.demo import demo_figure
    from ..languages import evaluation_set
    from ..models.saving import load
    from ..training import TrainingRun
    from ..training.cfl import with_bos

    language = config.language.make()
    length = min(SHOWN_LENGTH, config.language.lengths[1])
    # the string in which the symbol changes most often is the easiest to follow
    strings = evaluation_set(language, 0, (length, length), 10).strings
    string = max(strings, key=lambda string: int((string[1:] != string[:-1]).sum()))
    (trace,) = trace_stacks(load(out / "tf-nd/best"), with_bos(language, torch.from_numpy(string)[None]))
    tokens = ["BOS", *(language.symbols[i] for i in string)]
    curves = {
        label: [(values["epoch"], values["cross_entropy_difference"]) for values in TrainingRun(out / name).metrics()]
        for name, label in MODELS.items()
    }
    try:
        path = demo_figure(curves, trace.tops()[0], tokens, out / "demo.png", language=config.language.name)
    except ModuleNotFoundError as error:
        console.print(f"No figure: {error}", markup=False)
        return
    console.print(f"Figure with both learning curves and an attention map of the trained stack: {path}", soft_wrap=True)


def write_report(console: Console, out: Path, seed: int) -> None:
    """Write the HTML report of both runs."""
    from ..analysis.report import write_report
    from ..analysis.study import study

    with console.status("writing the report"):
        path = write_report(study(out, seed=seed), out / "report.html")
    console.print(f"Report with strings to step through, for a browser: {path}", soft_wrap=True)
