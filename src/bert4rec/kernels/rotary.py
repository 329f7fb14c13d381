"""Queries and keys turned by their positions (Su et al., 2021)."""

from typing import Any

import torch
from torch import Tensor

from bert4rec.kernels.support import is_fused


def turned(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., H, C] with channel i and channel i + C / 2 turned together.

    The angle of a token has its cosine and sine in row `positions` of the tables [N, C / 2].
    """
    if is_fused(x):
        result: Tensor = _Turned.apply(x, positions, cos, sin)  # type: ignore[no-untyped-call]
        return result
    return plain_turned(x, positions, cos, sin)


def plain_turned(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = (table[positions][..., None, :].to(x.dtype) for table in (cos, sin))
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        from bert4rec.kernels.gpu import rotary_triton as kernels

        ctx.save_for_backward(positions, cos, sin)
        return kernels.turn(x, positions, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from bert4rec.kernels.gpu import rotary_triton as kernels

        positions, cos, sin = ctx.saved_tensors
        # Where it is: attention has made this gradient for nobody else, and left it beside that of the values.
        return kernels.turn(gradient, positions, cos, sin, -1.0, in_place=True), None, None, None
