"""The kernels of `adamw`: all parameters at once, each read and written once.

They find the tensors by a table of addresses, one line a parameter: itself, its gradient, its two moments, its copy in
bfloat16 if there is one, their size, and whether it decays. A program takes a chunk of one parameter.
"""

import triton
import triton.language as tl
from torch import Tensor

from bert4rec.kernels.gpu.launch_triton import Kernel

CHUNK = 1024
LINE = tl.constexpr(7)
"""Numbers in a line of the table."""
SUMMED = 4096


@triton.jit
def _part(addresses, line, FIELD: tl.constexpr):
    address = tl.load(addresses + line * LINE + FIELD).to(tl.pointer_type(tl.float32))
    return tl.multiple_of(address, 16)


@triton.jit
def _place(addresses, chunks, CHUNK: tl.constexpr):
    """The parameter of this program's chunk, and where it lies in it."""
    line, start = tl.load(chunks + tl.program_id(0) * 2), tl.load(chunks + tl.program_id(0) * 2 + 1)
    place = tl.multiple_of(start, 16) + tl.arange(0, CHUNK)
    return line, place, place < tl.load(addresses + line * LINE + 5)


@Kernel
def _squares_kernel(addresses, chunks, sums, CHUNK: tl.constexpr):
    line, place, inside = _place(addresses, chunks, CHUNK)
    gradient = tl.load(_part(addresses, line, 1) + place, mask=inside, other=0.0)
    tl.store(sums + tl.program_id(0), tl.sum(gradient * gradient, axis=0))


@triton.jit
def _until_now(step, rate):
    """1 - (1 - rate)^step, also where float32 would round it: `rate` is -log of what is left over from step to step."""
    x = step * rate
    return tl.where(x < 0.01, x * (1.0 - x * (0.5 - x / 6.0)), 1.0 - tl.exp(-x))


@Kernel
def _factors_kernel(sums, num_sums, steps, factors, clip_norm, first_rate, second_rate, BLOCK: tl.constexpr):
    """One program: what gradients are to be multiplied with, and how much of the moments has built up by this step."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, num_sums, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(sums + at, mask=at < num_sums, other=0.0)
    step = tl.load(steps) + 1.0
    tl.store(steps, step)
    length = tl.sqrt(tl.sum(total, axis=0))
    tl.store(factors, 1.0 / tl.maximum(length / clip_norm, 1.0))
    tl.store(factors + 1, _until_now(step, first_rate))
    tl.store(factors + 2, tl.sqrt(_until_now(step, second_rate)))


@Kernel
def _update_kernel(
    addresses, chunks, factors, rate, first_share, second_share, epsilon, decay, CHUNK: tl.constexpr
):
    line, place, inside = _place(addresses, chunks, CHUNK)
    at, at_first, at_second = (
        _part(addresses, line, 0) + place, _part(addresses, line, 2) + place, _part(addresses, line, 3) + place,
    )  # fmt: skip
    gradient = tl.load(_part(addresses, line, 1) + place, mask=inside, other=0.0) * tl.load(factors)
    first, second = tl.load(at_first, mask=inside, other=0.0), tl.load(at_second, mask=inside, other=0.0)
    first += (gradient - first) * first_share
    second += (gradient * gradient - second) * second_share
    tl.store(at_first, first, mask=inside)
    tl.store(at_second, second, mask=inside)
    learning_rate = tl.load(rate)
    decays = tl.load(addresses + line * LINE + 6).to(tl.float32)
    x = tl.load(at, mask=inside, other=0.0) * (1.0 - learning_rate * decay * decays)
    direction = first / (tl.sqrt(second) / tl.load(factors + 2) + epsilon)
    x -= direction * (learning_rate / tl.load(factors + 1))
    tl.store(at, x, mask=inside)
    copy = tl.load(addresses + line * LINE + 4)
    if copy != 0:
        narrow = tl.multiple_of(copy.to(tl.pointer_type(tl.bfloat16)), 16)
        tl.store(narrow + place, x.to(tl.bfloat16), mask=inside)


def update(
    addresses: Tensor,
    chunks: Tensor,
    sums: Tensor,
    factors: Tensor,
    steps: Tensor,
    rate: Tensor,
    *,
    clip_norm: float,
    moment_rates: tuple[float, float],
    moment_shares: tuple[float, float],
    epsilon: float,
    decay: float,
) -> None:
    """Clip and update. `sums` [chunks] and `factors` [3] are only written to."""
    grid = (len(chunks),)
    _squares_kernel[grid](addresses, chunks, sums, CHUNK)
    _factors_kernel[(1,)](sums, len(chunks), steps, factors, clip_norm, *moment_rates, SUMMED, num_warps=8)
    _update_kernel[grid](addresses, chunks, factors, rate, *moment_shares, epsilon, decay, CHUNK)
