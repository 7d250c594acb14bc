"""A GPU without hardware: tensors that have a device but no values.

On such tensors everything that would wait for a GPU raises: reading a value, shapes that depend on values, and copies
between the CPU and the device. So does an operation on tensors of different devices. The device is called `meta`,
because a PyTorch without CUDA aborts the process when it differentiates fake CUDA tensors; the library distinguishes
only the CPU from all other devices.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPU = torch.device("meta")


class Waits(AssertionError):
    """An operation would wait for the GPU, or mixes devices."""


class _NothingWaits(TorchDispatchMode):
    """FakeTensorMode does not object to copies between devices and to index tensors on the CPU."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        result = function(*args, **(kwargs or {}))
        tensors += [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        non_blocking = function is torch.ops.aten._to_copy.default and (kwargs or {}).get("non_blocking")
        if len({x.device for x in tensors if x.dim()}) > 1 and not (non_blocking and tensors[0].device.type == "cpu"):
            raise Waits(f"{function}: tensors on different devices")
        return result


@contextmanager
def fake_gpu() -> Iterator[torch.device]:
    with FakeTensorMode(), _NothingWaits():
        yield GPU


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
