"""Where training runs and with what precision."""

import platform
from dataclasses import dataclass

import torch

from bert4rec.errors import UsageError

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
        return f"{_processor()}, {threads} thread{'s' * (threads > 1)}"

    @property
    def is_shared(self) -> bool | None:
        """Whether other processes hold memory of the card, so that times say little. None if unknown."""
        if self.device.type != "cuda":
            return None
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free - torch.cuda.memory_reserved(self.device) > OWN_OVERHEAD


def place(name: str = "auto") -> Placement:
    """The device of this name; `auto` takes the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(
            f"Unknown device {name!r}. `device` must be auto, cpu, cuda or a GPU by number, such as cuda:1."
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f'`device="{name}"`: no GPU found. Use `device="cpu"`.')
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"Device {name!r} is not supported. `device` must be auto, cpu or cuda.")
    half = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return Placement(device, torch.bfloat16 if half else None)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
