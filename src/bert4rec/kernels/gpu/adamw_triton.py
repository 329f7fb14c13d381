"""The kernels of `adamw`: all parameters at once, each read and written once.

They find the tensors by a table of addresses, one line a parameter: itself, its gradient, its two moments, its copy in
bfloat16 if there is one, their size, and whether it decays. A program takes a chunk of one parameter.
"""

import triton
import triton.language as tl
from torch import Tensor

from bert4rec.kernels.gpu.launch_triton import Kernel

CHUNK = 512
"""Four numbers for each of 128 threads: so they take the same ones of every tensor, however wide."""
SQUARED = 4
"""Chunks that a program squares."""
LINE = tl.constexpr(7)
"""Numbers in a line of the table."""
SUMMED = 4096


@triton.jit
def _part(addresses, line, FIELD: tl.constexpr):
    address = tl.load(addresses + line * LINE + FIELD).to(tl.pointer_type(tl.float32))
    return tl.multiple_of(address, 16)


@triton.jit
def _read(x, place, size, WHOLE: tl.constexpr):
    """Without a mask where a chunk is whole: with one, numbers would be read one by one."""
    return tl.load(x + place) if WHOLE else tl.load(x + place, mask=place < size, other=0.0)


@triton.jit
def _write(x, place, numbers, size, WHOLE: tl.constexpr):
    if WHOLE:
        tl.store(x + place, numbers)
    else:
        tl.store(x + place, numbers, mask=place < size)


@Kernel
def _squares_kernel(addresses, chunks, sums, num_parts, CHUNK: tl.constexpr, SQUARED: tl.constexpr):
    total = tl.zeros((CHUNK,), tl.float32)
    for chunk in range(tl.program_id(0) * SQUARED, tl.minimum((tl.program_id(0) + 1) * SQUARED, num_parts)):
        line, start = tl.load(chunks + chunk * 2), tl.multiple_of(tl.load(chunks + chunk * 2 + 1), 16)
        gradient, size = _part(addresses, line, 1), tl.load(addresses + line * LINE + 5)
        place = start + tl.arange(0, CHUNK)
        if start + CHUNK <= size:  # noqa: SIM108 (Triton decides on the GPU only by statements)
            numbers = _read(gradient, place, size, True)
        else:
            numbers = _read(gradient, place, size, False)
        total += numbers * numbers
    tl.store(sums + tl.program_id(0), tl.sum(total, axis=0))


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


@triton.jit
def _renew(
    addresses,
    line,
    place,
    size,
    factors,
    rate,
    first_share,
    second_share,
    epsilon,
    decay,
    WHOLE: tl.constexpr,
):
    """One chunk. All that is read is asked for before anything waits for it."""
    at, at_first, at_second = _part(addresses, line, 0), _part(addresses, line, 2), _part(addresses, line, 3)
    gradient = _read(_part(addresses, line, 1), place, size, WHOLE)
    first, second = _read(at_first, place, size, WHOLE), _read(at_second, place, size, WHOLE)
    x = _read(at, place, size, WHOLE)
    learning_rate, copy = tl.load(rate), tl.load(addresses + line * LINE + 4)
    decays = tl.load(addresses + line * LINE + 6).to(tl.float32)
    gradient *= tl.load(factors)
    first += (gradient - first) * first_share
    second += (gradient * gradient - second) * second_share
    direction = first / (tl.sqrt(second) / tl.load(factors + 2) + epsilon)
    x = x * (1.0 - learning_rate * decay * decays) - direction * (learning_rate / tl.load(factors + 1))
    _write(at_first, place, first, size, WHOLE)
    _write(at_second, place, second, size, WHOLE)
    _write(at, place, x, size, WHOLE)
    if copy != 0:
        narrow = tl.multiple_of(copy.to(tl.pointer_type(tl.bfloat16)), 16)
        _write(narrow, place, x.to(tl.bfloat16), size, WHOLE)


@Kernel
def _update_kernel(
    addresses, chunks, factors, rate, first_share, second_share, epsilon, decay, CHUNK: tl.constexpr
):
    line = tl.load(chunks + tl.program_id(0) * 2)
    start = tl.multiple_of(tl.load(chunks + tl.program_id(0) * 2 + 1), 16)
    size = tl.load(addresses + line * LINE + 5)
    place = start + tl.arange(0, CHUNK)
    if start + CHUNK <= size:
        _renew(addresses, line, place, size, factors, rate, first_share, second_share, epsilon, decay, True)
    else:
        _renew(addresses, line, place, size, factors, rate, first_share, second_share, epsilon, decay, False)


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
    programs = triton.cdiv(len(chunks), SQUARED)
    _squares_kernel[(programs,)](addresses, chunks, sums, len(chunks), CHUNK, SQUARED)
    _factors_kernel[(1,)](sums, programs, steps, factors, clip_norm, *moment_rates, SUMMED, num_warps=8)
    _update_kernel[(len(chunks),)](addresses, chunks, factors, rate, *moment_shares, epsilon, decay, CHUNK)
