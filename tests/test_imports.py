"""Packages import only what precedes them in the source tree; languages and `--help` do not import PyTorch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src/stackattn"
BASE = {"files", "lines", "config", "config_keys", "compatibility", "extras"}
ALLOWED = {  # package or top-level module: what it may import from stackattn, at module or function level
    "files": set(),
    "extras": set(),
    "lines": {"files"},
    "bounded_yaml": {"files", "lines"},
    "config_keys": set(),
    "config": {"files", "lines", "bounded_yaml", "config_keys"},
    "compatibility": {"files", "lines", "config"},
    "ops": BASE,
    "nn": BASE | {"ops"},
    "models": BASE | {"ops", "nn"},
    "languages": {"files", "lines", "config"},
    "text": {"files", "lines", "config", "extras"},
    "training": BASE | {"ops", "nn", "models", "languages", "text"},
    "analysis": BASE | {"ops", "nn", "models", "languages", "text", "training"},
    "paper": BASE | {"ops", "nn", "models", "languages", "text", "training", "analysis"},
    "cli": BASE | {"ops", "nn", "models", "languages", "text", "training", "analysis", "paper"},
}
ROOT_NAMES = {"__version__"}  # every package may use the version
EXCEPTIONS: set[tuple[str, str]] = set()  # (module, package), each with a reason


def imported(path: Path) -> set[str]:
    """Packages and top-level modules of stackattn that a file imports, including imports only for type checking."""
    package = ["stackattn", *path.relative_to(SOURCE).parent.parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            names = [".".join([*module, alias.name]) for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("stackattn.")}
        if "stackattn" in names:
            found.add("stackattn")
    return found


FILES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.stem in ALLOWED)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_imports_go_one_way(path):
    module = path.relative_to(SOURCE).with_suffix("").as_posix()
    package = module.split("/")[0]
    extra = imported(path) - ALLOWED[package] - {package} - ROOT_NAMES
    extra -= {name for where, name in EXCEPTIONS if where == module}
    assert not extra, f"{module} must not import {', '.join(sorted(extra))}"


def test_all_packages_have_a_rule():
    packages = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert packages - {"__init__", "__main__"} <= ALLOWED.keys()


def test_exceptions_are_still_needed():
    for module, name in EXCEPTIONS:
        assert name in imported(SOURCE / f"{module}.py"), f"{module} does not import {name}: remove the exception"


def test_forbidden_imports_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    path = tmp_path / "ops/pytorch/chart.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import stackattn.nn\nfrom ... import training\nfrom ..checks import check\n"
        "def late():\n    from stackattn.models import load\n    from ...cli.demo import run\n"
    )
    assert imported(path) == {"nn", "training", "ops", "models", "cli"}


@pytest.mark.parametrize(
    "statement", ["import stackattn.languages", "from stackattn.cli import main; main(['--help'])"]
)
def test_torch_is_not_imported(statement):
    """Formal languages and `--help` do not need PyTorch, which takes seconds to import."""
    program = f"""
import sys
try:
    {statement}
except SystemExit:
    pass
assert "torch" not in sys.modules, "torch was imported"
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)
