"""The examples of docs/languages.md and of docstrings."""

import doctest
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from stackattn.cli import main
from stackattn.languages import grammar

PAGE = Path(__file__).parents[2] / "docs" / "languages.md"


def test_examples_of_the_page():
    blocks = re.findall(r"```pycon\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 6
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, PAGE.name, str(PAGE), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL)
    assert runner.run(test).failed == 0


def test_commands_of_the_page(tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for line in block.splitlines():
        words = shlex.split(line)
        assert words[0] == "stackattn"
        assert main(words[1:]) == 0, capsys.readouterr().err
    assert (tmp_path / "data" / "test.json").exists()


@pytest.mark.parametrize("module", [grammar])
def test_examples_of_docstrings(module):
    found = doctest.testmod(module, extraglobs={"np": np})
    assert found.attempted >= 3
    assert found.failed == 0
