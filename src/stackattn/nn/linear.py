"""Linear layer that uses oneDNN where that is faster. The function is in `ops/linear.py`."""

from __future__ import annotations

from torch import Tensor, nn

from ..ops.linear import linear


class Linear(nn.Linear):
    """(..., in_features) -> (..., out_features)"""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)
