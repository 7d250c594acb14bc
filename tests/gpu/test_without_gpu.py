"""The tests of test_gpu.py on a simulated GPU, for machines without a GPU.

Triton's interpreter (`make triton ARGS=--full`) runs only the tests of the Triton backend, which are skipped
otherwise.
"""

import pytest
import torch
from gpu_with_values import gpu_with_values, on_cpu
from test_gpu import *  # noqa: F403
from torch.utils._python_dispatch import _disable_current_modes

from stackattn.ops.triton_backend import availability

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU"),
    # the interpreter computes with NumPy, which warns about infinities in rows that are computed again
    pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def _simulated_gpu(request, monkeypatch):
    if availability.interpreted() != ("triton" in request.node.name):
        pytest.skip("Triton's interpreter runs the tests of the Triton backend, and only these")
    if availability.interpreted():
        if request.node.callspec.params.get("T", 0) >= 20:
            pytest.skip("takes too long in Triton's interpreter")
        measures = request.node.originalname.startswith(("test_peak_memory", "test_nothing_waits"))
        _launch_on_cpu(monkeypatch, computes=not measures)
    with gpu_with_values():
        yield


def _launch_on_cpu(monkeypatch, computes):
    """Launch kernels on the CPU.

    Without `computes`, none is launched, because the interpreter is slow; the results are then wrong.
    """
    from stackattn.ops.triton_backend import band, charts

    original = charts.launch

    def launch(kernel, grid, reads, writes, *sizes, **options):
        if computes:
            with _disable_current_modes():
                original(kernel, grid, on_cpu(reads), on_cpu(writes), *sizes, **options)

    for module in (charts, band):
        monkeypatch.setattr(module, "launch", launch)
    # the simulation is thread-local
    monkeypatch.setattr(availability, "_in_new_thread", lambda function, *args: function(*args))
    if not computes:
        monkeypatch.setattr(availability, "_agrees", lambda *_: True)
