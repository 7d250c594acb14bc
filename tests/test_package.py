"""The package: public names, side effects of the import, backends, and installation without a compiler."""

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import stackattn
from stackattn.ops import dispatch

ROOT = Path(__file__).parent.parent


def run_python(program, executable=sys.executable, **environment):
    environment = {**os.environ, **environment}
    run = subprocess.run([executable, "-c", program], env=environment, capture_output=True, text=True, cwd="/")
    assert run.returncode == 0, run.stderr
    return run


def test_public_names():
    assert sorted(stackattn.__all__) == stackattn.__all__
    assert all(hasattr(stackattn, name) for name in stackattn.__all__)
    assert set(stackattn.__all__) >= {
        "NondeterministicState",
        "SuperpositionState",
        "backends",
        "nondeterministic_weights",
        "superposition_weights",
    }
    assert (Path(stackattn.__file__).parent / "py.typed").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, Triton is imported")
def test_triton_is_not_imported_on_a_cpu(tmp_path):
    """This holds even if Triton is installed: the test provides a module `triton` that prints when it is imported."""
    (tmp_path / "triton.py").write_text("print('imported')")
    program = """
import torch, stackattn
stackattn.backends()
stackattn.superposition_weights(torch.rand(2, 5, 3).softmax(-1))
steps = [torch.zeros(2, 5, 1, 2, 1, 2), torch.zeros(2, 5, 1, 2, 1, 2), torch.zeros(2, 5, 1, 2, 1)]
stackattn.nondeterministic_weights(*steps)
print("done")
"""
    assert run_python(program, PYTHONPATH=str(tmp_path)).stdout == "done\n"


def test_importing_has_no_side_effects():
    program = """
import json, os, random, time
import numpy, torch
def world():
    return [len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 1, torch.get_num_threads(),
            torch.get_rng_state().sum().item(), hash(random.getstate()), int(numpy.random.get_state()[1].sum()),
            str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(),
            sorted(os.environ.items())]
before, start = world(), time.perf_counter()
import stackattn
seconds, after = time.perf_counter() - start, world()
import sys
print(json.dumps({"same": before == after, "seconds": seconds, "modules": list(sys.modules)}))
"""
    run = run_python(program)
    assert run.stderr == ""
    (line,) = run.stdout.splitlines()  # the import prints nothing
    report = json.loads(line)
    assert report["same"]
    assert report["seconds"] < 1.0, "importing stackattn takes too long after torch"
    assert not {"matplotlib", "rich", "torch._dynamo", "stackattn.cli"} & set(report["modules"])


def test_backends_are_available():
    assert list(stackattn.backends()) == ["reference", "torch", "cpp", "triton"]
    if shutil.which("c++"):
        assert stackattn.backends()["cpp"] == "available"


@pytest.fixture
def warn_again():
    """Allow the one-time warning to be given again after the test."""
    yield
    dispatch._warn_once.cache_clear()


@pytest.mark.parametrize(
    ("error", "compiler", "words"),
    [
        (
            ModuleNotFoundError("_kernel"),
            None,
            ["not built", "no C++ compiler", "apt install g++", "reinstall stackattn"],
        ),
        (ModuleNotFoundError("_kernel"), "/usr/bin/c++", ["did not compile", "/usr/bin/c++", "reinstall stackattn"]),
        (ImportError("GLIBCXX_9 not found"), None, ["does not load", "GLIBCXX_9 not found", "Reinstall"]),
        (
            dispatch.OutdatedKernel("expected interface 2, found 1"),
            None,
            ["built from another version", "expected interface 2, found 1", "pip install --no-deps -e ."],
        ),
    ],
)
def test_without_the_kernel(error, compiler, words, monkeypatch, warn_again):
    """backends() and errors say why the kernel is missing; `auto` warns once and uses the `torch` backend."""
    monkeypatch.setattr(dispatch, "kernel", None)
    monkeypatch.setattr(dispatch, "_KERNEL_ERROR", error)
    monkeypatch.setattr(dispatch.shutil, "which", lambda name: compiler)
    dispatch._warn_once.cache_clear()
    assert all(word in stackattn.backends()["cpp"] for word in words)
    actions = torch.full((1, 3, 3), 1 / 3)
    with pytest.raises(RuntimeError, match=r"backend 'cpp' is not available: the C\+\+ kernel"):
        stackattn.superposition_weights(actions, backend="cpp")
    with pytest.raises(RuntimeError, match="backend 'cpp' is not available"):
        stackattn.SuperpositionState.empty(1, backend="cpp")
    with pytest.warns(RuntimeWarning, match="slower `torch` backend"):
        weights = stackattn.superposition_weights(actions)
    stackattn.SuperpositionState.empty(1).extend(actions)  # no second warning, which would be an error
    assert torch.equal(weights, stackattn.superposition_weights(actions, backend="torch"))


@pytest.mark.parametrize("interface", [None, dispatch.INTERFACE - 1, dispatch.INTERFACE + 1])
def test_a_kernel_of_another_version_is_not_used(interface, monkeypatch):
    """`interface` is None for a kernel that does not export its interface number."""
    outdated = types.ModuleType("_kernel")
    if interface is not None:
        outdated.interface = interface
    monkeypatch.setattr(dispatch.importlib, "import_module", lambda *_: outdated)
    kernel, error = dispatch._load_kernel()
    assert kernel is None
    assert isinstance(error, dispatch.OutdatedKernel)
    assert str(error) == f"expected interface {dispatch.INTERFACE}, found {interface or 'none'}"


def test_other_devices_use_the_torch_backend():
    assert dispatch.choose("auto", torch.device("meta")) == "torch"
    assert dispatch.choose("auto", torch.device("cpu")) == "cpp"


@pytest.mark.slow
def test_install_without_a_compiler(tmp_path):
    """Without a compiler on the PATH, the installation succeeds, and the package works and says what is missing."""
    source, empty_path, home = tmp_path / "source", tmp_path / "bin", tmp_path / "home"
    ignored = shutil.ignore_patterns(".venv", "build", ".git", "*.so", "__pycache__", "out", ".*_cache")
    shutil.copytree(ROOT, source, ignore=ignored)
    empty_path.mkdir()
    environment = {key: x for key, x in os.environ.items() if key not in ("CC", "CXX", "PYTHONPATH")}
    environment["PATH"] = str(empty_path)
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(home), str(source)]
    run = subprocess.run(install, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert (home / "stackattn").is_dir()
    assert not list(home.rglob("*.so"))
    assert (home / "stackattn/analysis/page/report.html").exists()
    assert (home / "stackattn/paper/configs/figure-2/dyck/tf-nd.yaml").exists()

    program = """
import sys, warnings, stackattn, torch
print(stackattn.__file__)
print(stackattn.backends()["cpp"])
with warnings.catch_warnings(record=True) as caught:
    weights = stackattn.superposition_weights(torch.tensor([[[1.0, 0, 0], [0, 1, 0]]]))
print(weights.tolist(), len(caught))
"""
    # -S leaves out the editable install of this package; PYTHONPATH provides torch
    path = os.pathsep.join([str(home), str(Path(torch.__file__).parent.parent)])
    run = subprocess.run(
        [sys.executable, "-S", "-c", program], env={**environment, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    where, status, weights = run.stdout.splitlines()
    assert where.startswith(str(home))
    assert "not built: no C++ compiler was found. Install one" in status
    assert weights == "[[[1.0, 0.0], [1.0, 0.0]]] 1"
