"""The kernels of `feed_forward`: the wide layer is computed block by block, and again on the way back.

Forth, and back to the input, a program takes some rows through the whole network. Back to the parameters, a program
takes one block of the wide layer and a part of the rows; what it multiplies is laid out the other way round, wide
layer first, because only the left factor of a product can be what was just computed.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bert4rec.kernels.gpu.launch_triton import Kernel
from bert4rec.kernels.gpu.shared_triton import BUSY, kept, norm_gradient, normal, normed, sigmoid
from bert4rec.kernels.support import sums

ROWS, WIDE = 64, 64
"""Rows and channels of the wide layer that a program takes at once."""
MANY_ROWS = 132 * ROWS
"""A block for each multiprocessor of a large GPU. Of fewer rows, more programs take half as many."""


@triton.jit
def _tile(x, row, column, num_rows, num_columns):
    """Zeros where there is nothing."""
    inside = (row[:, None] < num_rows) & (column[None, :] < num_columns)
    return tl.load(x + row[:, None].to(tl.int64) * num_columns + column[None, :], mask=inside, other=0.0)


@triton.jit
def _block(widen, bias, wide, channel, DIM: tl.constexpr, WIDTH: tl.constexpr):
    """The rows of the first map that make this block of the wide layer, and their bias."""
    offset = tl.load(bias + wide, mask=wide < WIDTH, other=0.0)
    return _tile(widen, wide, channel, WIDTH, DIM), offset


@triton.jit
def _activated(x, passed, HAS_GATE: tl.constexpr):
    """What comes out, and its slopes by x and by what a gate lets pass."""
    if HAS_GATE:
        share = sigmoid(x)
        gate = x * share
        out, slope, passed_slope = gate * passed, passed * share * (1.0 + x * (1.0 - share)), gate
    else:
        share, density = normal(x)
        out, slope, passed_slope = x * share, share + x * density, x
    return out, slope, passed_slope


@Kernel
def _feed_forward_kernel(
    x, widen, widen_bias, narrow, narrow_bias, weight, bias, seed, y, out, num_rows, epsilon, dropout,
    DIM: tl.constexpr, DIM_BLOCK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    HAS_GATE: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    row, channel = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM_BLOCK)
    inside = (row[:, None] < num_rows) & (channel[None, :] < DIM)
    place = row[:, None].to(tl.int64) * DIM + channel[None, :]
    read = tl.load(x + place, mask=inside, other=0.0)
    narrowed = tl.zeros((ROWS, DIM_BLOCK), tl.float32)
    for start in range(0, WIDTH, WIDE):
        wide = start + tl.arange(0, WIDE)
        matrix, offset = _block(widen, widen_bias, wide, channel, DIM, WIDTH)
        first = tl.dot(read, tl.trans(matrix), input_precision="ieee") + offset[None, :]
        passed = first
        if HAS_GATE:
            matrix, offset = _block(widen + WIDTH * DIM, widen_bias + WIDTH, wide, channel, DIM, WIDTH)
            passed = tl.dot(read, tl.trans(matrix), input_precision="ieee") + offset[None, :]
        activated, _, _ = _activated(first, passed, HAS_GATE)
        back = tl.trans(_tile(narrow, channel, wide, DIM, WIDTH))
        narrowed = tl.dot(activated.to(read.dtype), back, narrowed, input_precision="ieee")
    kept_y = narrowed.to(y.dtype.element_ty)
    tl.store(y + place, kept_y, mask=inside)
    # As it is read on the way back.
    value = kept_y.to(tl.float32) + tl.load(narrow_bias + channel, mask=channel < DIM, other=0.0)[None, :]
    if HAS_DROPOUT:
        value *= kept(seed, place, dropout)
    unit, _ = normed(value + read.to(tl.float32), inside, DIM, epsilon)
    gain = tl.load(weight + channel, mask=channel < DIM, other=0.0)
    offset = tl.load(bias + channel, mask=channel < DIM, other=0.0)
    tl.store(out + place, (unit * gain[None, :] + offset[None, :]).to(out.dtype.element_ty), mask=inside)


@Kernel
def _input_gradient_kernel(
    gradient, x, y, widen, widen_bias, narrow, narrow_bias, weight, seed,
    x_gradient, y_gradient, narrow_bias_gradient, weight_gradient, bias_gradient, num_rows, epsilon, dropout,
    DIM: tl.constexpr, DIM_BLOCK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    HAS_GATE: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    """Back through norm, dropout and both maps. What follows the second map is left for the parameters' kernel."""
    row, channel = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM_BLOCK)
    is_channel = channel < DIM
    inside = (row[:, None] < num_rows) & is_channel[None, :]
    place = row[:, None].to(tl.int64) * DIM + channel[None, :]
    # All that is read is asked for before anything waits for it.
    above = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    read = tl.load(x + place, mask=inside, other=0.0)
    value = tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(narrow_bias + channel, mask=is_channel, other=0.0)[None, :]
    factor = tl.full((ROWS, DIM_BLOCK), 1.0, tl.float32)
    if HAS_DROPOUT:
        factor = kept(seed, place, dropout)
    unit, scale = normed(value * factor + read.to(tl.float32), inside, DIM, epsilon)
    gain = tl.load(weight + channel, mask=is_channel, other=0.0)
    tl.atomic_add(weight_gradient + channel, tl.sum(above * unit, axis=0), mask=is_channel, sem="relaxed")
    tl.atomic_add(bias_gradient + channel, tl.sum(above, axis=0), mask=is_channel, sem="relaxed")
    below = tl.where(inside, norm_gradient(above, unit, scale, gain, DIM), 0.0)
    of_y = below * factor
    tl.atomic_add(narrow_bias_gradient + channel, tl.sum(of_y, axis=0), mask=is_channel, sem="relaxed")
    narrowed = of_y.to(read.dtype)
    tl.store(y_gradient + place, narrowed, mask=inside)
    for start in range(0, WIDTH, WIDE):
        wide = start + tl.arange(0, WIDE)
        of_wide = tl.dot(narrowed, _tile(narrow, channel, wide, DIM, WIDTH), input_precision="ieee")
        matrix, offset = _block(widen, widen_bias, wide, channel, DIM, WIDTH)
        first = tl.dot(read, tl.trans(matrix), input_precision="ieee") + offset[None, :]
        passed, other = first, matrix
        if HAS_GATE:
            other, offset = _block(widen + WIDTH * DIM, widen_bias + WIDTH, wide, channel, DIM, WIDTH)
            passed = tl.dot(read, tl.trans(other), input_precision="ieee") + offset[None, :]
        _, slope, passed_slope = _activated(first, passed, HAS_GATE)
        below = tl.dot((of_wide * slope).to(read.dtype), matrix, below, input_precision="ieee")
        if HAS_GATE:
            below = tl.dot((of_wide * passed_slope).to(read.dtype), other, below, input_precision="ieee")
    tl.store(x_gradient + place, below.to(x_gradient.dtype.element_ty), mask=inside)


