"""POP: everybody is recommended the most popular items (section 4.3 of the paper).

Items of equal count have equal scores, and evaluation counts ties against the model: POP is not credited
with an order it does not have.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import training_histories
from bert4rec.models.history_batch import HistoryBatch
from bert4rec.models.model import SequentialModel
from bert4rec.settings.networks import PopConfig


class Pop(SequentialModel):
    """Scores every item by how often it was chosen, the same for everybody."""

    max_history = 0
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
        """Replace the counts, as `fit` finds them."""
        training = training_histories(dataset, training_end)
        everything = self.config.actions == "all"
        counts = dataset.item_counts if everything else training.item_counts(dataset.num_items)
        self.counts.copy_(torch.from_numpy(counts))

    def queries(
        self,
        histories: HistoryBatch,
        users: Tensor | None = None,  # noqa: ARG002
        dtype: torch.dtype | None = None,  # noqa: ARG002
    ) -> Tensor:
        """The same for everybody: the number 1."""
        return torch.ones((len(histories), 1), dtype=torch.float64, device=self.counts.device)

    def item_vectors(self) -> tuple[Tensor, Tensor]:
        """The counts, in float64, which holds any of them exactly."""
        table = self.counts.double()[:, None]
        return table, table.new_zeros(self.num_items)
