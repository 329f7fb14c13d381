"""Where kernels run, and the random numbers that they share with their backward passes."""

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from threading import Thread
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SEEDS_A_STEP = 64
"""Enough for a model of a dozen layers."""
EVERY_SEED = -(1 << 31), (1 << 31) - 1
ZEROS_A_STEP = 1 << 17
"""Enough for the parameters of two layers of 64 channels."""
WHOLE_LINE = 32
"""Numbers of float32 in a line of a GPU's memory."""


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


@cache
def loading_compiler(device: torch.device) -> Thread:
    """The thread that loads Triton and what it needs for its first kernel on this GPU, begun with the first call.

    That takes half a second and more, in which Python is mostly free to do something else, such as to make a task.
    Nothing must be recorded on the device meanwhile.
    """

    def load() -> None:
        with suppress(Exception):  # Whoever launches the first kernel meets it again, and can be told.
            from bert4rec.kernels.gpu.launch_triton import load_compiler

            load_compiler(device)

    thread = Thread(target=load)
    thread.start()
    return thread


class Played:
    """The GPU whose part a CPU plays. So tests run and compile kernels where there is none; nobody else does."""

    shared_memory = 0
    """Bytes of its multiprocessors; 0 if none is played."""


def is_on_gpu(x: Tensor) -> bool:
    """Whether a GPU computes with this tensor."""
    return x.is_cuda or Played.shared_memory > 0


def can_run(x: Tensor) -> bool:
    """Whether kernels can compute with this tensor."""
    return is_on_gpu(x) and x.dtype in (torch.bfloat16, torch.float16, torch.float32) and has_triton()


def is_fused(x: Tensor) -> bool:
    """Whether a kernel does compute with this tensor. Of the plain form, a compiler makes kernels of its own."""
    return is_eager() and can_run(x)


def is_eager() -> bool:
    """Whether operations run one by one, so that fewer of them are faster. A compiler joins those of the plain form."""
    return not torch.compiler.is_compiling()


@cache
def one(device: torch.device) -> Tensor:
    """The gradient of a loss that is optimised as it is. `is_one` knows it by its place, without reading it."""
    return torch.ones((), device=device)


class _Optimised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        ctx.dtype = loss.dtype
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return one(gradient.device).to(ctx.dtype)


def find_gradients(loss: Tensor) -> None:
    """Go back from a loss that is optimised as it is.

    With the known gradient as an argument, torch would do the same, but import seconds of symbolic algebra to check it.
    """
    _Optimised.apply(loss).backward()  # type: ignore[no-untyped-call]


def is_one(gradient: Tensor) -> bool:
    # What a compiler traces with has no place.
    return type(gradient) is Tensor and gradient.data_ptr() == one(gradient.device).data_ptr()


