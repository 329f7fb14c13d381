"""Parts that several kernels share."""

from functools import cache

import torch
import triton
import triton.language as tl

from bert4rec.kernels.support import Played

LOG2_E = tl.constexpr(1.4426950408889634)
DENSITY = tl.constexpr(0.3989422804014327)
"""Of the normal distribution at 0."""
BUSY = 4 * 132
"""Programs that keep a large GPU busy, if they are large themselves."""


def shared_memory(device: torch.device) -> int:
    """Bytes in which a program can keep tiles: 64 KiB on a T4, 99 on an RTX 4090, 227 on an H200."""
    return Played.shared_memory or _shared_memory(device)


@cache
def _shared_memory(device: torch.device) -> int:
    facts = torch.cuda.get_device_properties(device)
    return int(getattr(facts, "shared_memory_per_block_optin", 0) or facts.shared_memory_per_block)


@triton.jit
def mixed(x, seed):
    """A hash of place and seed: see `support.mixed`."""
    x = x.to(tl.uint32) ^ tl.load(seed).to(tl.uint32, bitcast=True)
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) + tl.load(seed + 1).to(tl.uint32, bitcast=True)
    x = x * 0xD35A2D97
    return x ^ (x >> 15)


@triton.jit
def lowest_kept(dropout):
    """Random numbers below this one are dropped. They are compared as they are: conversions are slow."""
    return tl.cast(dropout * 4294967296.0, tl.uint32)


@triton.jit
def kept(seed, place, dropout):
    """What dropout multiplies with: 0, or 1 / (1 - dropout). `support.keep_mask` says which."""
    return tl.where(mixed(place, seed) >= lowest_kept(dropout), 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def reciprocal(x):
    """Of a positive number, in two instructions: a division takes eight, to be right for every number."""
    root = tl.rsqrt(x)
    return root * root


@triton.jit
def sigmoid(x):
    return reciprocal(1.0 + tl.exp2(x * -LOG2_E))


@triton.jit
def normal(x):
    """The normal distribution up to x, and its density there.

    To 2e-7, by formula 26.2.17 of Abramowitz and Stegun: a fifth of the work of Triton's own error function, and the
    exponential is needed for the density anyway.
    """
    density = DENSITY * tl.exp2(x * x * (-0.5 * LOG2_E))
    t = reciprocal(1.0 + 0.2316419 * tl.abs(x))
    series = -1.821255978 + t * 1.330274429
    tail = density * t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * series)))
    return tl.where(x < 0.0, tail, 1.0 - tail), density


@triton.jit
def gelu(x):
    """The exact one, not its approximation by tanh."""
    share, _ = normal(x)
    return x * share


@triton.jit
def gelu_slope(x):
    share, density = normal(x)
    return share + x * density


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
    rows = max(1, 1024 // columns)
    return rows, columns, max(2, rows * columns // 512)


def programs(num_rows: int, rows: int) -> int:
    """No more than keep a GPU busy: each goes over several tiles and sums up what it finds on the way."""
    return max(1, min(-(-num_rows // rows), BUSY * 3 // 2))
