"""The kernels of `add_norm`. A program holds whole rows in registers; nothing but x and y is kept for the way back."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bert4rec.kernels.gpu.launch_triton import Kernel
from bert4rec.kernels.gpu.shared_triton import (
    gelu,
    gelu_slope,
    kept,
    norm_gradient,
    normed,
    programs,
    tile,
)
from bert4rec.kernels.support import sums


@triton.jit
def _read(x, place, inside):
    return tl.load(x + place, mask=inside, other=0.0).to(tl.float32)


@Kernel
def _add_norm_forward_kernel(
    x, y, y_bias, weight, bias, seed, out, num_rows, epsilon, dropout,
    COLUMNS: tl.constexpr, ROW_BLOCK: tl.constexpr, COLUMN_BLOCK: tl.constexpr,
    HAS_X: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    column = tl.arange(0, COLUMN_BLOCK)
    inside = (row[:, None] < num_rows) & (column[None, :] < COLUMNS)
    place = row[:, None].to(tl.int64) * COLUMNS + column[None, :]
    value = _read(y, place, inside) + tl.load(y_bias + column, mask=column < COLUMNS, other=0.0)[None, :]
    if HAS_X:
        if HAS_DROPOUT:
            value *= kept(seed, place, dropout)
        total = value + _read(x, place, inside)
    else:
        total = gelu(value)
    unit, _ = normed(total, inside, COLUMNS, epsilon)
    gain = tl.load(weight + column, mask=column < COLUMNS, other=0.0)
    offset = tl.load(bias + column, mask=column < COLUMNS, other=0.0)
    result = unit * gain[None, :] + offset[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


@Kernel
def _add_norm_backward_kernel(
    gradient, x, y, y_bias, weight, seed, x_gradient, y_gradient,
    y_bias_gradient, weight_gradient, bias_gradient, num_rows, epsilon, dropout,
    COLUMNS: tl.constexpr, ROW_BLOCK: tl.constexpr, COLUMN_BLOCK: tl.constexpr,
    HAS_X: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLUMN_BLOCK)
    gain = tl.load(weight + column, mask=column < COLUMNS, other=0.0)
    offset = tl.load(y_bias + column, mask=column < COLUMNS, other=0.0)
    y_sum = tl.zeros((ROW_BLOCK, COLUMN_BLOCK), tl.float32)
    gain_sum = tl.zeros((ROW_BLOCK, COLUMN_BLOCK), tl.float32)
    offset_sum = tl.zeros((ROW_BLOCK, COLUMN_BLOCK), tl.float32)
    for start in range(tl.program_id(0) * ROW_BLOCK, num_rows, tl.num_programs(0) * ROW_BLOCK):
        row = start + tl.arange(0, ROW_BLOCK)
        inside = (row[:, None] < num_rows) & (column[None, :] < COLUMNS)
        place = row[:, None].to(tl.int64) * COLUMNS + column[None, :]
        # All that is read is asked for before anything waits for it.
        above = _read(gradient, place, inside)
        value = _read(y, place, inside)
        if HAS_X:
            added = _read(x, place, inside)
            value += offset[None, :]
            if HAS_DROPOUT:
                factor = kept(seed, place, dropout)
                value *= factor
            total = value + added
        else:
            value += offset[None, :]
            total = gelu(value)
        unit, scale = normed(total, inside, COLUMNS, epsilon)
        gain_sum += above * unit
        offset_sum += above
        below = tl.where(inside, norm_gradient(above, unit, scale, gain, COLUMNS), 0.0)
        if HAS_X:
            tl.store(x_gradient + place, below.to(x_gradient.dtype.element_ty), mask=inside)
            if HAS_DROPOUT:
                below *= factor
        else:
            below *= gelu_slope(value)
        tl.store(y_gradient + place, below.to(y_gradient.dtype.element_ty), mask=inside)
        y_sum += below
    tl.atomic_add(y_bias_gradient + column, tl.sum(y_sum, axis=0), mask=column < COLUMNS, sem="relaxed")
    tl.atomic_add(weight_gradient + column, tl.sum(gain_sum, axis=0), mask=column < COLUMNS, sem="relaxed")
    tl.atomic_add(bias_gradient + column, tl.sum(offset_sum, axis=0), mask=column < COLUMNS, sem="relaxed")


def forward(
    x: Tensor | None,
    y: Tensor,
    y_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    seed: Tensor,
    epsilon: float,
    dropout: float,
) -> Tensor:
    x, y, columns = _contiguous(x), y.contiguous(), y.shape[-1]
    out, num_rows = torch.empty_like(y), y.numel() // columns
    rows, block, warps = tile(columns)
    _add_norm_forward_kernel[(triton.cdiv(num_rows, rows),)](
        x, y, y_bias, weight, bias, seed, out, num_rows, epsilon, dropout,
        columns, rows, block, x is not None, dropout > 0, num_warps=warps,
    )  # fmt: skip
    return out


def backward(
    gradient: Tensor,
    x: Tensor | None,
    y: Tensor,
    y_bias: Tensor,
    weight: Tensor,
    seed: Tensor,
    epsilon: float,
    dropout: float,
) -> tuple[Tensor | None, ...]:
    """Of x, y, the bias of y, weight and bias."""
    x, y, gradient, columns = _contiguous(x), y.contiguous(), gradient.contiguous(), y.shape[-1]
    num_rows = y.numel() // columns
    # In memory of their own, even where they are the same: somebody may add to one of them.
    x_gradient, y_gradient = None if x is None else torch.empty_like(x), torch.empty_like(y)
    rows, block, warps = tile(columns)
    of_parameters = [sums(y.device, columns) for _ in range(3)]
    _add_norm_backward_kernel[(programs(num_rows, rows),)](
        gradient, x, y, y_bias, weight, seed, x_gradient, y_gradient, *of_parameters, num_rows, epsilon, dropout,
        columns, rows, block, x is not None, dropout > 0, num_warps=warps,
    )  # fmt: skip
    return x_gradient, y_gradient, *of_parameters


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()
