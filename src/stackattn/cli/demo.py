"""Show the operators at work: a stack that reads brackets, its speed beside the reference, and a picture of it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

TOKENS = list("([](()[()]))[[]()]")
OPENING = {")": "(", "]": "["}
SYMBOLS = ("⊥", "(", "[")  # of the stack; the bottom symbol comes first
LONGEST_WAIT = 20.0  # seconds: what would take longer is not timed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="out/demo", help="folder for what the demo writes (default: %(default)s)")
    parser.add_argument(
        "--steps",
        type=int,
        nargs="+",
        default=[40, 50, 60],
        metavar="T",
        help="sequence lengths to time, shortest first",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the noise (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    console = Console(highlight=False)
    weights, tops = read_brackets(console, args.seed)
    compare_speed(console, args.steps)
    draw(console, weights, tops, Path(args.out) / "attention-map.png")
    return 0


def read_brackets(console: Console, seed: int) -> tuple[Tensor, list[int]]:
    """Run a noisy stack on a string of brackets; its attention map (T, T + 1), and what a list has on top."""
    import torch
    from rich.table import Table

    from stackattn import nondeterministic_weights

    weights = nondeterministic_weights(*bracket_transitions(TOKENS, torch.Generator().manual_seed(seed)))
    weights = weights[0].sum((-2, -1))  # (T, T + 1): states and symbols do not matter here
    tops = list_stack(TOKENS)
    columns = ["⊥", *TOKENS]
    table = Table(title="1. Brackets, read by a nondeterministic stack with noisy transitions", title_justify="left")
    for name in ("step", "reads", "a list has on top", "the stack has on top", "weight"):
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
    return weights, tops


def bracket_transitions(tokens: list[str], generator, right: float = 5.0) -> tuple[Tensor, Tensor, Tensor]:
    """Log weights of one state and three symbols: an opening bracket is pushed, its closing bracket pops it.

    Every transition has a weight drawn from a normal distribution; the right ones have `right` added to it.
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
    """After each step, the top of a Python list: 0 for the bottom, i + 1 for what step i pushed."""
    stack, tops = [0], []
    for t, token in enumerate(tokens):
        if token in OPENING:
            stack.pop()
        else:
            stack.append(t + 1)
        tops.append(stack[-1])
    return tops


def _element(columns: list[str], index: int) -> str:
    return columns[index] if index == 0 else f"{columns[index]}  of step {index - 1}"


def compare_speed(console: Console, lengths: list[int]) -> None:
    import torch
    from rich.progress import Progress
    from rich.table import Table

    from stackattn import backends

    names = [name for name, status in backends().items() if status == "available"]
    times: dict[tuple[int, str], float] = {}
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("timing", total=sum(T**2 for T in lengths) * len(names))
        for before, T in zip([0, *lengths], lengths, strict=False):
            for name in names:
                progress.update(task, description=f"timing {name}, {T} steps")
                expected = times.get((before, name), 0.0) * (T / max(1, before)) ** 3
                if before == 0 or expected < LONGEST_WAIT:
                    times[T, name] = best_time(name, T, repeats=1 if name == "reference" else 5)
                progress.advance(task, T**2)
    table = Table(title="2. Forward and backward, 10 sequences, 3 states, 3 symbols", title_justify="left")
    table.add_column("steps", justify="right")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("reference / fastest", justify="right")
    for T in lengths:
        found = {name: times[T, name] for name in names if (T, name) in times}
        ratio = f"{found['reference'] / min(found.values()):,.0f}" if "reference" in found else "-"
        table.add_row(str(T), *(_milliseconds(found[name]) if name in found else "-" for name in names), ratio)
    console.print(table, markup=False)
    threads = torch.get_num_threads()
    console.print(f"Best of 5 (reference: one run), {threads} thread{'s' * (threads > 1)}, float32.")
    for name, status in backends().items():
        if status != "available":
            console.print(f"{name} is missing: {status}", markup=False)
    console.print()


def best_time(backend: str, T: int, repeats: int, B: int = 10, Q: int = 3, S: int = 3) -> float:
    """Seconds for a forward and backward pass."""
    import torch

    from stackattn import nondeterministic_weights

    generator = torch.Generator().manual_seed(0)
    shapes = ((B, T, Q, S, Q, S), (B, T, Q, S, Q, S), (B, T, Q, S, Q))
    inputs = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    grad = torch.randn((B, T, T + 1, Q, S), generator=generator)
    nondeterministic_weights(*(x[:1, :3] for x in inputs), backend=backend).sum().backward()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        torch.autograd.grad(nondeterministic_weights(*inputs, backend=backend), inputs, grad)
        best = min(best, time.perf_counter() - start)
    return best


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds >= 0.1 else f"{seconds * 1000:.1f} ms"


def draw(console: Console, weights: Tensor, tops: list[int], path: Path) -> None:
    from stackattn.analysis import attention_map

    console.print("3. The same stack as an attention map")
    try:
        attention_map(weights, TOKENS, path, truth=tops)
    except ModuleNotFoundError as error:
        console.print(f"No picture: {error}", markup=False)
        return
    console.print(f"Written to {path}", soft_wrap=True)
    console.print(
        "Row t is weights[t].sum((-2, -1)) of nondeterministic_weights(...): how likely each pushed bracket "
        "is to be on top after step t. A ring is what a Python list has on top.",
        markup=False,
    )
