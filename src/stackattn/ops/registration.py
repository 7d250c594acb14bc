"""Operators that PyTorch knows: autograd, torch.compile, torch.func.vmap.

An operator here takes tensors (the last one, `lengths`, may be None) and then the name of a backend. It is defined with
`torch.library.Library` rather than `torch.library.custom_op`, whose first call imports the compiler: two seconds that
nobody asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_library = torch.library.Library("stackattn", "DEF")

NO_SECOND_DERIVATIVES = "this backend cannot differentiate its backward pass once more; backend='reference' can"


class Operator:
    def __init__(self, name: str, signature: str):
        self._name = f"stackattn::{name}"
        _library.define(name + signature, tags=(torch.Tag.pt2_compliant_tag,))
        self._call = getattr(torch.ops.stackattn, name).default

    def __call__(self, *args):
        # torch.func.grad does not see through what torch.library registers, but through an autograd.Function it does.
        if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
            return self._function.apply(*args)
        return self._call(*args)

    def implementation(self, function: Callable) -> None:
        torch.library.impl(self._name, "CompositeExplicitAutograd", function, lib=_library)

    def fake(self, function: Callable) -> None:
        """Shapes and dtypes of the results, without computing them."""
        torch.library.register_fake(self._name, function, lib=_library)

    def gradient(self, function: Callable) -> None:
        """`function(input tensors, memory, backend, grad)` gives the gradients of all tensors but `lengths`.

        `grad` belongs to the first result; the others are `memory`, kept for the backward pass and for nothing else.
        """

        def setup_context(ctx, inputs, output):
            *tensors, ctx.backend = inputs
            memory = output[1:] if isinstance(output, tuple) else ()
            ctx.mark_non_differentiable(*memory)
            ctx.inputs = len(tensors)
            # A copy: autograd notices neither that a caller overwrites `lengths` through NumPy nor when.
            lengths = tensors[-1] if tensors[-1] is None else tensors[-1].clone()
            ctx.save_for_backward(*tensors[:-1], lengths, *memory)

        def backward(ctx, grad, *_):
            saved = ctx.saved_tensors  # once: gradient checkpointing recomputes them at each access
            return *function(saved[: ctx.inputs], saved[ctx.inputs :], ctx.backend, grad), None, None

        self._register_autograd(setup_context, backward)

    def without_gradient(self, message: str) -> None:
        """Differentiating the operator raises an error that says so."""

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
        """`function(tensors, size, backend)`: the extra axis, of that size, is in the tensors' first one.

        Memory is not among them: its form is nobody else's business.
        """
        self._batched = function
        torch.library.register_vmap(self._name, self._vmap, lib=_library)

    def _vmap(self, info, in_dims, *args):
        folded = []
        for argument, x, dim in zip(self._call._schema.arguments[:-1], args[:-1], in_dims[:-1], strict=True):
            if argument.name == "memory":
                continue
            if x is not None:
                x = x.movedim(dim, 0) if dim is not None else x.expand(info.batch_size, *x.shape)
                x = x.flatten(0, 1)
            folded.append(x)
        return self._batched(folded, info.batch_size, args[-1])
