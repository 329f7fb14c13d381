"""Where kernels run, and the random numbers that they share with their backward passes."""

from functools import cache
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


def can_run(x: Tensor) -> bool:
    """Whether kernels can compute with this tensor."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16, torch.float32) and has_triton()


def is_fused(x: Tensor) -> bool:
    """Whether a kernel does compute with this tensor. Of the plain form, a compiler makes kernels of its own."""
    return can_run(x) and is_eager()


def is_eager() -> bool:
    """Whether operations run one by one, so that fewer of them are faster. A compiler joins those of the plain form."""
    return not torch.compiler.is_compiling()


@cache
def one(device: torch.device) -> Tensor:
    """The gradient of a loss that is optimised as it is. `is_one` knows it by its place, without reading it."""
    return torch.ones((), device=device)


def is_one(gradient: Tensor) -> bool:
    # What a compiler traces with has no place.
    return type(gradient) is Tensor and gradient.data_ptr() == one(gradient.device).data_ptr()


def draw_seeds(device: torch.device, count: int) -> Tensor:
    """[count, 2]: two random numbers for each kernel, from which it makes its dropout again in the backward pass.

    Recorded in a CUDA graph, they are new at each replay.
    """
    return torch.randint(-(1 << 31), (1 << 31) - 1, (count, 2), dtype=torch.int32, device=device)


def draw_seed(device: torch.device) -> Tensor:
    return draw_seeds(device, 1)[0]


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
    return x.device.type != "cpu" or not is_eager()


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
    """What the kernels keep: True with probability 1 - dropout, decided by the seed and the place in the tensor.

    A hash of two rounds (by C. Wellons, "lowbias32"), in the arithmetic of unsigned numbers of 32 bits.
    """
    first, second = seed.to(torch.int64) & 0xFFFFFFFF
    x = torch.arange(torch.Size(shape).numel(), dtype=torch.int64, device=seed.device) & 0xFFFFFFFF
    x = x ^ first
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = (x ^ (x >> 15)) + second
    x = ((x & 0xFFFFFFFF) * 0xD35A2D97) & 0xFFFFFFFF
    x = x ^ (x >> 15)
    uniform: Tensor = (x >> 8).to(torch.float32) * 2**-24
    return (uniform >= dropout).view(shape)
