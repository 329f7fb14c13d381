"""Queries and keys turned by their positions (Su et al., 2021)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.kernels.support import is_eager, is_fused


def turned(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., H, C] with channel i and channel i + C / 2 turned together.

    The angle of a token has its cosine and sine in row `positions` of the tables [N, C / 2].
    """
    if is_fused(x) or is_eager():
        result: Tensor = _Turned.apply(x, positions, cos, sin)  # type: ignore[no-untyped-call]
        return result
    return plain_turned(x, positions, cos, sin)


def plain_turned(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = (table[positions][..., None, :].to(x.dtype) for table in (cos, sin))
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def _turn(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, sign: float) -> Tensor:
    """Forwards with a sign of 1, back with -1."""
    if not is_fused(x):
        # As few passes as it takes: both halves at once, over all heads, without broadcasting.
        (left, right), heads = x.chunk(2, dim=-1), x.shape[-2]
        tables = torch.cat([cos, cos] * heads, dim=-1), torch.cat([-sign * sin, sign * sin] * heads, dim=-1)
        cos, sin = (F.embedding(positions, table.to(x.dtype)).view(x.shape) for table in tables)
        return torch.cat([right, left], dim=-1).mul_(sin).addcmul_(x, cos)
    from bert4rec.kernels.gpu.rotary_triton import turn

    # Back where it is: attention has made this gradient for nobody else, and left it beside that of the values.
    return turn(x, positions, cos, sin, sign, in_place=sign < 0)


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(positions, cos, sin)
        return _turn(x, positions, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        positions, cos, sin = ctx.saved_tensors
        return _turn(gradient, positions, cos, sin, -1.0), None, None, None
