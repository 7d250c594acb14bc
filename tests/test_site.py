"""The documentation site: what its build (`make docs`) does not check."""

import json
import re
from pathlib import Path

import stackattn

ROOT = Path(__file__).parents[1]


def test_the_citation_has_the_version():
    assert f"\nversion: {stackattn.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_notebook_is_committed_without_outputs():
    """The build executes it; committed outputs would go out of date."""
    cells = json.loads((ROOT / "docs/tutorial.ipynb").read_text())["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")


def test_the_requirements_are_pinned_and_have_no_torch():
    lines = [line for line in (ROOT / "docs/requirements.txt").read_text().splitlines() if line[:1].isalnum()]
    assert len(lines) > 20
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+( ; .*)?", line) for line in lines)
    assert not any(line.startswith("torch") for line in lines)
