"""Fixtures for all tests: one thread, nan in uninitialised memory, and seeded random numbers."""

import ctypes
import os
import sys

# Set before torch is imported, and inherited by processes that tests start: with small tensors, the threads of parallel
# test processes would only compete. In tests with several threads, a waiting thread sleeps: with more test processes
# than cores, busy waiting takes most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

M_PERTURB = -6  # malloc.h


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Use one thread: small tensors do not benefit from more."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _poisoned_memory_of_the_kernel():
    """Fill memory that C++ code allocates (glibc) with 0x7f7f7f... = 1.4e306: any result that uses it changes."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        assert libc.mallopt(M_PERTURB, 0x80) == 1  # new memory is filled with the complement


@pytest.fixture(autouse=True)
def _poisoned_memory():
    """Fill uninitialised memory, such as that of torch.empty, with nan: reading it before writing makes a test fail.

    Unlike `torch.use_deterministic_algorithms`, this does not import the compiler, which takes a second.
    """
    torch.set_deterministic_debug_mode("error")
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.set_deterministic_debug_mode("default")


@pytest.fixture(autouse=True)
def _same_random_numbers():
    """Seed the global generator, so that results do not depend on the order of tests."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def without_onednn():
    """Disable oneDNN: its bfloat16 kernels crash on virtual machines that report AMX but do not permit its use."""
    enabled = torch._C._get_mkldnn_enabled()  # torch.backends.mkldnn.flags does this too, with a warning
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(enabled)
