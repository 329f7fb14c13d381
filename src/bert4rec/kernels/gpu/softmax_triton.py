"""Softmax cross-entropy over all items, with its gradients, and without ever writing a logit to memory.

The gradient of a hidden row is a mean of item vectors, weighted by a softmax of their products with the row, less the
vector of the right item. But for the right item, that is attention: rows are queries, items both keys and values. So
the first pass is that of flash attention (Dao et al., 2022), and yields losses and gradients of the rows. Few rows meet
many items, so the items are cut into parts, which several programs read at the same time. The second pass takes the
items block by block and sums up the gradients of their vectors over all rows.

`losses.softmax_cross_entropy` says what is computed. Items are the rows 1 to V of the table. Logits are kept in units
of which 2 is the base.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bert4rec.kernels.gpu.launch_triton import Kernel
from bert4rec.kernels.gpu.shared_triton import BUSY, LOG2_E

LOWEST = tl.constexpr(-1e30)
"""A finite start: with -inf, -inf minus -inf would be no number."""
BLOCK = 1024


@Kernel
def _offsets_kernel(bias, offsets, num_items, num_offsets, BLOCK: tl.constexpr):
    """What is added to the logit of each row of the table, so that what is no item is never taken for one."""
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_item = (item >= 1) & (item <= num_items)
    offset = tl.load(bias + item - 1, mask=is_item, other=-float("inf")) * LOG2_E
    tl.store(offsets + item, offset, mask=item < num_offsets)


@triton.jit
def _vectors(x, number, channel, DIM: tl.constexpr, DIM_BLOCK: tl.constexpr):
    """Rows of x, which must be there: in the inner loops, a mask would take a fifth of the time."""
    place = x + number[:, None].to(tl.int64) * DIM + channel[None, :]
    if DIM == DIM_BLOCK:  # noqa: SIM108 (Triton decides before it compiles only by statements)
        found = tl.load(place)
    else:
        found = tl.load(place, mask=channel[None, :] < DIM, other=0.0)
    return found


@Kernel
def _rows_kernel(
    hidden, table, offsets, highest, total, mean, num_rows, num_items, items_a_part,
    DIM: tl.constexpr, DIM_BLOCK: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    """Some rows and one part of the items: the highest logit, the sum of shares, and the item vectors times shares."""
    row, channel = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM_BLOCK)
    part = tl.program_id(1)
    in_row = (row[:, None] < num_rows) & (channel[None, :] < DIM)
    query = tl.load(hidden + row[:, None].to(tl.int64) * DIM + channel[None, :], mask=in_row, other=0.0)
    most = tl.full((ROWS,), LOWEST, tl.float32)
    sum_so_far = tl.zeros((ROWS,), tl.float32)
    mean_so_far = tl.zeros((ROWS, DIM_BLOCK), tl.float32)
    first = 1 + part * items_a_part
    behind = tl.minimum(first + items_a_part, num_items + 1)
    for start in range(first, behind, ITEMS):
        item = start + tl.arange(0, ITEMS)
        key = _vectors(table, tl.minimum(item, num_items), channel, DIM, DIM_BLOCK)
        offset = tl.load(offsets + item)
        logit = tl.dot(query, tl.trans(key), input_precision="ieee") * LOG2_E + offset[None, :]
        new_most = tl.maximum(most, tl.max(logit, axis=1))
        share = tl.exp2(logit - new_most[:, None])
        shrink = tl.exp2(most - new_most)
        sum_so_far = sum_so_far * shrink + tl.sum(share, axis=1)
        mean_so_far = tl.dot(share.to(key.dtype), key, mean_so_far * shrink[:, None], input_precision="ieee")
        most = new_most
    at = part * num_rows + row
    tl.store(highest + at, most, mask=row < num_rows)
    tl.store(total + at, sum_so_far, mask=row < num_rows)
    tl.store(mean + at[:, None].to(tl.int64) * DIM + channel[None, :], mean_so_far, mask=in_row)


@Kernel
def _join_kernel(
    hidden, table, bias, targets, weights, highest, total, mean, losses, log_shares, gradient, num_rows, num_parts,
    DIM: tl.constexpr, DIM_BLOCK: tl.constexpr,
):  # fmt: skip
    """One row a program: the parts together, and what the right item is to it. Behind the rows there are no shares."""
    row, channel = tl.program_id(0).to(tl.int64), tl.arange(0, DIM_BLOCK)
    if row >= num_rows:
        tl.store(log_shares + row, float("inf"))
        return
    inside = channel < DIM
    most = LOWEST
    for part in range(num_parts):
        most = tl.maximum(most, tl.load(highest + part * num_rows + row))
    summed = 0.0
    average = tl.zeros((DIM_BLOCK,), tl.float32)
    for part in range(num_parts):
        at = part * num_rows + row
        shrink = tl.exp2(tl.load(highest + at) - most)
        summed += tl.load(total + at) * shrink
        average += tl.load(mean + at * DIM + channel, mask=inside, other=0.0) * shrink
    weight, target = tl.load(weights + row), tl.load(targets + row)
    is_counted = weight > 0
    right = tl.load(table + target.to(tl.int64) * DIM + channel, mask=inside, other=0.0).to(tl.float32)
    query = tl.load(hidden + row * DIM + channel, mask=inside, other=0.0).to(tl.float32)
    own = tl.sum(query * right, axis=0) + tl.load(bias + target - 1, mask=is_counted, other=0.0)
    log_sum = most + tl.log2(summed)
    # What to subtract from a logit for its share times the weight. Without a weight, that is infinity.
    log_share = tl.where(is_counted, log_sum - tl.log2(tl.where(is_counted, weight, 1.0)), float("inf"))
    tl.store(log_shares + row, log_share)
    tl.store(losses + row, tl.where(is_counted, (log_sum / LOG2_E - own) * weight, 0.0))
    found = tl.where(is_counted, (average / summed - right) * weight, 0.0)
    tl.store(gradient + row * DIM + channel, found.to(gradient.dtype.element_ty), mask=inside)


@Kernel
def _items_kernel(
    hidden, table, offsets, log_shares, table_gradient, bias_gradient, num_rows, num_items, rows_a_part, table_size,
    DIM: tl.constexpr, DIM_BLOCK: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr, HAS_PARTS: tl.constexpr,
):  # fmt: skip
    """Some rows of the table and one part of the hidden rows: what all items but the right ones get.

    What is no item gets a gradient of zeros. Parts are added up where they stand.
    """
    item, channel = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS), tl.arange(0, DIM_BLOCK)
    part = tl.program_id(1)
    in_table = (item[:, None] < table_size) & (channel[None, :] < DIM)
    is_item = (item >= 1) & (item <= num_items)
    key = tl.load(table + item[:, None].to(tl.int64) * DIM + channel[None, :], mask=in_table, other=0.0)
    offset = tl.load(offsets + item)
    of_key = tl.zeros((ITEMS, DIM_BLOCK), tl.float32)
    of_offset = tl.zeros((ITEMS,), tl.float32)
    first = part * rows_a_part
    behind = tl.minimum(first + rows_a_part, num_rows)
    for start in range(first, behind, ROWS):
        row = start + tl.arange(0, ROWS)
        query = _vectors(hidden, tl.minimum(row, num_rows - 1), channel, DIM, DIM_BLOCK)
        log_share = tl.load(log_shares + row)
        logit = tl.dot(key, tl.trans(query), input_precision="ieee") * LOG2_E + offset[:, None]
        share = tl.exp2(logit - log_share[None, :])
        of_offset += tl.sum(share, axis=1)
        of_key = tl.dot(share.to(query.dtype), query, of_key, input_precision="ieee")
    at_key, at_offset = (
        table_gradient + item[:, None].to(tl.int64) * DIM + channel[None, :],
        bias_gradient + item - 1,
    )
    if HAS_PARTS:
        tl.atomic_add(at_key, of_key, mask=in_table, sem="relaxed")
        tl.atomic_add(at_offset, of_offset, mask=is_item, sem="relaxed")
    else:
        tl.store(at_key, of_key, mask=in_table)
        tl.store(at_offset, of_offset, mask=is_item)


@Kernel
def _targets_kernel(
    hidden, targets, weights, table_gradient, bias_gradient, DIM: tl.constexpr, DIM_BLOCK: tl.constexpr
):
    """One row a program: what its right item gets. To look for it among all items would cost more."""
    row, channel = tl.program_id(0).to(tl.int64), tl.arange(0, DIM_BLOCK)
    target, weight = tl.load(targets + row).to(tl.int64), tl.load(weights + row)
    query = tl.load(hidden + row * DIM + channel, mask=channel < DIM, other=0.0).to(tl.float32)
    if weight > 0:
        at = table_gradient + target * DIM + channel
        tl.atomic_add(at, -weight * query, mask=channel < DIM, sem="relaxed")
        tl.atomic_add(bias_gradient + target - 1, -weight, sem="relaxed")


def loss_and_gradients(
    hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, summed with the weights of the rows, and its gradients: of hidden, of the table, of the bias.

    `table` has the dtype of `hidden`; the gradients of table and bias are float32.
    """
    hidden, (num_rows, dim), num_items = hidden.contiguous(), hidden.shape, len(bias)
    dim_block, device = max(16, triton.next_power_of_2(dim)), hidden.device
    # Products of float32, on GPUs that have nothing narrower, are written out number by number: tiles are small.
    rows, items = (64, 128) if hidden.element_size() == 2 else (32, 32)
    offsets = torch.empty(len(table) + items, device=device)
    _offsets_kernel[(triton.cdiv(len(offsets), BLOCK),)](bias, offsets, num_items, len(offsets), BLOCK)
    row_blocks, item_blocks = triton.cdiv(num_rows, rows), triton.cdiv(len(table), items)
    items_a_part = items * _share(item_blocks, row_blocks, BUSY * 3 // 4)
    parts = triton.cdiv(num_items, items_a_part)
    highest, total = torch.empty(2, parts, num_rows, device=device)
    mean = torch.empty(parts, num_rows, dim, device=device)
    _rows_kernel[(row_blocks, parts)](
        hidden, table, offsets, highest, total, mean, num_rows, num_items, items_a_part,
        dim, dim_block, rows, items, num_stages=3 if dim_block <= 64 else 2,
    )  # fmt: skip
    losses, gradient = torch.empty(num_rows, device=device), torch.empty_like(hidden)
    log_shares = torch.empty(items * triton.cdiv(num_rows, items), device=device)
    _join_kernel[(len(log_shares),)](
        hidden, table, bias, targets, weights, highest, total, mean, losses, log_shares, gradient, num_rows, parts,
        dim, dim_block, num_warps=1,
    )  # fmt: skip
    rows, items = items, rows
    row_blocks, item_blocks = triton.cdiv(num_rows, rows), triton.cdiv(len(table), items)
    rows_a_part = rows * _share(row_blocks, item_blocks, BUSY)
    parts = triton.cdiv(num_rows, rows_a_part)
    make = torch.empty if parts == 1 else torch.zeros
    of_table, of_bias = make(table.shape, device=device), make(num_items, device=device)
    _items_kernel[(item_blocks, parts)](
        hidden, table, offsets, log_shares, of_table, of_bias,
        num_rows, num_items, rows_a_part, len(table), dim, dim_block, rows, items, parts > 1,
        num_stages=3 if dim_block <= 64 else 2,
    )  # fmt: skip
    _targets_kernel[(num_rows,)](hidden, targets, weights, of_table, of_bias, dim, dim_block, num_warps=1)
    return losses.sum(), gradient, of_table, of_bias


def _share(blocks: int, others: int, programs: int) -> int:
    """How many of these blocks a program takes, so that about so many run."""
    return -(-blocks // min(blocks, max(1, programs // others)))
