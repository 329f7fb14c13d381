"""Affine maps whose parameters are float32 and whose input is narrower: their gradients are summed in float32."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.kernels.support import is_fused, narrow_copy


class Dense(nn.Linear):
    """An affine map that computes in the dtype of its input; the parameters stay as they are."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def product(self, x: Tensor) -> Tensor:
        """Without the bias, for kernels that add it on their way."""
        return linear(x, self.weight, None)

    def beside(self, x: Tensor, *, has_bias: bool = True) -> tuple[Tensor, Tensor]:
        """What x is mapped to, and x itself for the `add_norm` at the end of the same sublayer.

        On the way back the product with the matrix is added to the gradient that comes from there, where it stands: to
        sum up two gradients would take a pass of its own. Whoever else reads this x must not give it a gradient that is
        needed again.
        """
        return linear_beside(x, self.weight, self.bias if has_bias else None)

    def split(self, *sizes: int) -> list[Callable[[Tensor], tuple[Tensor, Tensor]]]:
        """Maps to so many of the outputs each, which also give x back as `beside` does.

        Split at once: the gradient of a slice of the parameters is as large as they are, and mostly zeros.
        """
        weights, biases = self.weight.split(sizes), self.bias.split(sizes)

        def part(x: Tensor, number: int) -> tuple[Tensor, Tensor]:
            if not is_narrower(x, self.weight):
                return linear_beside(x, weights[number], biases[number])
            narrow = (narrow_copy(each, x.dtype).split(sizes)[number] for each in (self.weight, self.bias))
            return _narrow_linear(x, weights[number], biases[number], *narrow)

        return [partial(part, number=number) for number in range(len(sizes))]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., I] times weight [O, I] plus bias [O], in the dtype of x."""
    return linear_beside(x, weight, bias)[0]


def linear_beside(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same, and x: see `Dense.beside`."""
    if is_narrower(x, weight):
        narrow_bias = None if bias is None else narrow_copy(bias, x.dtype)
        return _narrow_linear(x, weight, bias, narrow_copy(weight, x.dtype), narrow_bias)
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype)), x


def wide_product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """left [M, K] times right [K, N], summed in a wider dtype than theirs. Only a GPU has that in one."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=dtype)
    return left.to(dtype) @ right.to(dtype)


def is_narrower(x: Tensor, weight: Tensor) -> bool:
    """Whether kernels compute with x in a narrower dtype than that of the parameters."""
    return is_fused(x) and x.dtype != weight.dtype


def _narrow_linear(x: Tensor, *parameters: Tensor | None) -> tuple[Tensor, Tensor]:
    beside: tuple[Tensor, Tensor] = _Linear.apply(x, *parameters)  # type: ignore[no-untyped-call]
    return beside


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,  # noqa: ARG004
        bias: Tensor | None,
        narrow_weight: Tensor,
        narrow_bias: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        from bert4rec.kernels.gpu.linear_triton import is_faster, mapped

        ctx.save_for_backward(x, narrow_weight)
        ctx.has_bias = bias is not None
        ctx.set_materialize_grads(False)
        if narrow_bias is not None and is_faster(x, narrow_weight):
            return mapped(x, narrow_weight, narrow_bias), x
        return F.linear(x, narrow_weight, narrow_bias), x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, of_x: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return of_x, None, None, None, None
        from bert4rec.kernels.gpu.linear_triton import column_sums, is_narrow, parameter_gradients

        x, weight = ctx.saved_tensors
        rows, flat = gradient.flatten(0, -2).contiguous(), x.flatten(0, -2)
        if is_narrow(weight):
            of_weight, of_bias = parameter_gradients(rows, flat.contiguous(), has_bias=ctx.has_bias)
        else:
            of_weight = wide_product(rows.T, flat, torch.float32)
            of_bias = column_sums(rows) if ctx.has_bias else None
        if of_x is None:
            of_x = (rows @ weight).view_as(x)
        else:
            of_x = of_x.contiguous()
            of_x.view(len(rows), -1).addmm_(rows, weight)
        return of_x, of_weight, of_bias, None, None
