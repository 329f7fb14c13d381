"""Queries, keys and values taken out of what one map has computed, and their gradients put back without a copy."""

from typing import Any

import torch
from torch import Tensor

from bert4rec.kernels.support import is_fused


def split_heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """x [..., parts * H * C] → so many parts [..., H, C]."""
    if is_fused(x):
        split: tuple[Tensor, ...] = _Split.apply(x, parts, heads)  # type: ignore[no-untyped-call]
        return split
    return plain_split(x, parts, heads)


def plain_split(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    split: tuple[Tensor, ...] = x.unflatten(-1, (parts, heads, -1)).unbind(-3)
    return split


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:  # noqa: ARG004
        return plain_split(x, parts, heads)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # noqa: ARG004
        return join_heads(gradients), None, None


def join_heads(gradients: tuple[Tensor, ...]) -> Tensor:
    """[..., parts * H * C] from so many gradients: as they lie there, where they lie side by side."""
    first, (heads, channels) = gradients[0], gradients[0].shape[-2:]
    width = heads * channels
    row = len(gradients) * width
    step = width * first.element_size()
    if all(
        each.data_ptr() == first.data_ptr() + number * step and each.stride() == (row, channels, 1)
        for number, each in enumerate(gradients)
    ):
        return first.as_strided((len(first), row), (row, 1))
    return torch.stack(gradients, dim=-3).flatten(-3)
