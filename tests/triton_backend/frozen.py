"""Detects races: kernel launches in which one program reads what another program writes."""

import torch

NOT_WRITTEN = 3e300


class Frozen:
    """Replaces `launch`: entries that a launch writes are nan in the tensors that it reads; it writes to new tensors.

    The interpreter runs one program after the other, so without this a race between programs would go unnoticed.
    """

    def __init__(self, spoil=lambda kernel, reads: None):
        self.launches, self.spoil = 0, spoil

    def __call__(self, kernel, grid, reads, writes, *sizes, **options):
        if not all(grid):
            return
        self.launches += 1
        poisoned = []
        for x in reads:
            poisoned.append(x)
            for target in writes:
                if x is target:
                    poisoned[-1] = x.masked_fill(
                        self.written(kernel, grid, reads, writes, target, sizes, options), torch.nan
                    )
        self.spoil(kernel, poisoned)
        results = [torch.full_like(x, NOT_WRITTEN) for x in writes]
        kernel[grid](*poisoned, *results, *sizes, **options)
        for x, result in zip(writes, results, strict=True):
            x.copy_(result.where(result != NOT_WRITTEN, x))

    @staticmethod
    def written(kernel, grid, reads, writes, target, sizes, options):
        """The entries of `target` that the launch writes: those that change for each of two initial values."""
        changed = []
        for value in (1e300, 2e300):
            scratch = [torch.full_like(x, value) for x in writes]
            kernel[grid](*(x.clone() for x in reads), *scratch, *sizes, **options)
            changed.append(next(s for s, x in zip(scratch, writes, strict=True) if x is target) != value)
        return changed[0] & changed[1]
