"""The documentation site: what its build (`make docs`) does not check."""

import json
import re
from pathlib import Path

import stackattn

ROOT = Path(__file__).parents[1]


def test_the_citation_has_the_version():
    assert f"\nversion: {stackattn.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_notebook_is_committed_without_outputs():
    """The build executes the notebook; committed outputs would go out of date."""
    cells = json.loads((ROOT / "docs/tutorial.ipynb").read_text())["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")


def test_every_page_is_listed_once():
    tables = re.findall(r"```{toctree}\n(.*?)```", (ROOT / "docs/index.md").read_text(), re.DOTALL)
    entries = [line for table in tables for line in table.splitlines() if line and not line.startswith(":")]
    listed = [re.sub(r".*<(.*)>", r"\1", entry) for entry in entries]
    pages = [
        path.stem for path in (ROOT / "docs").iterdir() if path.suffix in (".md", ".ipynb") and path.stem != "index"
    ]
    assert sorted(entry for entry in listed if "/" not in entry) == sorted(pages)
    assert len(set(listed)) == len(listed)


def test_the_requirements_are_pinned_and_do_not_include_torch():
    lines = [line for line in (ROOT / "docs/requirements.txt").read_text().splitlines() if line[:1].isalnum()]
    assert len(lines) > 20
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+( ; .*)?", line) for line in lines)
    assert not any(line.startswith("torch") for line in lines)
