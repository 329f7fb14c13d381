"""POP: everybody is offered the most popular items (section 4.3 of the paper).

Items of equal count have equal scores, and evaluation counts ties against the model: POP is not credited
with an order it does not have.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories, training_histories
from bert4rec.models.settings import PopConfig


class Pop(nn.Module):
    """Scores every item by how often it was chosen, whoever asks."""

    counts: Tensor
    """int64 [V + 1]: actions per item number; entry 0 is padding."""

    def __init__(self, num_items: int, config: PopConfig, _generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.num_items, self.config = num_items, config
        self.register_buffer("counts", torch.zeros(num_items + 1, dtype=torch.int64))

    @classmethod
    def fit(cls, dataset: Dataset, training_end: NDArray[np.int64], config: PopConfig = PopConfig()) -> "Pop":
        """Count the training part, which ends at `training_end` for each user, or everything."""
        pop = cls(dataset.num_items, config)
        pop.count(dataset, training_end)
        return pop

    def count(self, dataset: Dataset, training_end: NDArray[np.int64]) -> None:
        training = training_histories(dataset, training_end)
        everything = self.config.actions == "all"
        counts = dataset.item_counts if everything else training.item_counts(dataset.num_items)
        self.counts.copy_(torch.from_numpy(counts))

    def scores(
        self, users: NDArray[np.int64], histories: Histories, items: NDArray[np.int64] | None = None
    ) -> Tensor:
        """[users, items + 1], the same row for each user, stored once; or those of `items` [users, K] alone."""
        assert len(users) == len(histories)
        return self.counts.expand(len(users), -1) if items is None else self.counts[torch.as_tensor(items)]
