"""The middle of a feed-forward network: what follows its first map, together with the bias of that map."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.kernels.linear import Dense
from bert4rec.kernels.support import is_eager, is_fused


def activated(x: Tensor, dense: nn.Module, *, has_gate: bool) -> tuple[Tensor, Tensor]:
    """GELU of the map of x or, with a gate, what that lets pass; and x, as `Dense.beside` gives it back."""
    if is_fused(x) and isinstance(dense, Dense):
        product, x = dense.beside(x, has_bias=False)
        found: Tensor = _Activate.apply(product, dense.bias, has_gate)  # type: ignore[no-untyped-call]
    elif has_gate and is_eager():
        found = _GateByTorch.apply(dense(x))  # type: ignore[no-untyped-call]
    else:
        found = (plain_gated if has_gate else plain_gelu)(dense(x))
    return found, x


def plain_gelu(x: Tensor) -> Tensor:
    """The exact one, not its approximation by tanh."""
    return F.gelu(x)


def plain_gated(x: Tensor) -> Tensor:
    """[..., I] of [..., 2 I]: SiLU(one half) decides how much of the other passes (Shazeer, 2020)."""
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


class _GateByTorch(torch.autograd.Function):
    """`plain_gated` with fewer passes over memory, forth and back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate).mul_(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate, value = x.chunk(2, dim=-1)
        found = torch.empty_like(x)
        of_gate, of_value = found.chunk(2, dim=-1)
        torch.mul(gradient, F.silu(gate), out=of_value)
        torch.mul(torch.ops.aten.silu_backward(value, gate), gradient, out=of_gate)
        return found


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, has_gate: bool) -> Tensor:
        from bert4rec.kernels.gpu import activate_triton as kernels

        ctx.save_for_backward(x, bias)
        ctx.has_gate = has_gate
        return kernels.forward(x, bias, has_gate=has_gate)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from bert4rec.kernels.gpu import activate_triton as kernels

        return *kernels.backward(gradient, *ctx.saved_tensors, has_gate=ctx.has_gate), None
