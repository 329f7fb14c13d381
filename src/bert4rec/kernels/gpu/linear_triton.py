"""The kernels of `linear`: maps of many rows, and gradients of parameters.

For narrow maps libraries take several times as long.
"""

import triton
import triton.language as tl
from torch import Tensor

from bert4rec.kernels.gpu.launch_triton import Kernel
from bert4rec.kernels.gpu.shared_triton import BUSY
from bert4rec.kernels.support import sums

ROWS, COLUMNS = 32, 128
OUTPUTS, INPUTS = 64, 128
"""Of a map, that one program takes."""
MOST_MAPPED, MANY_ROWS = 64, 1 << 14
"""Channels of a map that is computed here, and rows from which on it is."""
MOST_INPUTS, MOST_WEIGHTS = 256, 1 << 14
"""Of a map that is narrow."""


@Kernel
def _map_kernel(
    x, weight, bias, out, num_rows,
    OUT: tl.constexpr, IN: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output, channel = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, INPUTS)
    read = tl.load(
        x + row[:, None].to(tl.int64) * IN + channel[None, :],
        mask=(row[:, None] < num_rows) & (channel[None, :] < IN), other=0.0,
    )  # fmt: skip
    matrix = tl.load(
        weight + output[:, None] * IN + channel[None, :],
        mask=(output[:, None] < OUT) & (channel[None, :] < IN), other=0.0,
    )  # fmt: skip
    offset = tl.load(bias + output, mask=output < OUT, other=0.0).to(tl.float32)
    mapped = tl.dot(read, tl.trans(matrix), input_precision="ieee") + offset[None, :]
    tl.store(
        out + row[:, None].to(tl.int64) * OUT + output[None, :], mapped.to(out.dtype.element_ty),
        mask=(row[:, None] < num_rows) & (output[None, :] < OUT),
    )  # fmt: skip


def is_faster(x: Tensor, weight: Tensor) -> bool:
    """Whether `mapped` is: libraries clear memory first for maps of many rows to few channels, which takes longer."""
    return weight.shape[1] <= MOST_MAPPED and x.numel() // x.shape[-1] >= MANY_ROWS


def mapped(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [..., I] times weight [O, I] plus bias [O]."""
    x, (outputs, inputs) = x.contiguous(), weight.shape
    num_rows, input_block = x.numel() // inputs, max(16, triton.next_power_of_2(inputs))
    out = x.new_empty(*x.shape[:-1], outputs)
    _map_kernel[(triton.cdiv(num_rows, 2 * OUTPUTS), triton.cdiv(outputs, OUTPUTS))](
        x, weight, bias, out, num_rows, outputs, inputs, 2 * OUTPUTS, OUTPUTS, input_block
    )
    return out


@Kernel
def _column_sums_kernel(x, total, num_rows, num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mine = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(tl.program_id(1) * ROWS, num_rows, tl.num_programs(1) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < num_rows) & (column[None, :] < num_columns)
        place = row[:, None].to(tl.int64) * num_columns + column[None, :]
        mine += tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    tl.atomic_add(total + column, tl.sum(mine, axis=0), mask=column < num_columns, sem="relaxed")


def column_sums(x: Tensor) -> Tensor:
    """x [R, C] summed over its rows, in float32."""
    num_rows, num_columns = x.shape
    blocks = triton.cdiv(num_columns, COLUMNS)
    parts = max(1, min(triton.cdiv(num_rows, ROWS), BUSY // blocks))
    total = sums(x.device, num_columns)
    _column_sums_kernel[(blocks, parts)](x, total, num_rows, num_columns, ROWS, COLUMNS)
    return total


@Kernel
def _weight_gradient_kernel(
    gradient, x, weight_gradient, bias_gradient, num_rows, rows_a_part,
    OUT: tl.constexpr, IN: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Some outputs, some inputs and one part of the rows."""
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    channel = tl.program_id(1) * INPUTS + tl.arange(0, INPUTS)
    part = tl.program_id(2)
    of_weight = tl.zeros((OUTPUTS, INPUTS), tl.float32)
    of_bias = tl.zeros((ROWS, OUTPUTS), tl.float32)
    behind = tl.minimum((part + 1) * rows_a_part, num_rows)
    for start in range(part * rows_a_part, behind, ROWS):
        row = (start + tl.arange(0, ROWS))[:, None]
        above = tl.load(
            gradient + row.to(tl.int64) * OUT + output[None, :],
            mask=(row < behind) & (output[None, :] < OUT), other=0.0,
        )  # fmt: skip
        read = tl.load(
            x + row.to(tl.int64) * IN + channel[None, :],
            mask=(row < behind) & (channel[None, :] < IN),
            other=0.0,
        )
        of_weight = tl.dot(tl.trans(above), read, of_weight, input_precision="ieee")
        if HAS_BIAS:
            of_bias += above.to(tl.float32)
    inside = (output[:, None] < OUT) & (channel[None, :] < IN)
    tl.atomic_add(
        weight_gradient + output[:, None] * IN + channel[None, :], of_weight, mask=inside, sem="relaxed"
    )
    if HAS_BIAS:
        first = tl.program_id(1) == 0
        total = tl.sum(of_bias, axis=0)
        tl.atomic_add(bias_gradient + output, total, mask=(output < OUT) & first, sem="relaxed")


def is_narrow(weight: Tensor) -> bool:
    """Whether `parameter_gradients` is the faster way."""
    return weight.shape[1] <= MOST_INPUTS and weight.numel() <= MOST_WEIGHTS


def parameter_gradients(gradient: Tensor, x: Tensor, *, has_bias: bool) -> tuple[Tensor, Tensor | None]:
    """Of weight and bias, in float32, from the gradient [R, O] of a map of x [R, I]."""
    (num_rows, outputs), inputs = gradient.shape, x.shape[1]
    input_block = max(16, min(INPUTS, triton.next_power_of_2(inputs)))
    blocks = triton.cdiv(outputs, OUTPUTS), triton.cdiv(inputs, input_block)
    row_blocks = triton.cdiv(num_rows, OUTPUTS)
    parts = max(1, min(row_blocks, BUSY // 2 // (blocks[0] * blocks[1])))
    rows_a_part = OUTPUTS * triton.cdiv(row_blocks, parts)
    parts = max(1, triton.cdiv(num_rows, rows_a_part))
    of_weight = sums(x.device, outputs, inputs)
    of_bias = sums(x.device, outputs) if has_bias else None
    _weight_gradient_kernel[(*blocks, parts)](
        gradient, x, of_weight, of_bias, num_rows, rows_a_part,
        outputs, inputs, OUTPUTS, input_block, OUTPUTS, has_bias,
    )  # fmt: skip
    return of_weight, of_bias
