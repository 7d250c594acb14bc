"""The `stackattn` command: one module per subcommand.

A command module has a docstring (its description in `--help`), `add_arguments(parser)` and `run(args)`. Slow imports,
such as torch, are inside `run`, so that `--help` is fast.

Commands:

- `demo`, `analyse`, `cfl`, `lm` (with `lm_prepare`), `mt` (with `mt_prepare`), `language`, `params`, `config`,
  `reproduce`

Shared by the commands:

- `arguments`: arguments that several commands have
- `training`: the actions `train` and `sweep`
- `progress`: progress bars
- `errors`: error messages and Ctrl-C
"""

import argparse
import importlib
import sys

from .. import __version__
from .errors import run_command

COMMANDS = {
    "demo": "show how a stack works, and train small models with and without one",
    "analyse": "show what trained models do with their stacks, as figures and an HTML report",
    "cfl": "train and evaluate models on context-free languages",
    "lm": "prepare text, train and evaluate language models, generate and score sentences",
    "mt": "prepare bitext, train and evaluate translation models, translate text",
    "language": "list formal languages, sample and score strings, write data sets",
    "params": "compare the parameter counts of the paper's models with the paper's tables",
    "config": "list configuration keys and show the shipped configurations",
    "reproduce": "reproduce the figures and tables of the paper",
}


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments without the program name; those of the process by default.

    Returns:
        The exit code.

    Raises:
        SystemExit: for `--help`, `--version` and arguments that cannot be parsed.
    """
    parser = make_parser()
    argv = sys.argv[1:] if argv is None else argv
    if not argv:
        parser.print_help()
        return 0
    return run_command(parser.parse_args(argv))


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="stackattn", description="Stack attention for PyTorch.")
    parser.add_argument("--version", action="version", version=f"stackattn {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"{__name__}.{name}")
        command = subparsers.add_parser(name, help=summary, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(execute=module.run)
    return parser
