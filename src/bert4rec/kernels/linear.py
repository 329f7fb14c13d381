"""Affine maps whose parameters are float32 and whose input is narrower: their gradients are summed in float32."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.kernels.support import is_fused

Narrow = tuple[Tensor, Tensor]
"""Weight and bias in the dtype of the input."""


class Dense(nn.Linear):
    """An affine map that computes in the dtype of its input; the parameters stay as they are."""

    narrow: Narrow | None = None
    """The parameters in the dtype of activations, as long as `narrowed` lasts."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, self.narrow)

    def product(self, x: Tensor) -> Tensor:
        """Without the bias, for kernels that add it on their way."""
        return linear(x, self.weight, None, self.narrow)

    def split(self, *sizes: int) -> list[Callable[[Tensor], Tensor]]:
        """Maps to so many of the outputs each.

        Split at once: the gradient of a slice of the parameters is as large as they are, and mostly zeros.
        """
        weights, biases = self.weight.split(sizes), self.bias.split(sizes)
        narrow = (
            zip(*(each.split(sizes) for each in self.narrow), strict=True)
            if self.narrow
            else [None] * len(sizes)
        )
        return [
            partial(linear, weight=weight, bias=bias, narrow=each)
            for weight, bias, each in zip(weights, biases, narrow, strict=True)
        ]


@contextmanager
def narrowed(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Meanwhile the maps of a model have their parameters in `dtype` at hand, all copied by one kernel."""
    maps = [each for each in model.modules() if isinstance(each, Dense)]
    wide = [parameter for each in maps for parameter in (each.weight, each.bias)]
    if dtype is None or not all(is_fused(each) and each.dtype != dtype for each in wide):
        yield
        return
    narrow = [torch.empty_like(each, dtype=dtype, requires_grad=False) for each in wide]
    with torch.no_grad():
        torch._foreach_copy_(narrow, wide)
    try:
        for each, weight, bias in zip(maps, narrow[::2], narrow[1::2], strict=True):
            each.narrow = weight, bias
        yield
    finally:
        for each in maps:
            each.narrow = None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, narrow: Narrow | None = None) -> Tensor:
    """x [..., I] times weight [O, I] plus bias [O], in the dtype of x."""
    if is_fused(x) and x.dtype != weight.dtype:
        narrow_weight, narrow_bias = narrow or (
            weight.to(x.dtype),
            None if bias is None else bias.to(x.dtype),
        )
        mapped: Tensor = _Linear.apply(x, weight, bias, narrow_weight.detach(), narrow_bias)  # type: ignore[no-untyped-call]
        return mapped
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,  # noqa: ARG004
        bias: Tensor | None,
        narrow_weight: Tensor,
        narrow_bias: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(x, narrow_weight)
        ctx.has_bias = bias is not None
        return F.linear(x, narrow_weight, narrow_bias if ctx.has_bias else None)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from bert4rec.kernels.gpu.linear_triton import column_sums

        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2).contiguous()
        of_weight = torch.mm(rows.T, x.flatten(0, -2), out_dtype=torch.float32)
        of_bias = column_sums(rows) if ctx.has_bias else None
        return (rows @ weight).view_as(x), of_weight, of_bias, None, None
