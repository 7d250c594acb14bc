"""Help texts, in which every command, option and argument is described; errors and interrupts."""

import argparse
import os
import subprocess
import sys

import pytest
import torch

from stackattn import cli
from stackattn.cli import COMMANDS, main, make_parser
from stackattn.cli.errors import run_command
from stackattn.training import RunError


def parsers(parser):
    """Yield a parser and, recursively, the parsers of its actions."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from parsers(child)


PARSERS = list(parsers(make_parser()))
OPTIONS = [
    (parser, action)
    for parser in PARSERS
    for action in parser._actions
    if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction | argparse._VersionAction)
]


def name(option):
    parser, action = option
    return f"{parser.prog} {(action.option_strings or [action.dest])[0]}"


@pytest.mark.parametrize("option", OPTIONS, ids=map(name, OPTIONS))
def test_every_option_says_what_it_does_and_its_default(option):
    _, action = option
    assert action.help, "expected a help text, found none"
    assert action.help[0] != "("
    assert not action.help.startswith(("of ", "that ", "to ", "from ", "default"))
    takes_value = action.option_strings and action.nargs != 0 and not isinstance(action, argparse._AppendAction)
    if takes_value and not action.required and action.default != []:
        assert "(default: " in action.help


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.prog)
def test_every_command_is_described(parser, capsys):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            assert [choice.dest for choice in action._choices_actions if choice.help] == list(action.choices)
    assert parser.description is None or parser.description[0].isupper()
    with pytest.raises(SystemExit) as code:
        parser.parse_args(["--help"])
    assert code.value.code == 0
    assert parser.prog in capsys.readouterr().out


def test_every_command_is_listed_without_arguments(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in COMMANDS)


@pytest.mark.parametrize("error", [ValueError("bad"), OSError("bad"), RunError("bad"), ModuleNotFoundError("bad")])
@pytest.mark.parametrize("command", ["demo", "analyse x", "language list", "lm score x --model y"])
def test_input_errors_are_one_line(command, error, capsys, monkeypatch):
    arguments = command.split()
    _replace(monkeypatch, arguments[0], error)
    assert main(arguments) == 2
    action = f" {arguments[1]}" if arguments[0] in ("language", "lm") else ""
    assert capsys.readouterr().err == f"stackattn {arguments[0]}{action}: bad\n"


def test_bugs_keep_their_traceback(monkeypatch):
    _replace(monkeypatch, "params", KeyError("x"))
    with pytest.raises(KeyError):
        main(["params"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["language", "list"], "stopped\n"),
        (["analyse", "x"], "stopped\n"),
        (["demo"], "stopped; run the same command again to continue\n"),
        (["reproduce", "table-2"], "stopped; run the same command again to continue\n"),
        (["cfl", "sweep", "--out", "x"], "stopped; run the same command again to continue\n"),
        (["mt", "train", "--out", "x"], "stopped; pass --resume to continue from the last checkpoint\n"),
    ],
)
def test_interrupts(arguments, message, capsys, monkeypatch):
    _replace(monkeypatch, arguments[0], KeyboardInterrupt())
    assert main(arguments) == 130
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(("lines", "unbuffered"), [(1, ""), (100_000, ""), (1, "1")])
def test_a_closed_pipe_ends_a_command_silently(lines, unbuffered, monkeypatch):
    """As in `stackattn ... | head`, the reader closes the pipe, even before buffered output is written at the end."""
    program = f"""
import argparse, sys
from stackattn.cli.errors import run_command

sys.stdin.read()  # until the reader has closed the pipe
sys.exit(run_command(argparse.Namespace(command="config", execute=lambda args: print("line\\n" * {lines}))))
"""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], text=True, **pipes) as process:
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_other_broken_pipes_are_errors(capsys, monkeypatch):
    _replace(monkeypatch, "params", BrokenPipeError(32, "Broken pipe"))
    assert main(["params"]) == 2
    assert "Broken pipe" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
def test_a_command_without_standard_output():
    """`>&-` closes standard output before the program starts."""
    program = """
import argparse, sys
from stackattn.cli.errors import run_command

assert sys.stdout is None
sys.exit(run_command(argparse.Namespace(command="config", execute=lambda args: print("line"))))
"""
    command = ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, program]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_the_error_of_a_full_disk_names_standard_output():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "stackattn", "config", "list"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    expected = "stackattn config list: standard output: no space left on device\n"
    assert (result.returncode, result.stderr) == (2, expected)


def test_a_tensor_larger_than_memory(capsys):
    args = argparse.Namespace(command="cfl", action="train", execute=lambda args: torch.empty(10**15))
    assert run_command(args) == 2
    expected = "stackattn cfl train: not enough memory: PyTorch could not allocate 4000000000000000 bytes\n"
    assert capsys.readouterr().err == expected


def test_other_runtime_errors_keep_their_traceback():
    with pytest.raises(RuntimeError):
        run_command(argparse.Namespace(command="cfl", execute=lambda args: torch.ones(2) @ torch.ones(3)))


def _replace(monkeypatch, command, error):
    """Make the function of a command raise an error."""

    def run(args):
        raise error

    monkeypatch.setattr(getattr(cli, command), "run", run)


@pytest.mark.parametrize("option", [option for option in OPTIONS if option[1].dest == "out"], ids=name)
def test_an_empty_output_path_is_not_the_current_folder(option):
    _, action = option
    with pytest.raises(argparse.ArgumentTypeError, match="expected a path, got an empty string"):
        action.type("")
