"""SiLU(gate) * value, the middle of a gated feed-forward network (Shazeer, 2020)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.kernels.support import is_eager, is_fused


def gated(x: Tensor) -> Tensor:
    """[..., 2 I] → [..., I]: the first half of x decides how much of the second passes."""
    if is_fused(x) or is_eager():
        passed: Tensor = _Gated.apply(x)  # type: ignore[no-untyped-call]
        return passed
    return plain_gated(x)


def plain_gated(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


def _plain_backward(gradient: Tensor, x: Tensor) -> Tensor:
    """Of both halves, into one tensor."""
    gate, value = x.chunk(2, dim=-1)
    found = torch.empty_like(x)
    of_gate, of_value = found.chunk(2, dim=-1)
    torch.mul(gradient, F.silu(gate), out=of_value)
    torch.mul(torch.ops.aten.silu_backward(value, gate), gradient, out=of_gate)
    return found


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        if not is_fused(x):
            gate, value = x.chunk(2, dim=-1)
            return F.silu(gate).mul_(value)
        from bert4rec.kernels import gate_triton

        return gate_triton.forward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if not is_fused(x):
            return _plain_backward(gradient, x)
        from bert4rec.kernels import gate_triton

        return gate_triton.backward(gradient, x)
