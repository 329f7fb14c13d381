"""What processes say to each other, in the few forms that are used here. gloo and NCCL know all of them."""

import torch
import torch.distributed as dist
from torch import Tensor


def gathered(own: Tensor) -> Tensor:
    """[ranks, ...]: this tensor of every rank, of the same shape everywhere."""
    everybody = own.new_empty(dist.get_world_size(), *own.shape)
    dist.all_gather(list(everybody), own.contiguous())
    return everybody


def exchanged(outgoing: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """Send so many rows to each rank, one after the other, and return what came from each, likewise."""
    incoming = outgoing.new_empty(sum(received), *outgoing.shape[1:])
    dist.all_to_all_single(incoming, outgoing.contiguous(), received, sent)
    return incoming


def scattered_sum(everybody: Tensor) -> Tensor:
    """Of [ranks, ...], the sum over all ranks of the part that is this one's; always added in the order of ranks."""
    incoming = torch.empty_like(everybody)
    dist.all_to_all_single(incoming, everybody.contiguous())
    return incoming.sum(dim=0)


def summed(own: Tensor) -> Tensor:
    """The sum over all ranks, in place."""
    dist.all_reduce(own)
    return own
