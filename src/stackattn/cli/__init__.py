"""The `stackattn` command: one small module for each subcommand.

A command module has a docstring (its help text), `add_arguments(parser)` and `run(args)`. Whatever is slow to import
(torch above all) is imported inside `run`, so that `--help` answers at once.
"""

import argparse
import importlib
import sys

from .. import __version__

COMMANDS = {
    "demo": "the main job: see the stack at work",
    "analyse": "see what a trained model does with its stack; an HTML report",
    "cfl": "train and evaluate models on context-free languages",
    "lm": "language models: prepare data, train, evaluate, generate, score sentences",
    "mt": "translation: prepare text, train, translate, evaluate",
    "language": "formal languages: list, sample, score, show, write data sets",
    "params": "count the parameters of the paper's models beside the paper's tables",
    "reproduce": "the figures and tables of the paper",
}


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="stackattn", description="Stack attention for PyTorch.")
    parser.add_argument("--version", action="version", version=f"stackattn {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"{__name__}.{name}")
        command = subparsers.add_parser(name, help=summary, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(execute=module.run)
    if not argv:
        parser.print_help()
        return 0
    args = parser.parse_args(argv)
    return args.execute(args) or 0
