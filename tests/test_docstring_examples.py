"""Every `>>>` example in the package's docstrings prints the output shown, and the main public names have examples."""

import doctest
import importlib
import pkgutil

import pytest

import stackattn

MODULES = [module.name for module in pkgutil.walk_packages(stackattn.__path__, "stackattn.")]
PUBLIC = ("superposition_weights", "nondeterministic_weights", "best_runs", "sample_runs", "backends", "AutomatonRun")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(name):
    """The docstrings in a module that contain examples; none if an optional dependency is not installed."""
    if name.endswith(("__main__", "._kernel")):
        return []
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").startswith("stackattn"):
            raise
        return []
    return [test for test in doctest.DocTestFinder().find(module, name) if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    for test in examples(name):
        output = []
        failed, _ = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=output.append)
        assert not failed, "".join(output)


@pytest.mark.parametrize("name", [*PUBLIC, "SuperpositionState", "NondeterministicState"])
def test_public_names_have_examples(name):
    assert ">>> " in getattr(stackattn, name).__doc__
