"""Errors on the command line: a wrong input becomes one line on standard error, not a traceback."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from pathlib import Path

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
        print(f"{command}: {_message(error)}", file=sys.stderr)
        return FAILED


def _message(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}"
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str | os.PathLike):
        return _missing_file(Path(error.filename))
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"  # without the number of the error
    return str(error)


def _missing_file(path: Path) -> str:
    if not os.path.isdir(path.parent):
        return f"{path}: no such file; there is no folder {path.parent}"
    near = difflib.get_close_matches(path.name, os.listdir(path.parent), 1, 0.75)
    hint = f"did you mean {str(path.parent / near[0])!r}?" if near else f"the current folder is {Path.cwd()}"
    return f"{path}: no such file; {hint}"


def _is_input_error(error: Exception) -> bool:
    if isinstance(error, ValueError | OSError | ModuleNotFoundError | MemoryError):
        return True
    from ..training import RunError  # imports torch, which has been loaded if this is a RunError

    return isinstance(error, RunError)
