"""An affine map whose parameters are float32 and whose input is narrower: their gradients are summed in float32."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.kernels.support import is_fused


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [..., I] times weight [O, I] plus bias [O], in the dtype of x."""
    if is_fused(x) and x.dtype != weight.dtype:
        mapped: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return mapped
    return F.linear(x, weight.to(x.dtype), bias.to(x.dtype))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        narrow = weight.to(x.dtype)
        ctx.save_for_backward(x, narrow)
        return F.linear(x, narrow, bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from bert4rec.kernels.linear_triton import column_sums

        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2).contiguous()
        of_weight = torch.mm(rows.T, x.flatten(0, -2), out_dtype=torch.float32)
        return gradient @ weight, of_weight, column_sums(rows)
