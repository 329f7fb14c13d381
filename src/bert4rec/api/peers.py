"""What `bert4rec bench train` compares with: a plain loop, and `BertForMaskedLM` of transformers.

The plain loop is what one would write first: `nn.TransformerEncoder`, every sequence padded to the longest, logits for
every position. The peer is what one would take instead.
"""

from collections.abc import Callable
from itertools import cycle

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bert4rec.api.timing import Speed, forget_peak, time_steps
from bert4rec.data.dataset import PADDING, Dataset
from bert4rec.settings.networks import ModelConfig
from bert4rec.settings.objectives import Cloze, TrainingConfig
from bert4rec.tasks.windows import Windows
from bert4rec.training.device import Placement

Sections = tuple[ModelConfig, Cloze, TrainingConfig]
"""The settings of BERT4Rec, which is what is timed."""

BATCHES_AHEAD = 16
"""Batches that a peer finds ready, as if other processes had made them."""
UNMASKED = -100
"""The label of what is not to be predicted, as torch and transformers have it."""


def time_plain(dataset: Dataset, windows: Windows, sections: Sections, placement: Placement) -> Speed:
    forget_peak(placement)
    network, cloze, training = sections
    model = _PlainModel(dataset.num_items, network).to(placement.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(1)

    def loss() -> Tensor:
        chosen = rng.integers(len(windows), size=training.batch_size)
        items = torch.from_numpy(
            _padded(dataset.sequences, windows, chosen, network.max_length, left=True)
        ).to(placement.device)
        masked = torch.rand(items.shape, device=items.device) < cloze.mask_probability
        masked &= items != PADDING
        masked[:, -1] = True
        logits = model(items.masked_fill(masked, dataset.mask_number))
        return F.cross_entropy(logits.flatten(0, 1), items.masked_fill(~masked, UNMASKED).flatten())

    step = _step(loss, optimizer, training, placement)
    return time_steps(step, placement, training.batch_size, windows.average_length)


def _step(
    loss: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer,
    training: TrainingConfig,
    placement: Placement,
) -> Callable[[], None]:
    """A training step as everybody writes it, in the precision that ours has."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]

    def step() -> None:
        with torch.autocast(placement.device.type, torch.bfloat16, enabled=placement.dtype is not None):
            value = loss()
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, training.clip_norm)
        optimizer.step()

    return step


def time_transformers(dataset: Dataset, windows: Windows, sections: Sections, placement: Placement) -> Speed:
    """`BertForMaskedLM` as its users train it: padded to the longest of a batch, its own loss, a fused AdamW.

    Its batches are on the device before the clock starts, so that nothing but the training counts.
    """
    forget_peak(placement)
    network, cloze, training = sections
    model = transformers_model(dataset.num_items, network).to(placement.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rng = np.random.default_rng(1)

    def batch() -> dict[str, Tensor]:
        chosen = rng.integers(len(windows), size=training.batch_size)
        longest = int(windows.length[chosen].max())
        # Padding comes last, as transformers' own collators have it.
        items = torch.from_numpy(_padded(dataset.sequences, windows, chosen, longest, left=False))
        masked = (torch.rand(items.shape) < cloze.mask_probability) & (items != PADDING)
        return {
            "input_ids": items.masked_fill(masked, dataset.mask_number),
            "attention_mask": (items != PADDING).long(),
            "labels": items.masked_fill(~masked, UNMASKED),
        }

    ready = cycle(
        [
            {name: tensor.to(placement.device) for name, tensor in batch().items()}
            for _ in range(BATCHES_AHEAD)
        ]
    )

    def loss() -> Tensor:
        value: Tensor = model(**next(ready)).loss
        return value

    step = _step(loss, optimizer, training, placement)
    return time_steps(step, placement, training.batch_size, windows.average_length)


def transformers_model(num_items: int, size: ModelConfig) -> nn.Module:
    """BERT4Rec's size in `transformers`, with the attention of torch that it takes by default."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=num_items + 2,
        hidden_size=size.dim,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.dim * size.feed_forward,
        max_position_embeddings=size.max_length,
        type_vocab_size=1,
        pad_token_id=PADDING,
        hidden_dropout_prob=size.hidden_dropout,
        attention_probs_dropout_prob=size.attention_dropout,
        attn_implementation="sdpa",
    )
    model: nn.Module = BertForMaskedLM(config)
    return model


class _PlainModel(nn.Module):
    def __init__(self, num_items: int, size: ModelConfig) -> None:
        super().__init__()
        self.items = nn.Embedding(num_items + 2, size.dim, padding_idx=PADDING)
        self.positions = nn.Embedding(size.max_length, size.dim)
        layer = nn.TransformerEncoderLayer(
            size.dim, size.heads, size.dim * size.feed_forward, size.hidden_dropout, "gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
        self.output = nn.Linear(size.dim, size.dim)
        self.bias = nn.Parameter(torch.zeros(num_items + 2))

    def forward(self, items: Tensor) -> Tensor:
        x = self.items(items) + self.positions.weight
        x = self.encoder(x, src_key_padding_mask=items == PADDING)
        return F.gelu(self.output(x)) @ self.items.weight.T + self.bias


def _padded(
    sequences: NDArray[np.int32],
    windows: Windows,
    chosen: NDArray[np.int64],
    length: int,
    *,
    left: bool,
) -> NDArray[np.int64]:
    """One row a window, filled up with padding on the left or on the right."""
    table = np.zeros((len(chosen), length), np.int64)
    for row, window in enumerate(chosen):
        begin, size = windows.begin[window], windows.length[window]
        place = slice(length - size, length) if left else slice(size)
        table[row, place] = sequences[begin : begin + size]
    return table
