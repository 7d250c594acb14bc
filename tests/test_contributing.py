"""The source tree in CONTRIBUTING.md describes every module, and nothing that does not exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def tree_paths() -> set[str]:
    """Paths in the source tree, relative to the repository; folders end with a slash."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```text\n(src/stackattn/\n.*?)^```", text, re.DOTALL | re.MULTILINE)
    folders: list[str] = []
    found = set()
    for line in block.splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        folders = folders[:depth]
        found.add("".join([*folders, name]))
        if name.endswith("/"):
            folders.append(name)
        assert depth == 0 or len(line.split()) > 1, f"expected a description after the path, found none: {line}"
    return found


def test_every_module_is_in_the_tree():
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("*.py")}
    packages = {path for path in modules if path.endswith("/__init__.py")}
    expected = modules - packages | {path.removesuffix("__init__.py") for path in packages}
    assert expected <= tree_paths() | {"src/stackattn/"}


def test_the_tree_exists():
    for path in tree_paths():
        assert (ROOT / path).exists(), path
