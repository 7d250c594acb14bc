"""Registration of operators with PyTorch, for autograd, torch.compile and torch.func.vmap.

An operator takes tensors, one of which (`lengths`) may be None, and then options such as the name of a backend.
It is defined with `torch.library.Library`, because the first call to a `torch.library.custom_op` imports the compiler,
which takes two seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_library = torch.library.Library("stackattn", "DEF")

NO_SECOND_DERIVATIVES = "this backend cannot differentiate its backward pass; use backend='reference'"


def operator_with_backward(
    name: str, tensors: str, options: str = "", *, keeps_memory: bool = False
) -> tuple[Operator, Operator]:
    """An operator `name` with one differentiable result, and the operator `name_backward` that computes its gradient.

    The arguments of `name_backward` are the gradient of the result, the tensors, `memory` if it is kept, and the
    options; its results are the gradients of all tensors except `lengths`. It cannot be differentiated.

    Args:
        name: name of the operator.
        tensors: the tensors of its signature; the last one is `lengths`.
        options: the other arguments of its signature.
        keeps_memory: whether it has a second result, `memory`, which only the backward pass uses.
    """
    options = f", {options}" if options else ""
    operator = Operator(name, f"({tensors}{options}) -> {'(Tensor, Tensor)' if keeps_memory else 'Tensor'}")
    count = len(operator._tensors) - 1
    memory = ", Tensor memory" if keeps_memory else ""
    gradients = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    backward = Operator(f"{name}_backward", f"(Tensor grad, {tensors}{memory}{options}) -> {gradients}")

    @backward.fake
    def _(grad, *inputs):
        found = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs[:count])
        return found[0] if count == 1 else found

    @operator.gradient
    def _(inputs, memory, grad, *options):
        found = backward(grad, *inputs, *memory, *options)
        return (found,) if count == 1 else found

    backward.without_gradient(NO_SECOND_DERIVATIVES)
    return operator, backward


class Operator:
    """An operator `stackattn::name`; the methods register its implementation, gradient and batching rule."""

    def __init__(self, name: str, signature: str, *, saves_result: bool = False):
        self._saves_result = saves_result
        self._batched: Callable | None = None
        self._name = f"stackattn::{name}"
        _library.define(name + signature, tags=(torch.Tag.pt2_compliant_tag,))
        self._call = getattr(torch.ops.stackattn, name).default
        arguments = self._call._schema.arguments
        self._tensors = [x.name for x in arguments if str(x.type) in ("Tensor", "Optional[Tensor]")]

    def __call__(self, *args):
        # torch.func transforms support the gradients of autograd.Function, but not those of torch.library.
        if self._batched and not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
            return self._function.apply(*args)
        return self._call(*args)

    def implementation(self, function: Callable) -> None:
        torch.library.impl(self._name, "CompositeExplicitAutograd", function, lib=_library)

    def fake(self, function: Callable) -> None:
        """Register a function that returns empty results of the right shapes and dtypes."""
        torch.library.register_fake(self._name, function, lib=_library)

    def gradient(self, function: Callable) -> None:
        """Register `function(tensors, memory, grad, *options)`; it returns gradients for all tensors but `lengths`.

        `grad` is the gradient of the first result; the other results are `memory`, which only the backward pass uses.
        If the operator saves its result, `memory` begins with the first result. The last tensor must be `lengths`.
        """

        count = len(self._tensors)

        def setup_context(ctx, inputs, output):
            tensors, ctx.options = inputs[:count], inputs[count:]
            result, *memory = output if isinstance(output, tuple) else (output,)
            ctx.mark_non_differentiable(*memory)
            ctx.set_materialize_grads(False)  # otherwise PyTorch would allocate zeros of the size of `memory`
            memory = [result, *memory] if self._saves_result else memory
            # A copy: autograd does not detect that a caller overwrites `lengths` through NumPy.
            lengths = tensors[-1] if tensors[-1] is None else tensors[-1].clone()
            ctx.save_for_backward(*tensors[:-1], lengths, *memory)

        def backward(ctx, grad, *_):
            if grad is None:
                return (None,) * (count + len(ctx.options))
            saved = ctx.saved_tensors  # accessed once: gradient checkpointing recomputes them each time
            grads = function(saved[:count], saved[count:], grad, *ctx.options)
            return *grads, None, *(None for _ in ctx.options)

        self._register_autograd(setup_context, backward)

    def without_gradient(self, message: str) -> None:
        """Raise RuntimeError with this message when the operator is differentiated."""

        def backward(ctx, *grads):
            raise RuntimeError(message)

        self._register_autograd(lambda ctx, inputs, output: None, backward)

    def _register_autograd(self, setup_context: Callable, backward: Callable) -> None:
        call = self._call
        torch.library.register_autograd(self._name, backward, setup_context=setup_context, lib=_library)
        members = {
            "forward": lambda *args: call(*args),
            "setup_context": setup_context,
            "backward": backward,
            "vmap": self._vmap,
        }
        members = {name: staticmethod(member) for name, member in members.items()}
        self._function: Any = type(self._name, (torch.autograd.Function,), members)

    def batched(self, function: Callable) -> None:
        """Register the batching rule `function(tensors, size, *options)`.

        The extra axis, of length `size`, is folded into the first axis of the tensors. `memory` is not passed, because
        only the backend knows its layout.
        """
        self._batched = function
        torch.library.register_vmap(self._name, self._vmap, lib=_library)

    def batched_over_first_axis(self) -> None:
        """Register the batching rule of an operator without `memory`: call it once on the folded tensors."""

        @self.batched
        def _(tensors, size, *options):
            results = self(*tensors, *options)
            if isinstance(results, torch.Tensor):
                return results.unflatten(0, (size, -1)), 0
            return tuple(x.unflatten(0, (size, -1)) for x in results), (0,) * len(results)

    def _vmap(self, info, in_dims, *args):
        folded, count = [], len(self._tensors)
        for name, x, dim in zip(self._tensors, args[:count], in_dims[:count], strict=True):
            if name == "memory":
                continue
            if x is not None:
                x = x.movedim(dim, 0) if dim is not None else x.expand(info.batch_size, *x.shape)
                x = x.flatten(0, 1)
            folded.append(x)
        assert self._batched is not None
        return self._batched(folded, info.batch_size, *args[count:])
