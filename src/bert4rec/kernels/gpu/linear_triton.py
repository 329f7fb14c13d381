"""The kernel of `linear`: the gradient of a bias, for which torch takes several times as long."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bert4rec.kernels.gpu.launch_triton import Kernel
from bert4rec.kernels.gpu.shared_triton import BUSY, summed

ROWS, COLUMNS = 32, 128


@Kernel
def _column_sums_kernel(x, sums, num_rows, num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(tl.program_id(1) * ROWS, num_rows, tl.num_programs(1) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < num_rows) & (column[None, :] < num_columns)
        place = row[:, None].to(tl.int64) * num_columns + column[None, :]
        total += tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(sums + tl.program_id(1) * num_columns + column, tl.sum(total, axis=0), mask=column < num_columns)


def column_sums(x: Tensor) -> Tensor:
    """x [R, C] summed over its rows, in float32."""
    num_rows, num_columns = x.shape
    blocks = triton.cdiv(num_columns, COLUMNS)
    parts = max(1, min(triton.cdiv(num_rows, ROWS), BUSY // blocks))
    sums = torch.empty(parts, num_columns, device=x.device)
    _column_sums_kernel[(blocks, parts)](x, sums, num_rows, num_columns, ROWS, COLUMNS)
    return summed(sums)
