"""The kernels of `gate`."""

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _gate_forward_kernel(x, out, size, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    at_gate = place + place // WIDTH * WIDTH
    gate = tl.load(x + at_gate, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + at_gate + WIDTH, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, (gate * tl.sigmoid(gate) * value).to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _gate_backward_kernel(gradient, x, x_gradient, size, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    at_gate = place + place // WIDTH * WIDTH
    gate = tl.load(x + at_gate, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + at_gate + WIDTH, mask=inside, other=0.0).to(tl.float32)
    above = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    of_gate = above * value * share * (1.0 + gate * (1.0 - share))
    tl.store(x_gradient + at_gate, of_gate.to(x_gradient.dtype.element_ty), mask=inside)
    tl.store(
        x_gradient + at_gate + WIDTH, (above * gate * share).to(x_gradient.dtype.element_ty), mask=inside
    )


def forward(x: Tensor) -> Tensor:
    x, width = x.contiguous(), x.shape[-1] // 2
    out = x.new_empty(*x.shape[:-1], width)
    _gate_forward_kernel[(triton.cdiv(out.numel(), BLOCK),)](x, out, out.numel(), width, BLOCK)
    return out


def backward(gradient: Tensor, x: Tensor) -> Tensor:
    x, gradient, width = x.contiguous(), gradient.contiguous(), x.shape[-1] // 2
    x_gradient = torch.empty_like(x)
    _gate_backward_kernel[(triton.cdiv(gradient.numel(), BLOCK),)](
        gradient, x, x_gradient, gradient.numel(), width, BLOCK
    )
    return x_gradient
