"""The optimiser and its learning rate."""

from typing import Any

import torch
from torch import Tensor, nn

from bert4rec.settings.objectives import TrainingConfig


def schedule(config: TrainingConfig) -> Tensor:
    """Share of the learning rate at each step: up to 1 in the warm-up, down to 0 at the end; 0 behind it."""
    number = torch.arange(1.0, config.steps + 2)
    rise = number / max(1, config.warmup_steps)
    fall = (config.steps - number + 1) / max(1, config.steps - config.warmup_steps)
    return torch.minimum(rise, fall).clamp(0, 1)


def make_optimizer(model: nn.Module, config: TrainingConfig, rate: Tensor) -> torch.optim.AdamW:
    """AdamW that decays matrices and tables, not biases and norms. Its learning rate is read from `rate`."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, fused=True, capturable=rate.is_cuda)
