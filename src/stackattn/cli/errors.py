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
OUTPUT_CLOSED = 1
"""Exit code if the reader of standard output ended first, such as `head`."""


def run_command(args: argparse.Namespace) -> int:
    """Run the chosen command and return its exit code.

    Errors in the input (`ValueError`, `OSError`, `RunError`, missing optional packages) and a lack of memory are
    printed as `stackattn COMMAND ACTION: message`; other exceptions are bugs and keep their traceback. If the reader of
    standard output has ended, such as `head`, the command ends without a message.

    Args:
        args: parsed arguments. `execute` is the command's function; `to_continue`, if present, says how to continue
            after Ctrl-C.
    """
    try:
        code = args.execute(args) or 0
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        hint = getattr(args, "to_continue", "")
        print(f"stopped; {hint}" if hint else "stopped", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _output_is_closed():
            return OUTPUT_CLOSED
        if not _is_input_error(error):
            raise
        action = getattr(args, "action", None)
        command = f"stackattn {args.command} {action}" if action else f"stackattn {args.command}"
        print(f"{command}: {_message(error)}", file=sys.stderr)
        return FAILED


def _output_is_closed() -> bool:
    """Whether nothing reads standard output any more, as opposed to a pipe to another process."""
    try:
        print(flush=True)  # fails even if nothing is buffered
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # otherwise the interpreter fails when it flushes the output at its end
        os.close(null)
        return True
    return False


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
