"""LN(x + Dropout(y)), the end of every sublayer, in one pass: the sum and the dropped y never reach memory."""

from typing import Any

import torch
from torch import Tensor, nn

from bert4rec.kernels.support import added_dropped, draw_seed, is_fused


def add_norm(x: Tensor, y: Tensor, norm: nn.Module, dropout: float) -> Tensor:
    """The norm of x plus what dropout leaves of y, computed in the dtype of the norm's weights."""
    if is_fused(x) and isinstance(norm, nn.LayerNorm):
        normed: Tensor = _AddNorm.apply(x, y, norm.weight, norm.bias, norm.eps, dropout)  # type: ignore[no-untyped-call]
        return normed
    return plain_add_norm(x, y, norm, dropout)


def plain_add_norm(x: Tensor, y: Tensor, norm: nn.Module, dropout: float) -> Tensor:
    normed: Tensor = norm(added_dropped(x, y, dropout))
    return normed


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dropout: float
    ) -> Tensor:
        from bert4rec.kernels import add_norm_triton

        seed = draw_seed(x.device)
        ctx.save_for_backward(x, y, weight, seed)
        ctx.epsilon, ctx.dropout = epsilon, dropout
        return add_norm_triton.forward(x, y, weight, bias, seed, epsilon, dropout)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from bert4rec.kernels import add_norm_triton

        x, y, weight, seed = ctx.saved_tensors
        found = add_norm_triton.backward(gradient, x, y, weight, seed, ctx.epsilon, ctx.dropout)
        return (*found, None, None)
