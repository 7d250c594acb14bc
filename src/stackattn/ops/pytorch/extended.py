"""Tensors whose entries neither overflow nor underflow: a mantissa and a power of two for each entry."""

from __future__ import annotations

import torch
from torch import Tensor

_MOST_TERMS = 2**24  # largest number of terms of a matrix product in memory at once
LOWEST = -1e10  # logits this far below the largest one of their step have weight zero
_ZERO_EXPONENT = -(2.0**50)  # below every sum of exponents
_LN2 = 0.6931471805599453
# ln 2 in two parts, the first with trailing zero bits, so that exponent * _LN2_HIGH is exact up to |exponent| = 2**21
_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10


class Extended:
    """`mantissa * 2 ** exponent`, entry by entry, with the part of the tensor interface that the chart uses.

    Mantissas are zero or in [0.5, 1) up to sign; exponents are integers stored in the same dtype.
    """

    def __init__(self, mantissa: Tensor, exponent: Tensor):
        self.mantissa, self.exponent = mantissa, exponent

    @classmethod
    def normal(cls, mantissa: Tensor, exponent: Tensor | float) -> Extended:
        fraction, shift = torch.frexp(mantissa)
        return cls(fraction, torch.where(fraction == 0, _ZERO_EXPONENT, exponent + shift))

    @classmethod
    def exp(cls, x: Tensor) -> Extended:
        x = x.where(x > LOWEST, -torch.inf)
        power = torch.where(x == -torch.inf, 0.0, (x / _LN2).floor())
        return cls.normal(((x - power * _LN2_HIGH) - power * _LN2_LOW).exp(), power)

    @classmethod
    def of(cls, x: Tensor) -> Extended:
        return cls.normal(x, torch.zeros_like(x))

    def to_tensor(self) -> Tensor:
        return torch.ldexp(self.mantissa, self.exponent.clamp(-2000, 2000))

    def log(self) -> Tensor:
        """The natural logarithm, as a tensor."""
        return self.mantissa.log() + self.exponent * _LN2

    def new_zeros(self, *shape: int) -> Extended:
        return Extended(self.mantissa.new_zeros(*shape), self.mantissa.new_full(shape, _ZERO_EXPONENT))

    @property
    def shape(self) -> torch.Size:
        return self.mantissa.shape

    def __getitem__(self, index) -> Extended:
        return Extended(self.mantissa[index], self.exponent[index])

    def __setitem__(self, index, value: Extended) -> None:
        self.mantissa[index] = value.mantissa
        self.exponent[index] = value.exponent

    def reshape(self, *shape: int) -> Extended:
        return Extended(self.mantissa.reshape(*shape), self.exponent.reshape(*shape))

    def transpose(self, a: int, b: int) -> Extended:
        return Extended(self.mantissa.transpose(a, b), self.exponent.transpose(a, b))

    def permute(self, *dims: int) -> Extended:
        return Extended(self.mantissa.permute(dims), self.exponent.permute(dims))

    def diagonal(self, offset: int, a: int, b: int) -> Extended:
        return Extended(self.mantissa.diagonal(offset, a, b), self.exponent.diagonal(offset, a, b))

    @property
    def mT(self) -> Extended:
        return self.transpose(-2, -1)

    def __add__(self, other: Extended) -> Extended:
        top = torch.maximum(self.exponent, other.exponent)
        return Extended.normal(
            _scaled(self.mantissa, self.exponent - top) + _scaled(other.mantissa, other.exponent - top), top
        )

    def __iadd__(self, other: Extended) -> Extended:
        self[...] = self + other
        return self

    def __mul__(self, other: Extended) -> Extended:
        return Extended.normal(self.mantissa * other.mantissa, self.exponent + other.exponent)

    def __truediv__(self, other: Extended) -> Extended:
        return Extended.normal(self.mantissa / other.mantissa, self.exponent - other.exponent)

    def sum(self, dim: int | tuple[int, ...], keepdim: bool = False) -> Extended:
        top = self.exponent.amax(dim, keepdim=True)
        total = _scaled(self.mantissa, self.exponent - top).sum(dim, keepdim=True)
        result = Extended.normal(total, top)
        if keepdim:
            return result
        return Extended(*(x.squeeze(dim) for x in (result.mantissa, result.exponent)))

    def __matmul__(self, other: Extended) -> Extended:
        M, K = self.shape[-2:]
        rows = max(1, _MOST_TERMS // max(1, self.shape[:-2].numel() * K * other.shape[-1]))
        result = self.new_zeros(*self.shape[:-1], other.shape[-1])
        for at in range(0, M if K else 0, rows):
            part = (..., slice(at, at + rows), slice(None))
            ours, theirs = self[part], other
            exponent = ours.exponent[..., :, :, None] + theirs.exponent[..., None, :, :]  # (..., rows, K, N)
            top = exponent.amax(-2, keepdim=True)
            terms = _scaled(ours.mantissa[..., :, :, None] * theirs.mantissa[..., None, :, :], exponent - top)
            result[part] = Extended.normal(terms.sum(-2), top.squeeze(-2))
        return result


def _scaled(mantissa: Tensor, exponent: Tensor) -> Tensor:
    return torch.ldexp(mantissa, exponent.clamp(min=-2000))


def multiply(a: Tensor | Extended, b: Tensor | Extended, *, out: Tensor | Extended, accumulate: bool = False) -> None:
    """`out = a @ b`, or `out += a @ b`, for batches of matrices; in float64, this is one call of PyTorch."""
    if isinstance(out, Extended):
        out[...] = out + a @ b if accumulate else a @ b  # pyright: ignore
    elif accumulate:
        out.baddbmm_(a, b)  # pyright: ignore
    else:
        torch.bmm(a, b, out=out)  # pyright: ignore


def add(a: Tensor | Extended, b: Tensor | Extended, *, out: Tensor | Extended) -> None:
    if isinstance(out, Extended):
        out[...] = a + b  # pyright: ignore
    else:
        torch.add(a, b, out=out)  # pyright: ignore
