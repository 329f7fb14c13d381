"""The kernel of `losses.shares`: one program counts and divides, where torch takes five small steps."""

import torch
import triton.language as tl
from torch import Tensor

from bert4rec.kernels.gpu.launch_triton import Kernel

BLOCK = 4096


@Kernel
def _shares_kernel(targets, shares, num_rows, BLOCK: tl.constexpr):
    counted = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, num_rows, BLOCK):
        row = start + tl.arange(0, BLOCK)
        counted += tl.where(tl.load(targets + row, mask=row < num_rows, other=0) != 0, 1, 0)
    share = 1.0 / tl.maximum(tl.sum(counted, axis=0), 1).to(tl.float32)
    for start in range(0, num_rows, BLOCK):
        row = start + tl.arange(0, BLOCK)
        target = tl.load(targets + row, mask=row < num_rows, other=0)
        tl.store(shares + row, tl.where(target != 0, share, 0.0), mask=row < num_rows)


def shares(targets: Tensor) -> Tensor:
    """In float32."""
    found = torch.empty(targets.shape, device=targets.device)
    _shares_kernel[(1,)](targets.contiguous(), found, targets.numel(), BLOCK, num_warps=16)
    return found
