"""Each variant of the kernel, compiled for one instruction set, passes fast tests; too little memory raises an error.

All other tests use the best variant for this processor.
"""

import os
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from stackattn.ops import dispatch

HERE = Path(__file__).parent
LOAD = """
import sys
from importlib.util import module_from_spec, spec_from_file_location

spec = spec_from_file_location("_kernel", sys.argv[1])
kernel = module_from_spec(spec)
spec.loader.exec_module(kernel)
print(kernel.name())
"""


def python(*arguments, **environment):
    # As in all tests (tests/conftest.py), memory that C++ code allocates is not zero.
    environment = {**os.environ, "MALLOC_PERTURB_": "128", "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, cwd=HERE)


def load(variant):
    """Load the kernel and print its name, without importing torch, which takes longer."""
    return python("-c", LOAD, find_spec("stackattn.ops.cpp._kernel").origin, STACKATTN_KERNEL=variant)


@cache
def variants():
    """Names of the variants that this processor can run, the best first."""
    refusal = load("abacus").stderr
    return re.search(r"STACKATTN_KERNEL: expected one of (.*) on this processor, got abacus", refusal)[1].split(", ")


@pytest.mark.slow
def test_portable_is_always_available_and_the_best_is_used():
    names = variants()
    assert names[-1] == "portable"
    assert load("").stdout == f"kernel_{names[0]}\n"


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["portable", "avx2", "avx512"])
def test_every_variant(variant):
    """Repeat fast tests of the kernel with the variants that the other tests do not use."""
    if variant not in variants():
        pytest.skip("not supported by this processor")
    if dispatch.kernel.name() == f"kernel_{variant}":
        pytest.skip("all other tests use it")
    assert load(variant).stdout == f"kernel_{variant}\n"
    files = [
        str(HERE / f"test_{name}.py")
        for name in (
            "weights",
            "range",
            "lengths",
            "states",
            "readings",
            "attention",
            "dropout",
            "cross_entropy",
            "lstm_kernel",
        )
    ]
    arguments = ["-m", "pytest", "-x", "-m", "not slow", "-k", "cpp or kernel", "-p", "no:cacheprovider", *files]
    run = python(*arguments, STACKATTN_KERNEL=variant)
    assert run.returncode == 0, run.stdout
    assert int(re.search(r"(\d+) passed", run.stdout)[1]) > 200


@pytest.mark.slow
def test_a_wrong_variant_is_refused():
    program = """
import torch, warnings, stackattn, stackattn.nn
print(stackattn.backends()["cpp"])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    stackattn.nn.SuperpositionStackAttention(4, 2)(torch.zeros(1, 2, 4))  # called by PyTorch's Module
    stackattn.superposition_weights(torch.zeros(1, 2, 3))
print(len(caught), caught[0].category.__name__, caught[0].filename)
try:
    stackattn.superposition_weights(torch.zeros(1, 2, 3), backend="cpp")
except RuntimeError as error:
    print(error)
"""
    status, warning, error = python("-c", program, STACKATTN_KERNEL="abacus").stdout.splitlines()
    assert "built but does not load: STACKATTN_KERNEL: expected one of" in status
    assert warning == "1 RuntimeWarning <string>"
    assert "backend 'cpp' is not available" in error
    assert "got abacus" in error


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux to limit memory")
def test_too_little_memory_is_an_error():
    """The process does not crash, and the kernel still works afterwards."""
    program = """
import resource, torch, stackattn
actions = torch.full((2, 6000, 3), 1 / 3)
before = stackattn.superposition_weights(actions[:, :8])
weights = torch.empty(2, 6000, 6000)  # this fits into memory, but not together with the chart
del weights
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 420 * 2**20,) * 2)
try:
    stackattn.superposition_weights(actions)
except MemoryError:
    print("MemoryError", torch.equal(before, stackattn.superposition_weights(actions[:, :8])))
"""
    assert python("-c", program).stdout == "MemoryError True\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux to limit memory")
def test_too_little_memory_for_a_window_is_an_error():
    """The kernel or PyTorch raises the error, whichever allocates the memory; the kernel still works afterwards."""
    program = """
import resource, torch
from stackattn import nondeterministic_readings
shapes = (3, 3, 3, 3), (3, 3, 3, 3), (3, 3, 3), (5,)
steps = lambda T: [torch.zeros(1, 1, *shape).expand(1, T + (len(shape) == 1), *shape) for shape in shapes]
few, many = steps(8), steps(200_000)
before = nondeterministic_readings(*few, window=64)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
for room in (50, 250):  # MiB
    resource.setrlimit(resource.RLIMIT_AS, (used + room * 2**20, resource.RLIM_INFINITY))
    try:
        nondeterministic_readings(*many, window=64)
    except (MemoryError, RuntimeError) as error:
        print("memory" in str(error), torch.equal(before, nondeterministic_readings(*few, window=64)))
"""
    assert python("-c", program).stdout == "True True\n" * 2
