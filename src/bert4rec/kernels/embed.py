"""Tokens looked up, normed and dropped: what enters the first layer, in one pass."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.kernels.support import begun_gradient, draw_seed, dropped, is_fused


def embed(
    tokens: Tensor,
    table: Tensor,
    norm: nn.Module,
    *,
    dropout: float,
    dtype: torch.dtype | None,
    positions: Tensor | None = None,
    position_table: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Dropout(LN(scale * table[tokens] + position_table[positions])), in `dtype` or, without one, in that of the table.

    It is computed in the dtype of the table in any case.
    """
    dtype = dtype or table.dtype
    if is_fused(table) and isinstance(norm, nn.LayerNorm):
        positions = None if positions is None else positions.expand_as(tokens).contiguous()
        embedded: Tensor = _Embed.apply(  # type: ignore[no-untyped-call]
            tokens, table, positions, position_table, norm.weight, norm.bias, norm.eps, dropout, dtype, scale
        )
        return embedded
    x = plain_lookup(tokens, table, positions, position_table, scale)
    return dropped(norm(x).to(dtype), dropout)


def plain_lookup(
    tokens: Tensor, table: Tensor, positions: Tensor | None, position_table: Tensor | None, scale: float
) -> Tensor:
    x = F.embedding(tokens, table)
    if scale != 1:
        x = x * scale
    if positions is not None and position_table is not None:
        x = x + F.embedding(positions, position_table)
    return x


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        table: Tensor,
        positions: Tensor | None,
        position_table: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        epsilon: float,
        dropout: float,
        dtype: torch.dtype,
        scale: float,
    ) -> Tensor:
        from bert4rec.kernels.gpu import embed_triton as kernels

        seed = draw_seed(table.device)
        ctx.save_for_backward(tokens, table, positions, position_table, weight, seed)
        ctx.settings = epsilon, dropout, scale
        parameters = weight, bias, seed, epsilon, dropout, scale
        return kernels.forward(tokens, table, positions, position_table, *parameters, dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from bert4rec.kernels.gpu import embed_triton as kernels

        begun = begun_gradient(ctx.saved_tensors[1])
        of_table, of_positions, of_weight, of_bias = kernels.backward(
            gradient, begun, *ctx.saved_tensors, *ctx.settings
        )
        returned = of_table if begun is None else None
        return None, returned, None, of_positions, of_weight, of_bias, None, None, None, None
