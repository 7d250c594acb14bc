import pytest
import torch


@pytest.fixture
def without_onednn():
    """Its bfloat16 kernels end the process on virtual machines that announce AMX and then forbid it."""
    enabled = torch._C._get_mkldnn_enabled()  # torch.backends.mkldnn.flags does this too, with a warning
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(enabled)
