"""Where training runs and with what precision."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch

from bert4rec.errors import UsageError
from bert4rec.machine import keep_compiled_code, processor_name

log = logging.getLogger("bert4rec")
OWN_OVERHEAD = 3 << 29
"""Bytes of a card's memory that a process takes besides its tensors: context, kernels, recorded graphs."""


@dataclass(frozen=True)
class Placement:
    """A device, and the precision used on it."""

    device: torch.device
    dtype: torch.dtype | None
    """Of activations: bfloat16 on GPUs that have it, otherwise that of the weights."""

    @property
    def name(self) -> str:
        """For result files: the card, or the processor and its threads."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        threads = torch.get_num_threads()
        return f"{processor_name()}, {threads} thread{'s' * (threads > 1)}"

    def __str__(self) -> str:
        """For people."""
        kind = {"cuda": "the GPU", "mps": "Apple's GPU", "cpu": "the CPU"}.get(
            self.device.type, str(self.device)
        )
        return f"{kind} in {str(self.dtype or torch.float32).removeprefix('torch.')}"

    @property
    def is_shared(self) -> bool | None:
        """Whether other processes hold memory of the card, so that times say little. None if unknown."""
        if self.device.type != "cuda":
            return None
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free - torch.cuda.memory_reserved(self.device) > OWN_OVERHEAD


def place(name: str = "auto") -> Placement:
    """The device of this name; `auto` takes a GPU if there is one.

    A GPU of a kind that we do not train on is tried first. If it cannot do it, a slower way is taken, and said.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(
            f"Unknown device {name!r}. `device` must be auto, cpu, cuda, mps or a GPU by number, such as cuda:1."
        ) from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"Device {name!r} is not supported. `device` must be auto, cpu, cuda or mps.")
    is_there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not is_there[device.type]:
        raise UsageError(f'`device="{name}"`: no GPU found. Use `device="cpu"`.')
    return _settled(device)


@cache
def _settled(device: torch.device) -> Placement:
    """The fastest way to train there. Found out once in a process."""
    if device.type == "cuda":
        keep_compiled_code()
    half = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    placement = Placement(device, torch.bfloat16 if half else None)
    if device.type == "cpu" or _is_well_known(device):
        return placement
    return first_that_works([placement, Placement(device, None), Placement(torch.device("cpu"), None)])


def _is_well_known(device: torch.device) -> bool:
    """Whether it is a GPU by NVIDIA, of Ampere or later."""
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    return is_nvidia and torch.cuda.get_device_capability(device) >= (8, 0)


def first_that_works(placements: Sequence[Placement]) -> Placement:
    """Each is tried with a few steps, the last one taken as it is. What does not work is said."""
    from bert4rec.training.trial import try_to_train

    for placement, next_one in pairwise(placements):
        try:
            try_to_train(placement)
        except Exception as error:  # Whatever it is, training goes on elsewhere.
            reason = str(error).partition("\n")[0] or type(error).__name__
            log.warning("Training does not work on %s (%s). It is done on %s.", placement, reason, next_one)
        else:
            return placement
    return placements[-1]
