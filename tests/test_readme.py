"""README.md, CONTRIBUTING.md, docs: Python blocks and `stackattn` and `python` commands run; relative links resolve."""

import itertools
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_RUN = ("make", "pip", "git")  # these would install packages, access the network or run the tests again


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python(page):
    """The blocks of a page form one program, which runs in a separate process."""
    if not (found := blocks(page, "python")):
        pytest.skip("no Python blocks")
    if any("transformers" in block or "huggingface" in block for block in found):
        pytest.importorskip("transformers")
    subprocess.run([sys.executable, "-W", "error", "-c", "\n".join(found)], check=True, timeout=120)


RUN_COMMANDS = """
import json, sys
from stackattn.cli import main

for command in json.loads(sys.argv[1]):
    print("$ stackattn", *command, flush=True)
    if code := main(command):
        sys.exit(f"exit code {code}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands(page, tmp_path):
    """Consecutive `stackattn` commands run in one process, because importing torch takes longer than most of them."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines]
    commands = [command for command in commands if command and command[0] not in NOT_RUN]
    if not commands:
        pytest.skip("no commands")
    for name, group in itertools.groupby(commands, key=lambda command: command[0]):
        arguments = [command[1:] for command in group]
        if name == "stackattn":
            arguments = [["-c", RUN_COMMANDS, json.dumps(arguments)]]
        else:
            assert name == "python", f"expected stackattn, python or one of {NOT_RUN}, found {name!r}"
        for argument in arguments:
            subprocess.run([sys.executable, *argument], check=True, cwd=tmp_path, timeout=600)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "src/stackattn/ops/NOTATION.md"], ids=lambda page: page.name)
def test_links(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = page if not path else (page.parent / path).resolve()
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


def anchors(page: Path) -> set[str]:
    """Anchors of a page, in the form that GitHub uses."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}
