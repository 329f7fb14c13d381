"""SiLU(gate) * value, the middle of a gated feed-forward network (Shazeer, 2020)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.kernels.support import is_fused


def gated(x: Tensor) -> Tensor:
    """[..., 2 I] → [..., I]: the first half of x decides how much of the second passes."""
    if is_fused(x):
        passed: Tensor = _Gated.apply(x)  # type: ignore[no-untyped-call]
        return passed
    return plain_gated(x)


def plain_gated(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        from bert4rec.kernels import gate_triton

        ctx.save_for_backward(x)
        return gate_triton.forward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        from bert4rec.kernels import gate_triton

        return gate_triton.backward(gradient, *ctx.saved_tensors)
