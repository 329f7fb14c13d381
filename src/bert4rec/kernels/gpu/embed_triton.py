"""The kernels of `embed`. On the way back each token adds to its rows of the tables where they stand in memory.

But for the last row, on which all would wait for each other if it is that of [mask]: a program adds what it has.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bert4rec.kernels.gpu.launch_triton import Kernel
from bert4rec.kernels.gpu.shared_triton import kept, norm_gradient, normed, programs, tile
from bert4rec.kernels.support import sums


@triton.jit
def _looked_up(at_token, at_position, table, position_table, inside, scale, HAS_POSITIONS: tl.constexpr):
    x = tl.load(table + at_token, mask=inside, other=0.0).to(tl.float32) * scale
    if HAS_POSITIONS:
        x += tl.load(position_table + at_position, mask=inside, other=0.0).to(tl.float32)
    return x


@triton.jit
def _rows_of(numbers, row, num_rows, column, COLUMNS: tl.constexpr):
    number = tl.load(numbers + row, mask=row < num_rows, other=0)
    return number[:, None].to(tl.int64) * COLUMNS + column[None, :]


@Kernel
def _embed_forward_kernel(
    tokens, table, positions, position_table, weight, bias, seed, out, num_rows, epsilon, dropout, scale,
    COLUMNS: tl.constexpr, ROW_BLOCK: tl.constexpr, COLUMN_BLOCK: tl.constexpr,
    HAS_POSITIONS: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    column = tl.arange(0, COLUMN_BLOCK)
    inside = (row[:, None] < num_rows) & (column[None, :] < COLUMNS)
    at_token = _rows_of(tokens, row, num_rows, column, COLUMNS)
    at_position = at_token
    if HAS_POSITIONS:
        at_position = _rows_of(positions, row, num_rows, column, COLUMNS)
    x = _looked_up(at_token, at_position, table, position_table, inside, scale, HAS_POSITIONS)
    unit, _ = normed(x, inside, COLUMNS, epsilon)
    gain = tl.load(weight + column, mask=column < COLUMNS, other=0.0)
    offset = tl.load(bias + column, mask=column < COLUMNS, other=0.0)
    result = unit * gain[None, :] + offset[None, :]
    place = row[:, None].to(tl.int64) * COLUMNS + column[None, :]
    if HAS_DROPOUT:
        result *= kept(seed, place, dropout)
    tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


@Kernel
def _embed_backward_kernel(
    gradient, tokens, table, positions, position_table, weight, seed,
    table_gradient, position_gradient, weight_gradient, bias_gradient, num_rows, crowded, epsilon, dropout, scale,
    COLUMNS: tl.constexpr, ROW_BLOCK: tl.constexpr, COLUMN_BLOCK: tl.constexpr,
    HAS_POSITIONS: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLUMN_BLOCK)
    gain = tl.load(weight + column, mask=column < COLUMNS, other=0.0)
    gain_sum = tl.zeros((ROW_BLOCK, COLUMN_BLOCK), tl.float32)
    offset_sum = tl.zeros((ROW_BLOCK, COLUMN_BLOCK), tl.float32)
    crowded_sum = tl.zeros((ROW_BLOCK, COLUMN_BLOCK), tl.float32)
    for start in range(tl.program_id(0) * ROW_BLOCK, num_rows, tl.num_programs(0) * ROW_BLOCK):
        row = start + tl.arange(0, ROW_BLOCK)
        inside = (row[:, None] < num_rows) & (column[None, :] < COLUMNS)
        at_token = _rows_of(tokens, row, num_rows, column, COLUMNS)
        at_position = at_token
        if HAS_POSITIONS:
            at_position = _rows_of(positions, row, num_rows, column, COLUMNS)
        x = _looked_up(at_token, at_position, table, position_table, inside, scale, HAS_POSITIONS)
        unit, divisor = normed(x, inside, COLUMNS, epsilon)
        place = row[:, None].to(tl.int64) * COLUMNS + column[None, :]
        above = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
        if HAS_DROPOUT:
            above *= kept(seed, place, dropout)
        gain_sum += above * unit
        offset_sum += above
        below = norm_gradient(above, unit, divisor, gain, COLUMNS)
        alone = (tl.load(tokens + row, mask=row < num_rows, other=0) != crowded)[:, None]
        crowded_sum += tl.where(alone, 0.0, below)
        tl.atomic_add(table_gradient + at_token, below * scale, mask=inside & alone, sem="relaxed")
        if HAS_POSITIONS:
            tl.atomic_add(position_gradient + at_position, below, mask=inside, sem="relaxed")
    tl.atomic_add(weight_gradient + column, tl.sum(gain_sum, axis=0), mask=column < COLUMNS, sem="relaxed")
    tl.atomic_add(bias_gradient + column, tl.sum(offset_sum, axis=0), mask=column < COLUMNS, sem="relaxed")
    at_crowded = table_gradient + tl.cast(crowded, tl.int64) * COLUMNS + column
    tl.atomic_add(at_crowded, tl.sum(crowded_sum, axis=0) * scale, mask=column < COLUMNS, sem="relaxed")


def forward(
    tokens: Tensor,
    table: Tensor,
    positions: Tensor | None,
    position_table: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    seed: Tensor,
    epsilon: float,
    dropout: float,
    scale: float,
    dtype: torch.dtype,
) -> Tensor:
    num_rows, columns = tokens.numel(), table.shape[1]
    out = torch.empty(*tokens.shape, columns, dtype=dtype, device=table.device)
    rows, block, warps = tile(columns)
    _embed_forward_kernel[(triton.cdiv(num_rows, rows),)](
        tokens, table, positions, position_table, weight, bias, seed, out, num_rows, epsilon, dropout, scale,
        columns, rows, block, positions is not None, dropout > 0, num_warps=warps,
    )  # fmt: skip
    return out


def backward(
    gradient: Tensor,
    begun: Tensor | None,
    tokens: Tensor,
    table: Tensor,
    positions: Tensor | None,
    position_table: Tensor | None,
    weight: Tensor,
    seed: Tensor,
    epsilon: float,
    dropout: float,
    scale: float,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Of the table, added to what has begun; of the position table, weight and bias."""
    num_rows, columns = tokens.numel(), table.shape[1]
    of_table = torch.zeros_like(table) if begun is None else begun
    of_positions = None if position_table is None else sums(table.device, *position_table.shape)
    rows, block, warps = tile(columns)
    of_weight, of_bias = sums(table.device, columns), sums(table.device, columns)
    _embed_backward_kernel[(programs(num_rows, rows),)](
        gradient.contiguous(), tokens, table, positions, position_table, weight, seed,
        of_table, of_positions, of_weight, of_bias, num_rows, len(table) - 1, epsilon, dropout, scale,
        columns, rows, block, positions is not None, dropout > 0, num_warps=warps,
    )  # fmt: skip
    return of_table, of_positions, of_weight, of_bias