@Kernel
def _maps_gradient_kernel(
    y_gradient, x, widen, widen_bias, narrow, widen_gradient, widen_bias_gradient, narrow_gradient,
    num_rows, rows_a_part,
    DIM: tl.constexpr, DIM_BLOCK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    HAS_GATE: tl.constexpr,
):  # fmt: skip
    wide, channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE), tl.arange(0, DIM_BLOCK)
    is_wide = wide < WIDTH
    inside = is_wide[:, None] & (channel[None, :] < DIM)
    matrix, offset = _block(widen, widen_bias, wide, channel, DIM, WIDTH)
    other, other_offset = matrix, offset
    if HAS_GATE:
        other, other_offset = _block(widen + WIDTH * DIM, widen_bias + WIDTH, wide, channel, DIM, WIDTH)
    back = tl.trans(_tile(narrow, channel, wide, DIM, WIDTH))
    of_matrix = tl.zeros((WIDE, DIM_BLOCK), tl.float32)
    of_other = tl.zeros((WIDE, DIM_BLOCK), tl.float32)
    of_back = tl.zeros((WIDE, DIM_BLOCK), tl.float32)
    of_offset = tl.zeros((WIDE,), tl.float32)
    of_other_offset = tl.zeros((WIDE,), tl.float32)
    behind = tl.minimum((tl.program_id(1) + 1) * rows_a_part, num_rows)
    for start in range(tl.program_id(1) * rows_a_part, behind, ROWS):
        row = start + tl.arange(0, ROWS)
        read = _tile(x, row, channel, behind, DIM)
        above = _tile(y_gradient, row, channel, behind, DIM)
        first = tl.dot(matrix, tl.trans(read), input_precision="ieee") + offset[:, None]
        passed = first
        if HAS_GATE:
            passed = tl.dot(other, tl.trans(read), input_precision="ieee") + other_offset[:, None]
        of_wide = tl.dot(back, tl.trans(above), input_precision="ieee")
        activated, slope, passed_slope = _activated(first, passed, HAS_GATE)
        of_first = of_wide * slope
        of_offset += tl.sum(of_first, axis=1)
        of_back = tl.dot(activated.to(read.dtype), above, of_back, input_precision="ieee")
        of_matrix = tl.dot(of_first.to(read.dtype), read, of_matrix, input_precision="ieee")
        if HAS_GATE:
            of_passed = of_wide * passed_slope
            of_other_offset += tl.sum(of_passed, axis=1)
            of_other = tl.dot(of_passed.to(read.dtype), read, of_other, input_precision="ieee")
    at = wide[:, None] * DIM + channel[None, :]
    tl.atomic_add(widen_gradient + at, of_matrix, mask=inside, sem="relaxed")
    tl.atomic_add(widen_bias_gradient + wide, of_offset, mask=is_wide, sem="relaxed")
    if HAS_GATE:
        tl.atomic_add(widen_gradient + WIDTH * DIM + at, of_other, mask=inside, sem="relaxed")
        tl.atomic_add(widen_bias_gradient + WIDTH + wide, of_other_offset, mask=is_wide, sem="relaxed")
    at_back = narrow_gradient + channel[None, :] * WIDTH + wide[:, None]
    tl.atomic_add(at_back, of_back, mask=inside, sem="relaxed")


