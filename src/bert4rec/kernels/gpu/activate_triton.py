"""The kernels of `activate`. On the way back, a program also sums up the gradient of the bias over its rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bert4rec.kernels.gpu.launch_triton import Kernel
from bert4rec.kernels.gpu.shared_triton import BUSY, gelu, gelu_slope, sigmoid
from bert4rec.kernels.support import sums

ROWS, COLUMNS, BLOCK = 8, 128, 2048


@triton.jit
def _with_bias(x, bias, place, column, inside):
    offset = tl.load(bias + column, mask=inside, other=0.0)
    return tl.load(x + place, mask=inside, other=0.0).to(tl.float32) + offset


@Kernel
def _activate_forward_kernel(
    x, bias, out, size, WIDTH: tl.constexpr, HAS_GATE: tl.constexpr, BLOCK: tl.constexpr
):
    """`WIDTH` is that of the output."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside, column = place < size, place % WIDTH
    if HAS_GATE:
        at_gate = place + place // WIDTH * WIDTH
        gate = _with_bias(x, bias, at_gate, column, inside)
        value = _with_bias(x, bias, at_gate + WIDTH, column + WIDTH, inside)
        result = gate * sigmoid(gate) * value
    else:
        result = gelu(_with_bias(x, bias, place, column, inside))
    tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


@Kernel
def _activate_backward_kernel(
    gradient, x, bias, x_gradient, bias_gradient, num_rows, WIDTH: tl.constexpr, HAS_GATE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    value_total = tl.zeros((ROWS, COLUMNS), tl.float32)
    read_width: tl.constexpr = WIDTH * 2 if HAS_GATE else WIDTH
    for start in range(tl.program_id(1) * ROWS, num_rows, tl.num_programs(1) * ROWS):
        row = (start + tl.arange(0, ROWS))[:, None].to(tl.int64)
        inside = (row < num_rows) & (column[None, :] < WIDTH)
        above = tl.load(gradient + row * WIDTH + column[None, :], mask=inside, other=0.0).to(tl.float32)
        place = row * read_width + column[None, :]
        read = _with_bias(x, bias, place, column[None, :], inside)
        if HAS_GATE:
            value = _with_bias(x, bias, place + WIDTH, column[None, :] + WIDTH, inside)
            share = sigmoid(read)
            of_value = above * read * share
            below = above * value * share * (1.0 + read * (1.0 - share))
            tl.store(x_gradient + place + WIDTH, of_value.to(x_gradient.dtype.element_ty), mask=inside)
            value_total += of_value
        else:
            below = above * gelu_slope(read)
        tl.store(x_gradient + place, below.to(x_gradient.dtype.element_ty), mask=inside)
        total += below
    mine, is_mine = bias_gradient + column, column < WIDTH
    tl.atomic_add(mine, tl.sum(total, axis=0), mask=is_mine, sem="relaxed")
    if HAS_GATE:
        tl.atomic_add(mine + WIDTH, tl.sum(value_total, axis=0), mask=is_mine, sem="relaxed")


def forward(x: Tensor, bias: Tensor, *, has_gate: bool) -> Tensor:
    x, width = x.contiguous(), x.shape[-1] // (1 + has_gate)
    out = x.new_empty(*x.shape[:-1], width)
    _activate_forward_kernel[(triton.cdiv(out.numel(), BLOCK),)](
        x, bias, out, out.numel(), width, has_gate, BLOCK
    )
    return out


def backward(gradient: Tensor, x: Tensor, bias: Tensor, *, has_gate: bool) -> tuple[Tensor, Tensor]:
    """Of x and of the bias."""
    x, gradient, width = x.contiguous(), gradient.contiguous(), gradient.shape[-1]
    num_rows, blocks = gradient.numel() // width, triton.cdiv(width, COLUMNS)
    parts = max(1, min(triton.cdiv(num_rows, ROWS), BUSY * 2 // blocks))
    x_gradient, bias_gradient = torch.empty_like(x), sums(x.device, x.shape[-1])
    _activate_backward_kernel[(blocks, parts)](
        gradient, x, bias, x_gradient, bias_gradient, num_rows, width, has_gate, ROWS, COLUMNS
    )
    return x_gradient, bias_gradient
