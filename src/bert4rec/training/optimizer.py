"""The optimiser and its learning rate."""

import torch
from torch import Tensor, nn

from bert4rec.kernels.adamw import ClippedAdamW, Norm
from bert4rec.settings.objectives import TrainingConfig


def schedule(config: TrainingConfig) -> Tensor:
    """Share of the learning rate at each step: up to 1 in the warm-up, down to 0 at the end; 0 behind it."""
    number = torch.arange(1.0, config.steps + 2)
    rise = number / max(1, config.warmup_steps)
    fall = (config.steps - number + 1) / max(1, config.steps - config.warmup_steps)
    return torch.minimum(rise, fall).clamp(0, 1)


def make_optimizer(
    model: nn.Module, config: TrainingConfig, rate: Tensor, norm: Norm | None = None
) -> ClippedAdamW:
    """The optimiser of a training. Its learning rate is read from `rate`; `norm` is as in `ClippedAdamW`."""
    return ClippedAdamW(model, rate, weight_decay=config.weight_decay, clip_norm=config.clip_norm, norm=norm)
