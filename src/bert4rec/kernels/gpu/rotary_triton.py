"""The kernel of `rotary`, which turns forth and back."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bert4rec.kernels.gpu.launch_triton import Kernel

BLOCK = 1024


@Kernel
def _turn_kernel(
    x, out, positions, cos, sin, size, row_step, out_step, direction,
    HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One pair of channels a lane: `out` may be x. Rows begin so many numbers apart."""
    pair = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < size
    channel, head, row = pair % HALF, pair // HALF % HEADS, pair // (HALF * HEADS)
    within = head * 2 * HALF + channel
    left = tl.load(x + row * row_step + within, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(x + row * row_step + within + HALF, mask=inside, other=0.0).to(tl.float32)
    angle = tl.load(positions + row, mask=inside, other=0).to(tl.int64) * HALF + channel
    c = tl.load(cos + angle, mask=inside, other=1.0)
    s = tl.load(sin + angle, mask=inside, other=0.0) * direction
    target = out + row * out_step + within
    tl.store(target, (left * c - right * s).to(out.dtype.element_ty), mask=inside)
    tl.store(target + HALF, (right * c + left * s).to(out.dtype.element_ty), mask=inside)


def turn(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, direction: float, *, in_place: bool = False
) -> Tensor:
    """x [N, H, C], turned by the angles (direction 1) or back (-1)."""
    _, heads, channels = x.shape
    if x.stride()[1:] != (channels, 1):
        x = x.contiguous()
    out = x if in_place else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    size = out.numel() // 2
    _turn_kernel[(triton.cdiv(size, BLOCK),)](
        x, out, positions, cos, sin, size, x.stride(0), out.stride(0), direction, heads, channels // 2, BLOCK
    )
    return out
