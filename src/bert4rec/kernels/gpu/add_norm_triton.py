"""The kernels of `add_norm`. A program holds whole rows in registers; nothing but x and y is kept for the way back."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bert4rec.kernels.gpu.shared_triton import gelu, gelu_slope, kept, norm_gradient, normed, programs, tile


@triton.jit
def _with_bias(y, y_bias, place, column, inside, COLUMNS: tl.constexpr):
    value = tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
    return value + tl.load(y_bias + column, mask=column < COLUMNS, other=0.0)[None, :]


@triton.jit
def _before_norm(value, x, place, inside, seed, dropout, HAS_X: tl.constexpr, HAS_DROPOUT: tl.constexpr):
    """x plus what dropout leaves of the value; without x, its GELU."""
    if HAS_X:
        if HAS_DROPOUT:
            value *= kept(seed, place, dropout)
        result = value + tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    else:
        result = gelu(value)
    return result


@triton.jit
def _forward_kernel(
    x, y, y_bias, weight, bias, seed, out, num_rows, epsilon, dropout,
    COLUMNS: tl.constexpr, ROW_BLOCK: tl.constexpr, COLUMN_BLOCK: tl.constexpr,
    HAS_X: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    column = tl.arange(0, COLUMN_BLOCK)
    inside = (row[:, None] < num_rows) & (column[None, :] < COLUMNS)
    place = row[:, None].to(tl.int64) * COLUMNS + column[None, :]
    value = _with_bias(y, y_bias, place, column, inside, COLUMNS)
    total = _before_norm(value, x, place, inside, seed, dropout, HAS_X, HAS_DROPOUT)
    unit, _ = normed(total, inside, COLUMNS, epsilon)
    gain = tl.load(weight + column, mask=column < COLUMNS, other=0.0)
    offset = tl.load(bias + column, mask=column < COLUMNS, other=0.0)
    result = unit * gain[None, :] + offset[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward_kernel(
    gradient, x, y, y_bias, weight, seed, x_gradient, y_gradient, sums, num_rows, epsilon, dropout,
    COLUMNS: tl.constexpr, ROW_BLOCK: tl.constexpr, COLUMN_BLOCK: tl.constexpr,
    HAS_X: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLUMN_BLOCK)
    gain = tl.load(weight + column, mask=column < COLUMNS, other=0.0)
    y_sum = tl.zeros((COLUMN_BLOCK,), tl.float32)
    gain_sum = tl.zeros((COLUMN_BLOCK,), tl.float32)
    offset_sum = tl.zeros((COLUMN_BLOCK,), tl.float32)
    for start in range(tl.program_id(0) * ROW_BLOCK, num_rows, tl.num_programs(0) * ROW_BLOCK):
        row = start + tl.arange(0, ROW_BLOCK)
        inside = (row[:, None] < num_rows) & (column[None, :] < COLUMNS)
        place = row[:, None].to(tl.int64) * COLUMNS + column[None, :]
        value = _with_bias(y, y_bias, place, column, inside, COLUMNS)
        total = _before_norm(value, x, place, inside, seed, dropout, HAS_X, HAS_DROPOUT)
        unit, scale = normed(total, inside, COLUMNS, epsilon)
        above = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
        gain_sum += tl.sum(above * unit, axis=0)
        offset_sum += tl.sum(above, axis=0)
        below = tl.where(inside, norm_gradient(above, unit, scale, gain, COLUMNS), 0.0)
        if HAS_X:
            tl.store(x_gradient + place, below.to(x_gradient.dtype.element_ty), mask=inside)
            if HAS_DROPOUT:
                below *= kept(seed, place, dropout)
        else:
            below *= gelu_slope(value)
        if HAS_DROPOUT or not HAS_X:
            tl.store(y_gradient + place, below.to(y_gradient.dtype.element_ty), mask=inside)
        y_sum += tl.sum(below, axis=0)
    mine = sums + tl.program_id(0) * 3 * COLUMNS + column
    tl.store(mine, y_sum, mask=column < COLUMNS)
    tl.store(mine + COLUMNS, gain_sum, mask=column < COLUMNS)
    tl.store(mine + 2 * COLUMNS, offset_sum, mask=column < COLUMNS)


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
    _forward_kernel[(triton.cdiv(num_rows, rows),)](
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
    x_gradient = None if x is None else torch.empty_like(x)
    y_gradient = torch.empty_like(y) if dropout or x_gradient is None else x_gradient
    rows, block, warps = tile(columns)
    grid = programs(num_rows, rows)
    sums = torch.empty(grid, 3, columns, device=y.device)
    _backward_kernel[(grid,)](
        gradient, x, y, y_bias, weight, seed, x_gradient, y_gradient, sums, num_rows, epsilon, dropout,
        columns, rows, block, x is not None, dropout > 0, num_warps=warps,
    )  # fmt: skip
    return x_gradient, y_gradient, *sums.sum(dim=0)


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()
