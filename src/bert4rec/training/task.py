"""BERT4Rec as the training loop and as evaluation want it: batches in, a loss out; histories in, scores out."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories
from bert4rec.evaluation.protocol import Scorer
from bert4rec.models.bert4rec import BERT4Rec
from bert4rec.training.batches import Batches
from bert4rec.training.cloze import append_mask
from bert4rec.training.config import RunConfig
from bert4rec.training.losses import cloze_loss
from bert4rec.training.windows import cut_windows


class ClozeTask:
    """A fresh model, and the Cloze batches of all actions before `training_end`."""

    def __init__(
        self,
        dataset: Dataset,
        training_end: NDArray[np.int64],
        config: RunConfig,
        *,
        seed: int,
        device: torch.device,
        dtype: torch.dtype | None,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.model = BERT4Rec(dataset.num_items, config.model, generator).to(device)
        self.dtype = dtype
        max_length = config.model.max_length
        windows = cut_windows(
            dataset.offsets[:-1], training_end, max_length=max_length, step_share=config.training.window_step
        )
        self._batches = Batches(
            torch.from_numpy(np.array(dataset.sequences)).to(device),
            windows,
            config.cloze,
            max_length=max_length,
            mask_number=dataset.mask_number,
            batch_size=config.training.batch_size,
            seed=seed,
        )
        self.width = self._batches.shape.width

    def block(self, step: int) -> tuple[int, Tensor]:
        return self._batches.block(step)

    def loss(self, batch: Tensor) -> Tensor:
        return cloze_loss(self.model, self._batches.shape.read(batch), self.dtype)

    def scorer(self) -> Scorer:
        return make_scorer(self.model, dtype=self.dtype)


def make_scorer(model: BERT4Rec, *, dtype: torch.dtype | None = None) -> Scorer:
    """What evaluation asks a trained model: scores [users, items + 1] for what each history goes on with."""
    device = model.item_bias.device

    @torch.inference_mode()
    def scores(users: NDArray[np.int64], histories: Histories) -> Tensor:
        assert len(users) == len(histories)
        recent = histories.newest(model.config.max_length - 1)
        _, items = recent.flat()
        end = torch.as_tensor(np.cumsum(recent.lengths), device=device)
        begin = end - torch.as_tensor(recent.lengths, device=device)
        batch = append_mask(
            torch.as_tensor(items, device=device),
            begin,
            end,
            max_length=model.config.max_length,
            mask_number=model.mask_number,
        )
        hidden = model.encode(batch.tokens, batch.positions, batch.layout, dtype)
        # Scores in float32: in bfloat16 many items would tie, and ties count against the model.
        return model.scores(hidden.float())

    return scores
