"""The middle of a feed-forward network: what follows its first map, together with the bias of that map."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.kernels.linear import Dense
from bert4rec.kernels.support import is_eager, is_fused


def gelu(x: Tensor, dense: nn.Module) -> Tensor:
    """GELU of the map of x: the exact one, not its approximation by tanh."""
    if is_fused(x) and isinstance(dense, Dense):
        return _activated(x, dense, has_gate=False)
    return plain_gelu(dense(x))


def gated(x: Tensor, dense: nn.Module) -> Tensor:
    """[..., I] of the map [..., 2 I] of x: SiLU(one half) decides how much of the other passes (Shazeer, 2020)."""
    if is_fused(x) and isinstance(dense, Dense):
        return _activated(x, dense, has_gate=True)
    if is_eager():
        passed: Tensor = _GateByTorch.apply(dense(x))  # type: ignore[no-untyped-call]
        return passed
    return plain_gated(dense(x))


def plain_gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def plain_gated(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


def _activated(x: Tensor, dense: Dense, *, has_gate: bool) -> Tensor:
    activated: Tensor = _Activate.apply(dense.product(x), dense.bias, has_gate)  # type: ignore[no-untyped-call]
    return activated


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
