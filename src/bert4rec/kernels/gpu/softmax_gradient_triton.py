"""The softmax of the loss as one Triton kernel: each logit is read from memory once and written once.

Imported only where there is a GPU. `losses.softmax_gradient_` says what it computes and does the same in torch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bert4rec.kernels.gpu.launch_triton import Kernel

MAX_BLOCK = 8192


@Kernel
def _softmax_gradient_kernel(
    logits, targets, weights, losses, num_columns: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    row_logits = logits + row * num_columns
    target = tl.load(targets + row)
    weight = tl.load(weights + row)
    columns = tl.arange(0, BLOCK)
    # A finite start: with -inf, -inf minus -inf would poison rows whose first columns are excluded.
    highest = -1e30
    total = 0.0
    for start in range(0, num_columns, BLOCK):
        inside = start + columns < num_columns
        x = tl.load(row_logits + start + columns, mask=inside, other=-float("inf")).to(tl.float32)
        new_highest = tl.maximum(highest, tl.max(x, axis=0))
        total = total * tl.exp(highest - new_highest) + tl.sum(tl.exp(x - new_highest), axis=0)
        highest = new_highest
    log_total = highest + tl.log(total)
    own = tl.load(row_logits + target).to(tl.float32)
    tl.store(losses + row, tl.where(weight > 0, (log_total - own) * weight, 0.0))
    for start in range(0, num_columns, BLOCK):
        inside = start + columns < num_columns
        x = tl.load(row_logits + start + columns, mask=inside, other=-float("inf")).to(tl.float32)
        hit = tl.where(start + columns == target, 1.0, 0.0)
        gradient = (tl.exp(x - log_total) - hit) * weight
        tl.store(row_logits + start + columns, gradient.to(logits.dtype.element_ty), mask=inside)


def softmax_gradient_(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Turn logits into their gradient, in place, and return each row's weighted loss."""
    assert logits.is_contiguous()
    num_rows, num_columns = logits.shape
    losses = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    block = min(MAX_BLOCK, triton.next_power_of_2(num_columns))
    warps = 8 if block > 2048 else 4
    _softmax_gradient_kernel[(num_rows,)](
        logits, targets, weights, losses, num_columns, BLOCK=block, num_warps=warps
    )
    return losses
