"""Dropout modules: alone, with a residual addition, and after a ReLU. The functions are in `ops/dropout.py`."""

from __future__ import annotations

from torch import Tensor, nn

from ..ops.dropout import dropout


class Dropout(nn.Dropout):
    """dropout(x)"""

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return dropout(x, self.p) if self.training else x


class ResidualDropout(nn.Dropout):
    """residual + dropout(x)"""

    def forward(self, residual: Tensor, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return dropout(x, self.p, residual=residual) if self.training else residual + x


class ReLUDropout(nn.Dropout):
    """dropout(relu(x))"""

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return dropout(x, self.p, relu=True) if self.training else x.relu()
