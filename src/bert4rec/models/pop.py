"""POP: everybody is offered the most popular items (section 4.3 of the paper).

Items of equal count have equal scores, and evaluation counts ties against the model: POP is not credited
with an order it does not have.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories, training_histories


@dataclass(frozen=True)
class Pop:
    """Scores every item by how often it was chosen, whoever asks."""

    counts: NDArray[np.int64]
    """Actions per item number; entry 0 is padding."""

    @classmethod
    def fit(cls, dataset: Dataset, training_end: NDArray[np.int64]) -> "Pop":
        """Count the training part only, which ends at `training_end` for each user."""
        return cls(training_histories(dataset, training_end).item_counts(dataset.num_items))

    @classmethod
    def fit_all(cls, dataset: Dataset) -> "Pop":
        """Count every action, the targets too. It peeks, but is what the authors' evaluator does."""
        return cls(dataset.item_counts)

    def scores(self, users: NDArray[np.int64], histories: Histories) -> NDArray[np.int64]:
        """[users, items + 1]: the same row for each user, stored once."""
        assert len(users) == len(histories)
        return np.broadcast_to(self.counts, (len(users), len(self.counts)))
