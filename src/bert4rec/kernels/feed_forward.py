"""The feed-forward half of a layer in few passes over memory, where its matrices fit into a GPU's multiprocessor."""

from typing import Any

import torch
from torch import Tensor, nn

from bert4rec.kernels.activate import activated
from bert4rec.kernels.add_norm import add_norm
from bert4rec.kernels.linear import Dense, is_narrower
from bert4rec.kernels.support import draw_seed, narrow_copy

MOST_CHANNELS = 64
"""Of a network that is narrow. Others are bound by their products, at which libraries are better."""


def feed_forward(
    x: Tensor, widen: nn.Module, narrow: nn.Module, norm: nn.Module, *, has_gate: bool, dropout: float
) -> Tensor:
    """LN(x + Dropout(second map(activation(first map(x))))), computed in the dtype of the norm's weights."""
    if (
        isinstance(widen, Dense)
        and isinstance(narrow, Dense)
        and isinstance(norm, nn.LayerNorm)
        and is_narrower(x, widen.weight)
        and x.shape[-1] <= MOST_CHANNELS
    ):
        parameters = widen.weight, widen.bias, narrow.weight, narrow.bias, norm.weight, norm.bias
        copies = narrow_copy(widen.weight, x.dtype), narrow_copy(narrow.weight, x.dtype)
        found: Tensor = _FeedForward.apply(  # type: ignore[no-untyped-call]
            x, *parameters, *copies, norm.eps, dropout, has_gate
        )
        return found
    wide, x = activated(x, widen, has_gate=has_gate)
    return add_norm(x, wide, narrow, norm, dropout)


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        widen: Tensor,  # noqa: ARG004
        widen_bias: Tensor,
        narrow: Tensor,  # noqa: ARG004
        narrow_bias: Tensor,
        weight: Tensor,
        bias: Tensor,
        widen_copy: Tensor,
        narrow_copy: Tensor,
        epsilon: float,
        dropout: float,
        has_gate: bool,
    ) -> Tensor:
        from bert4rec.kernels.gpu import feed_forward_triton as kernels

        x, seed = x.contiguous(), draw_seed(x.device)
        maps = widen_copy, widen_bias, narrow_copy, narrow_bias
        out, y = kernels.forward(x, maps, weight, bias, seed, epsilon, dropout, has_gate=has_gate)
        ctx.save_for_backward(x, y, *maps, weight, seed)
        ctx.settings, ctx.has_gate = (epsilon, dropout), has_gate
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from bert4rec.kernels.gpu import feed_forward_triton as kernels

        x, y, *maps, weight, seed = ctx.saved_tensors
        found = kernels.backward(
            gradient.contiguous(), x, y, tuple(maps), weight, seed, *ctx.settings, has_gate=ctx.has_gate
        )
        return (*found, None, None, None, None, None)
