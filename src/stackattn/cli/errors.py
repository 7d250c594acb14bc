"""Errors on the command line: a wrong input becomes one line on standard error, not a traceback."""

from __future__ import annotations

import argparse
import sys

FAILED = 2
"""Exit code after an error that the user can correct."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as in a shell."""


def run_command(args: argparse.Namespace) -> int:
    """Run the chosen command and return its exit code.

    Errors in the input (`ValueError`, `OSError`, `RunError`, missing optional packages) and a lack of memory are
    printed as `stackattn COMMAND ACTION: message`; other exceptions are bugs and keep their traceback.

    Args:
        args: parsed arguments. `execute` is the command's function; `to_continue`, if present, says how to continue
            after Ctrl-C.
    """
    try:
        return args.execute(args) or 0
    except KeyboardInterrupt:
        hint = getattr(args, "to_continue", "")
        print(f"stopped; {hint}" if hint else "stopped", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if not _is_input_error(error):
            raise
        action = getattr(args, "action", None)
        command = f"stackattn {args.command} {action}" if action else f"stackattn {args.command}"
        message = f"not enough memory: {error}" if isinstance(error, MemoryError) else error
        print(f"{command}: {message}", file=sys.stderr)
        return FAILED


def _is_input_error(error: Exception) -> bool:
    if isinstance(error, ValueError | OSError | ModuleNotFoundError | MemoryError):
        return True
    from ..training import RunError  # imports torch, which has been loaded if this is a RunError

    return isinstance(error, RunError)
