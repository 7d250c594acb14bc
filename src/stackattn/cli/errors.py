"""Errors on the command line: an invalid input becomes one line on standard error, not a traceback."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import sys
from pathlib import Path

FAILED = 2
"""Exit code after an error that the user can correct."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as in a shell."""
OUTPUT_CLOSED = 1
"""Exit code if the program that reads standard output, such as `head`, ended first."""


def run_command(args: argparse.Namespace) -> int:
    """Run the chosen command and return its exit code.

    Errors in the input (`ValueError`, `OSError`, `RunError`, missing optional packages) and a lack of memory are
    printed as `stackattn COMMAND ACTION: message`; other exceptions are bugs and keep their traceback. If the
    program that reads standard output, such as `head`, has ended, the command ends without a message.

    Args:
        args: parsed arguments. `execute` is the command's function; `to_continue`, if present, says how to continue
            after Ctrl-C.
    """
    _replace_closed_streams()
    try:
        code = args.execute(args) or 0
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        hint = getattr(args, "to_continue", "")
        print(f"stopped; {hint}" if hint else "stopped", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.ENOSPC) and error.filename is None:
            failure = _output_error()
            if isinstance(failure, BrokenPipeError):
                return OUTPUT_CLOSED
            if failure is not None:
                error = OSError(failure.errno, failure.strerror, "standard output")
        if not _is_input_error(error):
            raise
        action = getattr(args, "action", None)
        command = f"stackattn {args.command} {action}" if action else f"stackattn {args.command}"
        print(f"{command}: {_message(error)}", file=sys.stderr)
        return FAILED


def _replace_closed_streams() -> None:
    """Discard output to a stream that was closed before the start (`>&-`): Python sets it to None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _output_error() -> OSError | None:
    """Why standard output cannot be written to; None if it can, that is, if the error is about another pipe or file."""
    try:
        print(flush=True)  # fails even if nothing is buffered
    except OSError as error:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # otherwise the interpreter fails when it flushes the output at exit
        os.close(null)
        return error
    return None


def _message(error: Exception) -> str:
    if (request := _memory_request(error)) is not None:
        return f"not enough memory: {request}"
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str | os.PathLike):
        return _missing_file(Path(error.filename))
    if isinstance(error, FileExistsError) and error.filename is not None and os.path.isfile(error.filename):
        return f"{error.filename}: expected a folder, found a file; choose another folder"  # from mkdir
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"  # without the error number
    return str(error)


def _memory_request(error: Exception) -> str | None:
    """What could not be allocated; None for any other error. On the CPU, PyTorch raises a RuntimeError."""
    if isinstance(error, MemoryError):
        return str(error)
    if not isinstance(error, RuntimeError):
        return None
    from ..ops.memory import memory_request  # imports torch, which is already loaded if it raised this error

    request = memory_request(error)
    return f"PyTorch could not allocate {request}" if request else None


def _missing_file(path: Path) -> str:
    if not os.path.isdir(path.parent):
        return f"{path}: no such file; there is no folder {path.parent}"
    near = difflib.get_close_matches(path.name, os.listdir(path.parent), 1, 0.75)
    hint = f"did you mean {str(path.parent / near[0])!r}?" if near else f"the current folder is {Path.cwd()}"
    return f"{path}: no such file; {hint}"


def _is_input_error(error: Exception) -> bool:
    if isinstance(error, ValueError | OSError | ModuleNotFoundError) or _memory_request(error) is not None:
        return True
    from ..training import RunError  # imports torch, which is already loaded if this is a RunError

    return isinstance(error, RunError)
