"""How CPU time is spent: `python -m benchmarks.profile step ptb`, or `python -m benchmarks.profile epoch cfl CONFIG`.

The CPU time of the process is measured, with one thread. Unlike wall time, it hardly depends on other work on the
machine.
"""

import argparse
import gc
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor, nn

from stackattn.models import TransformerLM, build_model
from stackattn.nn import SelfAttention
from stackattn.nn.layers import FeedForward, Sublayer
from stackattn.ops.cross_entropy import cross_entropy
from stackattn.paper.configurations import load_configuration
from stackattn.paper.models import paper_config
from stackattn.training import cfl, lm, loop, mt
from stackattn.training.environment import keep_freed_memory
from stackattn.training.experiment import run_experiment

from .plan import LENGTHS, SENTENCE, kind
from .steps import training_step

MODELS = ("Tf", "Tf+Sup", "Tf+Nd")
Parts = dict[str, float]  # CPU seconds of each part


def step_parts(task: str, architecture: str, repeats: int) -> Parts:
    """Parts of a training step, each repeated alone with the inputs that it has in the step; `whole` is the step."""
    config = paper_config(task, architecture, published=True)
    model = build_model(config).train()
    assert isinstance(model, TransformerLM)
    B, T = (10, LENGTHS[len(LENGTHS) // 2]) if kind(task) == "cfl" else (320 // SENTENCE, SENTENCE)
    text = torch.randint(config.output_size, (B, T + 1))

    def loss(logits: Tensor) -> Tensor:
        return cross_entropy(logits, text).sum() / B

    calls: list[tuple[str, nn.Module, tuple]] = []
    hooks = [
        module.register_forward_pre_hook(lambda module, args, label=label: calls.append((label, module, args)))
        for label, module in _modules(model)
    ]
    model(text)
    for hook in hooks:
        hook.remove()

    found: Parts = defaultdict(float)
    for label, module, args in calls:
        found[label] += best(_alone(module, tuple(map(_leaf, args))), repeats)
    x = torch.randn(B, T + 1, model.config.d_model, requires_grad=True)

    def output() -> None:
        model.zero_grad()
        loss(model._logits(x)).backward()

    found["output layer and loss"] = best(output, repeats)
    step = training_step(model, lambda: loss(model(text)))
    found["whole"] = best(lambda: step.backward(step.forward()), repeats)  # pyright: ignore[reportOptionalCall]
    constant = torch.zeros((), requires_grad=True)  # does not change the gradients of the model
    found["clipping and Adam"] = best(lambda: step.backward([constant]), repeats)  # pyright: ignore[reportOptionalCall]
    return dict(found)


def _modules(model: TransformerLM) -> Iterator[tuple[str, nn.Module]]:
    yield "embedding", model.embedding
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            yield "layer norm", module
        if isinstance(module, Sublayer):
            softmax = isinstance(module.function, SelfAttention)
            feed_forward = isinstance(module.function, FeedForward)
            yield "feed-forward" if feed_forward else "attention" if softmax else "stack attention", module.function
            yield "residual and dropout", module.dropout


def _alone(module: nn.Module, args: tuple) -> Callable[[], None]:
    grad = torch.randn_like(module(*args))

    def call() -> None:
        module.zero_grad()
        module(*args).backward(grad)

    return call


def _leaf(x: object) -> object:
    floating = isinstance(x, Tensor) and x.is_floating_point()
    return x.detach().requires_grad_() if floating else x  # pyright: ignore[reportAttributeAccessIssue]


def best(function: Callable[[], object], repeats: int) -> float:
    """Smallest CPU time of a call, in seconds."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        function()
        times.append(time.process_time() - started)
    return min(times)


def epoch_parts(command: str, name: str, overrides: list[str]) -> Parts:
    """Parts of a training run, from the first batch to the last checkpoint."""
    config = load_configuration(command, name, overrides)
    tasks = (cfl.CFLTask, lm.LMTask, mt.MTTask)
    owners = {
        "preparing batches": [*((task, "epoch") for task in tasks), (lm, "pad"), (mt, "pad")],
        "evaluation": [(task, "evaluate") for task in tasks],
        "checkpoints and best model": [(loop, "save_checkpoint"), *((task, "save") for task in tasks)],
    }
    found: Parts = dict.fromkeys([*owners, "garbage collection"], 0.0)
    active: list[str] = []
    started: list[float] = []

    def timed(label: str, function: Callable) -> Callable:
        def call(*args, **options):
            now = time.process_time()
            started.append(now)
            active.append(label)
            try:
                return function(*args, **options)
            finally:
                active.pop()
                if not active:  # a part within another one counts towards the outer one
                    found[label] += time.process_time() - now

        return call

    def collected(phase: str, info: dict) -> None:
        found["garbage collection"] += time.process_time() * (1 if phase == "stop" else -1) if started else 0.0

    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        for label, places in owners.items():
            for owner, attribute in places:
                stack.enter_context(patch.object(owner, attribute, timed(label, getattr(owner, attribute))))
        gc.callbacks.append(collected)
        stack.callback(gc.callbacks.remove, collected)
        run_experiment(config, Path(folder) / "run")
        found["whole"] = time.process_time() - started[0]
    return found


def table(columns: dict[str, Parts]) -> str:
    """Shares of the whole in percent; the last row is the whole in milliseconds."""
    labels = list(dict.fromkeys(label for parts in columns.values() for label in parts if label != "whole"))
    rows = [["part, %", *columns], ["---", *["---:"] * len(columns)]]
    rows += [[label, *(f"{100 * x.get(label, 0) / x['whole']:.1f}" for x in columns.values())] for label in labels]
    rest = [x["whole"] - sum(x.get(label, 0) for label in labels) for x in columns.values()]
    rows.append(["rest", *(f"{100 * r / x['whole']:.1f}" for r, x in zip(rest, columns.values(), strict=True))])
    rows.append(["whole, ms", *(f"{1000 * x['whole']:,.1f}" for x in columns.values())])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.profile", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    step = commands.add_parser("step", help="a training step of the paper's transformers for a task")
    step.add_argument("task", help="ptb or a context-free language")
    step.add_argument("--repeats", type=int, default=10, help="repetitions; the best counts (default: %(default)s)")
    epoch = commands.add_parser("epoch", help="a training run, by default with all its epochs")
    epoch.add_argument("command", choices=("cfl", "lm", "mt"), help="command that trains the configurations")
    epoch.add_argument("configs", nargs="+", help="names of shipped configurations, or YAML files")
    epoch.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes to the configurations")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    keep_freed_memory()  # as in every training run
    if args.what == "step":
        print(table({model: step_parts(args.task, model, args.repeats) for model in MODELS}))
    else:
        print(table({name: epoch_parts(args.command, name, args.set) for name in args.configs}))


if __name__ == "__main__":
    main()
