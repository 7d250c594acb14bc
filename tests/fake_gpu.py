"""A GPU without hardware: tensors that have a device but no values.

On such tensors, everything that would wait for a GPU raises: reading a value, shapes that depend on values, and copies
between the CPU and the device, except non-blocking copies to the device with `to`. An operation that mixes tensors on
different devices raises too.

The device is `meta`, because gradients of fake CUDA tensors need a GPU. The operators distinguish only the CPU from all
other devices; gpu_with_values.py simulates the device `cuda`.
"""

import ctypes
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stackattn.training.devices import autocast

GPU = torch.device("meta")
CUDA = torch.device("cuda", 0)
DENSE = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)  # operators have one implementation for all devices


class Waits(AssertionError):
    """Raised if an operation would wait for the GPU or mixes devices."""


def reads_values(function, tensors: list[torch.Tensor]) -> bool:
    """Whether the result or its shape depends on values that the CPU would have to read."""
    if function.namespace == "aten" and function._opname.startswith("index"):
        return any(x.dtype in (torch.bool, torch.uint8) for x in tensors[1:])  # a mask
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(function.tags))


class _NothingWaits(TorchDispatchMode):
    """Raises where FakeTensorMode does not: on copies between devices, index tensors on the CPU, and some masks.

    The library's own operators are executed here. FakeTensorMode would compute only the shapes of their results.
    """

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "stackattn":
            with self:
                return function.redispatch(DENSE, *args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if any(x.device.type != "cpu" for x in tensors) and reads_values(function, tensors):
            raise Waits(f"{function}: reads values")
        result = function(*args, **(kwargs or {}))
        tensors += [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        non_blocking = function is torch.ops.aten._to_copy.default and (kwargs or {}).get("non_blocking")
        if len({x.device for x in tensors if x.dim()}) > 1 and not (non_blocking and tensors[0].device.type == "cpu"):
            raise Waits(f"{function}: tensors on different devices")
        return result


@contextmanager
def fake_gpu(device: torch.device = GPU) -> Iterator[torch.device]:
    """Simulate a GPU without values: operations that would wait for the GPU raise. The value is its device."""
    with FakeTensorMode(), _NothingWaits():
        yield device


@contextmanager
def cuda_guard() -> Iterator[None]:
    """Replace the device guard of CUDA by that of `meta`, so that operations on fake CUDA tensors need no hardware."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libc10.so"))
    types = torch._C._autograd.DeviceType
    guards = (ctypes.c_void_p * 20).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    before = guards[types.CUDA.value]
    guards[types.CUDA.value] = guards[types.Meta.value]
    try:
        yield
    finally:
        guards[types.CUDA.value] = before


@contextmanager
def fake_autocast() -> Iterator[torch.device]:
    """A fake CUDA device under autocast to bfloat16, without gradients."""
    with (
        cuda_guard(),
        mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", return_value=False),
        mock.patch.object(torch.cuda, "is_bf16_supported", return_value=True),
        fake_gpu(CUDA) as gpu,
        autocast(gpu, "bfloat16"),
        torch.no_grad(),
    ):
        yield gpu


# Operations that launch no kernel
_VIEWS = ("view", "reshape", "transpose", "permute", "slice", "select", "expand", "unsqueeze", "squeeze", "diagonal")
_VIEWS += ("as_strided", "unbind", "split", "detach", "alias", "_unsafe_view", "empty", "new_empty", "lift", "t.")


class KernelCount(TorchDispatchMode):
    """Counts the operations that launch a kernel, by name."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().removeprefix("aten::")
        if not name.startswith(_VIEWS):
            self.names[name] += 1
        return function(*args, **(kwargs or {}))
