"""Every test runs with nan in fresh memory: what reads before it writes is found out."""

import os

# Before torch is imported, and for the processes that tests start: small tensors want one thread, and as many as there
# are test processes would be in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """The tensors of tests are small: more threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _poisoned_memory():
    """torch.empty and its relatives give nan, also deep inside PyTorch."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _same_random_numbers():
    """For whoever draws without a generator of its own, alone or in any order."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def without_onednn():
    """Its bfloat16 kernels end the process on virtual machines that announce AMX and then forbid it."""
    enabled = torch._C._get_mkldnn_enabled()  # torch.backends.mkldnn.flags does this too, with a warning
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(enabled)
