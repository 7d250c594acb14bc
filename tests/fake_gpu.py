"""A GPU without hardware: tensors that have a device but no values.

On such tensors everything that would wait for a GPU raises: reading a value, shapes that depend on values, and copies
between the CPU and the device. So does an operation on tensors of different devices.

The device is `cuda` if PyTorch was built with CUDA; it needs no GPU. A PyTorch without CUDA aborts the process when it
differentiates CUDA tensors, so there it is `meta`. The library distinguishes only the CPU from all other devices.
"""

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stackattn.training.processes import autocast

GPU = torch.device("meta")
CUDA = torch.device("cuda", 0)
BUILT_WITH_CUDA = torch.backends.cuda.is_built()
_DENSE = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)  # operators have one implementation for all devices


class Waits(AssertionError):
    """An operation would wait for the GPU, or mixes devices."""


class _NothingWaits(TorchDispatchMode):
    """FakeTensorMode does not object to copies between devices and to index tensors on the CPU.

    The library's own operators are computed here. FakeTensorMode would compute only the shapes of their results.
    """

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "stackattn":
            with self:
                return function.redispatch(_DENSE, *args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        result = function(*args, **(kwargs or {}))
        tensors += [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        non_blocking = function is torch.ops.aten._to_copy.default and (kwargs or {}).get("non_blocking")
        if len({x.device for x in tensors if x.dim()}) > 1 and not (non_blocking and tensors[0].device.type == "cpu"):
            raise Waits(f"{function}: tensors on different devices")
        return result


@contextmanager
def fake_gpu(device: torch.device = CUDA if BUILT_WITH_CUDA else GPU) -> Iterator[torch.device]:
    with FakeTensorMode(), _NothingWaits():
        yield device


@contextmanager
def _cuda_guard() -> Iterator[None]:
    """In a PyTorch without CUDA, operations on fake CUDA tensors switch between devices like those on `meta`."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libc10.so"))
    types = torch._C._autograd.DeviceType
    guards = (ctypes.c_void_p * 20).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    before = guards[types.CUDA.value]
    guards[types.CUDA.value] = before or guards[types.Meta.value]
    try:
        yield
    finally:
        guards[types.CUDA.value] = before


@contextmanager
def fake_autocast() -> Iterator[torch.device]:
    """A fake CUDA device under autocast to bfloat16. Without CUDA, there are no gradients."""
    with (
        _cuda_guard(),
        mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", return_value=False),
        mock.patch.object(torch.cuda, "is_bf16_supported", return_value=True),
        fake_gpu(CUDA) as gpu,
        autocast(gpu, "bfloat16"),
        nullcontext() if BUILT_WITH_CUDA else torch.no_grad(),
    ):
        yield gpu


@contextmanager
def gpu_of_zeros() -> Iterator[tuple[torch.device, list[tuple[int, ...]]]]:
    """A GPU beside a CPU whose tensors have values: for code that computes on both.

    Reading from the GPU with `bool`, `item`, `tolist` or `cpu` gives zeros. Yields the device, and the shapes of what
    was read.
    """
    reads: list[tuple[int, ...]] = []

    def replaced(name: str, convert: Callable[[torch.Tensor], object]) -> object:
        original = getattr(torch.Tensor, name)

        def read(x, *args, **kwargs):
            if x.device != GPU:
                return original(x, *args, **kwargs)
            reads.append(tuple(x.shape))
            return convert(torch.zeros(x.shape, dtype=x.dtype))

        return mock.patch.object(torch.Tensor, name, read)

    def values(x: torch.Tensor) -> object:
        return x.numpy().tolist()

    with ExitStack() as stack:
        for name, convert in (("item", values), ("tolist", values), ("__bool__", values), ("cpu", lambda x: x)):
            stack.enter_context(replaced(name, convert))
        stack.enter_context(_NothingWaits())
        yield GPU, reads


# Operations that start no kernel
_VIEWS = ("view", "reshape", "transpose", "permute", "slice", "select", "expand", "unsqueeze", "squeeze", "diagonal")
_VIEWS += ("as_strided", "unbind", "split", "detach", "alias", "_unsafe_view", "empty", "new_empty", "lift", "t.")


class KernelCount(TorchDispatchMode):
    """Counts the operations that start a kernel, by name."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().removeprefix("aten::")
        if not name.startswith(_VIEWS):
            self.names[name] += 1
        return function(*args, **(kwargs or {}))
