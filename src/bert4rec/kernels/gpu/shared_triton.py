"""Parts that several kernels share."""

import triton
import triton.language as tl

HALF_ROOT = tl.constexpr(0.7071067811865476)
"""Square root of 1/2."""
DENSITY = tl.constexpr(0.3989422804014327)
"""Of the normal distribution at 0."""
BUSY = 4 * 132
"""Programs that keep a large GPU busy."""


@triton.jit
def kept(seed, place, dropout):
    """What dropout multiplies with: 0, or 1 / (1 - dropout). `support.keep_mask` says which."""
    x = place.to(tl.uint32) ^ tl.load(seed).to(tl.uint32, bitcast=True)
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) + tl.load(seed + 1).to(tl.uint32, bitcast=True)
    x = x * 0xD35A2D97
    x = x ^ (x >> 15)
    uniform = (x >> 8).to(tl.float32) * 5.9604644775390625e-08
    return tl.where(uniform >= dropout, 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def gelu(x):
    """The exact one."""
    return x * 0.5 * (1.0 + tl.erf(x * HALF_ROOT))


@triton.jit
def gelu_slope(x):
    return 0.5 * (1.0 + tl.erf(x * HALF_ROOT)) + x * DENSITY * tl.exp(-0.5 * x * x)


@triton.jit
def normed(x, inside, num_columns, epsilon):
    """Each row of x with mean 0 and variance 1, and one over what it was divided by."""
    mean = tl.sum(x, axis=1) / num_columns
    centred = tl.where(inside, x - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / num_columns + epsilon)
    return centred * scale[:, None], scale


@triton.jit
def norm_gradient(gradient, x, scale, weight, num_columns):
    """The gradient of what was normed, from that of the norm's output."""
    weighted = gradient * weight[None, :]
    mean = tl.sum(weighted, axis=1) / num_columns
    along = tl.sum(weighted * x, axis=1) / num_columns
    return (weighted - mean[:, None] - x * along[:, None]) * scale[:, None]


def tile(num_columns: int) -> tuple[int, int, int]:
    """Rows and columns that a program takes at once, and its warps."""
    columns = triton.next_power_of_2(num_columns)
    rows = max(1, 2048 // columns)
    return rows, columns, 4 if rows * columns <= 4096 else 8


def programs(num_rows: int, rows: int) -> int:
    """No more than keep a GPU busy: each goes over several tiles and sums up what it finds on the way."""
    return max(1, min(-(-num_rows // rows), BUSY))
