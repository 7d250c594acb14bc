"""A GPU without hardware: tensors on the device `cuda` whose values are stored and computed on the CPU.

An operation that mixes tensors on the CPU and on the GPU raises. Operations that would wait for a GPU are recorded, or
raise if `strict` is set.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import pytest
import torch
from fake_gpu import CUDA, DENSE, GPU, Waits, cuda_guard, reads_values
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from stackattn.ops.triton_backend import availability

aten = torch.ops.aten
CPU = torch.device("cpu")
_META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)


class _OnGPU(torch.Tensor):
    """A tensor whose device is `cuda` for Python code, but `meta` for PyTorch: gradients on `cuda` need hardware."""

    values: torch.Tensor  # on the CPU

    @staticmethod
    def __new__(cls, values: torch.Tensor):
        place = values.shape, values.stride(), values.storage_offset()
        x = torch.Tensor._make_wrapper_subclass(cls, *place, dtype=values.dtype, device=GPU)
        x.values = values
        return x

    device = property(lambda self: CUDA)
    is_meta = False
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function}: the simulation has ended")

    def __deepcopy__(self, memo):
        copied = self.detach().clone()
        is_parameter = isinstance(self, torch.nn.Parameter)
        memo[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if is_parameter else copied
        return memo[id(self)]

    def data_ptr(self):
        return self.values.data_ptr()

    def untyped_storage(self):
        return self.values.untyped_storage()

    def set_(self, storage, *place):
        with _disable_current_modes():
            self.values.set_(storage, *place)
            memory = torch.empty(storage.nbytes(), dtype=torch.uint8, device=GPU).untyped_storage()
            aten.set_.source_Storage_storage_offset.redispatch(_META, self, memory, *place)  # for the shape
        return self

    def tolist(self):
        return self.cpu().tolist()


def on_cpu(tree):
    """Replace tensors on the GPU by their values, which share memory with them, and devices by the CPU."""

    def replaced(x):
        return x.values if isinstance(x, _OnGPU) else CPU if isinstance(x, torch.device) else x

    return tree_map(replaced, tree)


class SimulatedGPU(TorchDispatchMode):
    """Executes operations of the simulated GPU on the CPU.

    Attributes:
        device: the device.
        reads: shapes of the tensors that were read from the GPU.
        copies: shapes of the tensors that were copied to the GPU by blocking copies.
        strict: whether such reads and copies raise.
        allocated, peak: current and largest total size of all tensors in bytes.
    """

    def __init__(self):
        super().__init__()
        self.device, self.reads, self.copies, self.strict = CUDA, [], [], False
        self.allocated, self.peak, self._users = 0, 0, Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function.namespace == "stackattn":
            with self:
                return function.redispatch(DENSE, *args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        on_gpu = [isinstance(x, _OnGPU) for x in tensors]
        device = kwargs.get("device")
        to_gpu = any(on_gpu) if device is None else device.type != "cpu"
        if function in (aten._to_copy.default, aten.copy_.default):
            to_gpu = on_gpu[0] if function is aten.copy_.default else to_gpu
            if on_gpu[-1] != to_gpu and not (to_gpu and (kwargs.get("non_blocking") or True in args[2:])):
                self._wait(self.copies if to_gpu else self.reads, tensors[-1])
        elif any(on_gpu) and reads_values(function, tensors):
            self._wait(self.reads, tensors[0])
        elif any(on_gpu) and not all(gpu or not x.dim() for gpu, x in zip(on_gpu, tensors, strict=True)):
            raise Waits(f"{function}: tensors on different devices")
        known = {id(x.values): x for x in tensors if isinstance(x, _OnGPU)}  # in-place operations return an argument
        args, kwargs = on_cpu((args, kwargs))
        result = function(*args, **kwargs)
        if not to_gpu:
            return result

        def on_gpu_again(x):
            return known[id(x)] if id(x) in known else self._new(x) if isinstance(x, torch.Tensor) else x

        return tree_map(on_gpu_again, result)

    def _new(self, values: torch.Tensor) -> _OnGPU:
        x, storage = _OnGPU(values), values.untyped_storage()
        self._use(storage.data_ptr(), storage.nbytes(), 1)
        weakref.finalize(x, self._use, storage.data_ptr(), storage.nbytes(), -1)
        return x

    def _use(self, address: int, size: int, count: int) -> None:
        """Count the tensors that use a block of memory; the block is free when there are none."""
        before, self._users[address] = self._users[address], self._users[address] + count
        self.allocated += size * (bool(self._users[address]) - bool(before))
        self.peak = max(self.peak, self.allocated)

    def _wait(self, record: list[tuple[int, ...]], x: torch.Tensor) -> None:
        if not x.numel():
            return
        if self.strict:
            raise Waits(f"a tensor of shape {tuple(x.shape)} is {'read' if record is self.reads else 'copied'}")
        record.append(tuple(x.shape))

    def capture(self, module, inputs):
        """Replace torch.cuda.make_graphed_callables: call the module once, without waiting for the GPU."""
        with mock.patch.object(self, "strict", True):
            result = module(*inputs)
            if result.requires_grad:
                result.sum().backward()
            module.zero_grad()
        return module


@contextmanager
def gpu_with_values() -> Iterator[SimulatedGPU]:
    """Simulate a CUDA GPU. The value is the `SimulatedGPU`, which records operations that would wait for the GPU."""
    if sys.platform != "linux":
        pytest.skip("needs Linux, because it replaces a device guard in PyTorch's shared library")
    gpu = SimulatedGPU()

    def debug_mode(name: str) -> None:
        gpu.strict = name == "error"

    replaced = {
        torch.cuda: {
            "_lazy_init": lambda: None,
            "is_available": lambda: True,
            "is_bf16_supported": lambda: True,
            "device_count": lambda: 1,
            "set_device": lambda device: None,
            "synchronize": lambda device: None,
            "is_current_stream_capturing": lambda: False,
            "get_device_name": lambda device: "simulated",
            "get_rng_state": lambda device: torch.get_rng_state(),
            "set_rng_state": lambda state, device: None,
            "memory_allocated": lambda device=None: gpu.allocated,
            "max_memory_allocated": lambda device=None: gpu.peak,
            "reset_peak_memory_stats": lambda device=None: setattr(gpu, "peak", gpu.allocated),
            "set_sync_debug_mode": debug_mode,
            "make_graphed_callables": gpu.capture,
        },
        torch.cuda.amp.common: {"amp_definitely_not_available": lambda: False},
        sys.modules["torch.optim.optimizer"]: {"_get_fused_kernels_supported_devices": lambda: ["cpu", "cuda"]},
    }
    with ExitStack() as stack:
        for owner, functions in replaced.items():
            for name, function in functions.items():
                stack.enter_context(mock.patch.object(owner, name, function))
        availability.status.cache_clear()
        stack.callback(availability.status.cache_clear)
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)  # makes torch.tensor(..., device="cuda") a copy
        stack.enter_context(cuda_guard())
        stack.enter_context(gpu)
        yield gpu