def narrow_copy(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """A parameter in a narrower dtype. In the steps of a training it is kept, and renewed by `ClippedAdamW`.

    Whatever else changes the parameter in place is noticed by its version.
    """
    kept: tuple[Tensor, int] | None = getattr(parameter, "_narrow", None)
    if _Step.is_running and kept and kept[0].dtype == dtype and kept[1] == parameter._version:
        return kept[0]
    copy = parameter.detach().to(dtype)
    if _Step.is_running and parameter.is_leaf:
        parameter._narrow = copy, parameter._version  # type: ignore[attr-defined]
    return copy


def narrow_address(parameter: Tensor) -> int:
    """Of the copy in bfloat16 that is to be renewed with a parameter; 0, if there is none."""
    kept: tuple[Tensor, int] | None = getattr(parameter, "_narrow", None)
    if kept is None or kept[0].dtype != torch.bfloat16 or kept[1] != parameter._version:
        return 0
    return kept[0].data_ptr()


def begin_gradient(leaf: Tensor, gradient: Tensor) -> Tensor | None:
    """Make this the gradient of a leaf at once, so that a later part of the way back can add to it where it is.

    autograd would keep both and sum them up in a pass of its own. None, if that is done; else the gradient.
    """
    if not (leaf.is_leaf and leaf.grad is None and is_fused(gradient) and gradient.dtype == leaf.dtype):
        return gradient
    leaf.grad = gradient
    leaf._begun = weakref.ref(gradient)  # type: ignore[attr-defined]
    return None


def begun_gradient(leaf: Tensor) -> Tensor | None:
    """The gradient that this way back has begun, if any."""
    begun = getattr(leaf, "_begun", None)
    gradient = begun() if begun else None
    return gradient if gradient is not None and gradient is leaf.grad else None


class _Step:
    """The step of a training that is running, if one is: a process takes one at a time."""

    is_running = False
    seeds = torch.empty(0, 2)
    """Drawn, but not yet used."""
    zeros = torch.empty(0)
    """Cleared, but not yet used."""


@contextmanager
def training_step(seeds: Tensor | None = None) -> Iterator[None]:
    """Meanwhile nobody but `ClippedAdamW` changes parameters: what is copied or drawn may serve more than once.

    `seeds` [N, 2] are for the kernels of this step; where there are too few, more are drawn.
    """
    _Step.is_running = True
    _Step.seeds = torch.empty(0, 2) if seeds is None else seeds
    try:
        yield
    finally:
        _Step.is_running, _Step.seeds, _Step.zeros = False, torch.empty(0, 2), torch.empty(0)


def draw_seed(device: torch.device) -> Tensor:
    """Two random numbers for a kernel, from which it makes its dropout again in the backward pass.

    In a step they are drawn for all kernels at once. Recorded in a CUDA graph, they are new at each replay.
    """
    if not len(_Step.seeds):
        shape = SEEDS_A_STEP if _Step.is_running else 1, 2
        _Step.seeds = torch.randint(*EVERY_SEED, shape, dtype=torch.int32, device=device)
    seed, _Step.seeds = _Step.seeds[0], _Step.seeds[1:]
    return seed


def sums(device: torch.device, *shape: int) -> Tensor:
    """Zeros of float32, to which many programs add what they find of the gradient of a parameter.

    In a step many are cleared at once. Which program comes first is left to chance, and with it the last bits.
    """
    count = math.prod(shape)
    if _Step.zeros.device != device or len(_Step.zeros) < count:
        _Step.zeros = torch.zeros(max(count, ZEROS_A_STEP) if _Step.is_running else count, device=device)
    taken, _Step.zeros = _Step.zeros[:count], _Step.zeros[-(-count // WHOLE_LINE) * WHOLE_LINE :]
    return taken.view(shape)


def dropped(x: Tensor, share: float) -> Tensor:
    """What dropout leaves of x."""
    if not share:
        return x
    return F.dropout(x, share) if _is_left_to_torch(x) else x * kept(x, share)


def added_dropped(x: Tensor, y: Tensor, share: float) -> Tensor:
    """x plus what dropout leaves of y."""
    if not share or _is_left_to_torch(y):
        return x + dropped(y, share)
    return torch.addcmul(x, y, kept(y, share))


def _is_left_to_torch(x: Tensor) -> bool:
    return x.device.type != "cpu" or is_on_gpu(x) or not is_eager()


def kept(x: Tensor, share: float) -> Tensor:
    """What x is to be multiplied with: 0 in this share of the places, and what makes up for it elsewhere.

    On a CPU, where torch's own dropout takes ten times as long: from 16 random bits each, so that the share is right to
    a hundred-thousandth. The factor goes by the share that it is.
    """
    limit = min(round(share * (1 << 16)), (1 << 16) - 1)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    is_kept = torch.ge(
        bits, limit - (1 << 15), out=torch.empty_like(x, memory_format=torch.contiguous_format)
    )
    return is_kept.mul_(1 / (1 - limit / (1 << 16)))


def keep_mask(seed: Tensor, shape: tuple[int, ...], dropout: float) -> Tensor:
    """What the kernels keep: True with probability 1 - dropout, decided by the seed and the place in the tensor."""
    place = torch.arange(torch.Size(shape).numel(), dtype=torch.int64, device=seed.device)
    return (mixed(place, seed) >= lowest_kept(dropout)).view(shape)


def keep_pairs(seed: Tensor, queries: Tensor, keys: Tensor, dropout: float) -> Tensor:
    """[Q, K]: what attention keeps, by products of odd random numbers. A hash of so many pairs would take too long."""
    query, key = mixed(queries, seed) | 1, mixed(keys, seed) | 1
    return (query[:, None] * key[None, :]) % (1 << 32) >= lowest_kept(dropout)


def lowest_kept(dropout: float) -> int:
    """Of random numbers of 32 bits. The kernels are given `dropout` in float32."""
    return int(float(torch.tensor(dropout, dtype=torch.float32)) * (1 << 32))


def mixed(x: Tensor, seed: Tensor) -> Tensor:
    """A random number of 32 bits for each number in x.

    A hash of two rounds (by C. Wellons, "lowbias32"), in the arithmetic of unsigned numbers of 32 bits.
    """
    first, second = seed.to(torch.int64) & 0xFFFFFFFF
    x = (x.to(torch.int64) & 0xFFFFFFFF) ^ first
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = (x ^ (x >> 15)) + second
    x = ((x & 0xFFFFFFFF) * 0xD35A2D97) & 0xFFFFFFFF
    return x ^ (x >> 15)
