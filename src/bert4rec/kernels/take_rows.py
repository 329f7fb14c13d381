"""Rows of a tensor, of which no two are the same; so on the way back there is nothing to be summed."""

from typing import Any

import torch
from torch import Tensor

from bert4rec.kernels.support import is_fused


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x [T, D] at the rows [R]. A row may be taken twice only if nothing depends on it, so that its gradient is 0."""
    if is_fused(x) and x.requires_grad:
        taken: Tensor = _TakeRows.apply(x, rows)  # type: ignore[no-untyped-call]
        return taken
    return x[rows]


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.num_rows = len(x)
        return x.index_select(0, rows)  # An index in brackets is made int64 first.

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.num_rows, gradient.shape[1]).index_copy_(0, rows.long(), gradient), None