def _sizes(x: Tensor, narrow: Tensor) -> tuple[int, int, int, int]:
    """Channels and their block, channels of the wide layer, rows that a program takes at once."""
    dim, width = narrow.shape
    assert x.shape[-1] == dim
    rows = ROWS if x.numel() // dim >= MANY_ROWS else ROWS // 2
    return dim, max(16, triton.next_power_of_2(dim)), width, rows


def forward(
    x: Tensor,
    maps: tuple[Tensor, Tensor, Tensor, Tensor],
    weight: Tensor,
    bias: Tensor,
    seed: Tensor,
    epsilon: float,
    dropout: float,
    *,
    has_gate: bool,
) -> tuple[Tensor, Tensor]:
    """The output, and what came out of the second map without its bias. `maps` are two matrices, each with a bias."""
    widen, widen_bias, narrow, narrow_bias = maps
    out, y, num_rows, sizes = (
        torch.empty_like(x),
        torch.empty_like(x),
        x.numel() // x.shape[-1],
        _sizes(x, narrow),
    )
    _feed_forward_kernel[(triton.cdiv(num_rows, sizes[-1]),)](
        x, widen, widen_bias, narrow, narrow_bias, weight, bias, seed, y, out, num_rows, epsilon, dropout,
        *sizes, WIDE, has_gate, dropout > 0, num_stages=2,
    )  # fmt: skip
    return out, y


def backward(
    gradient: Tensor,
    x: Tensor,
    y: Tensor,
    maps: tuple[Tensor, Tensor, Tensor, Tensor],
    weight: Tensor,
    seed: Tensor,
    epsilon: float,
    dropout: float,
    *,
    has_gate: bool,
) -> tuple[Tensor, ...]:
    """Of x, of both matrices with their biases, of weight and bias of the norm."""
    widen, widen_bias, narrow, narrow_bias = maps
    x_gradient, y_gradient, num_rows = torch.empty_like(x), torch.empty_like(x), x.numel() // x.shape[-1]
    of_widen, of_widen_bias, of_narrow, of_narrow_bias, of_weight, of_bias = (
        sums(x.device, *each.shape) for each in (*maps, weight, weight)
    )
    sizes = _sizes(x, narrow)
    _input_gradient_kernel[(triton.cdiv(num_rows, sizes[-1]),)](
        gradient, x, y, widen, widen_bias, narrow, narrow_bias, weight, seed,
        x_gradient, y_gradient, of_narrow_bias, of_weight, of_bias, num_rows, epsilon, dropout,
        *sizes, WIDE // 2, has_gate, dropout > 0, num_stages=2,
    )  # fmt: skip
    blocks, row_blocks = triton.cdiv(narrow.shape[1], WIDE), triton.cdiv(num_rows, sizes[-1])
    rows_a_part = sizes[-1] * triton.cdiv(row_blocks, max(1, BUSY // 2 // blocks))
    _maps_gradient_kernel[(blocks, triton.cdiv(num_rows, rows_a_part))](
        y_gradient, x, widen, widen_bias, narrow, of_widen, of_widen_bias, of_narrow, num_rows, rows_a_part,
        *sizes, WIDE, has_gate,
    )  # fmt: skip
    return x_gradient, of_widen, of_widen_bias, of_narrow, of_narrow_bias, of_weight, of_bias
