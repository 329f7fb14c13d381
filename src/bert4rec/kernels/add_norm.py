"""Maps that end in a norm: bias, dropout or activation, sum and norm in one pass over memory."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.kernels.linear import Dense
from bert4rec.kernels.support import added_dropped, draw_seed, is_fused


def add_norm(x: Tensor, y: Tensor, dense: nn.Module, norm: nn.Module, dropout: float) -> Tensor:
    """LN(x + Dropout(map(y))), the end of every sublayer, computed in the dtype of the norm's weights."""
    if is_fused(x) and isinstance(dense, Dense) and isinstance(norm, nn.LayerNorm):
        return _normed(x, y, dense, norm, dropout)
    return plain_add_norm(x, dense(y), norm, dropout)


def gelu_norm(y: Tensor, dense: Dense, norm: nn.LayerNorm) -> Tensor:
    """LN(GELU(map(y))), computed in the same way."""
    if is_fused(y):
        return _normed(None, y, dense, norm, 0.0)
    normed: Tensor = norm(F.gelu(dense(y)))
    return normed


def _normed(x: Tensor | None, y: Tensor, dense: Dense, norm: nn.LayerNorm, dropout: float) -> Tensor:
    parameters = dense.bias, norm.weight, norm.bias, norm.eps
    normed: Tensor = _AddNorm.apply(x, dense.product(y), *parameters, dropout)  # type: ignore[no-untyped-call]
    return normed


def plain_add_norm(x: Tensor, y: Tensor, norm: nn.Module, dropout: float) -> Tensor:
    normed: Tensor = norm(added_dropped(x, y, dropout))
    return normed


class _AddNorm(torch.autograd.Function):
    """Without x, y is not dropped but activated."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor | None,
        y: Tensor,
        y_bias: Tensor,
        weight: Tensor,
        bias: Tensor,
        epsilon: float,
        dropout: float,
    ) -> Tensor:
        from bert4rec.kernels.gpu import add_norm_triton as kernels

        seed = draw_seed(y.device)
        ctx.save_for_backward(x, y, y_bias, weight, seed)
        ctx.settings = epsilon, dropout
        return kernels.forward(x, y, y_bias, weight, bias, seed, epsilon, dropout)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from bert4rec.kernels.gpu import add_norm_triton as kernels

        found = kernels.backward(gradient, *ctx.saved_tensors, *ctx.settings)
        return (*found, None, None)
