"""FPMC (Rendle et al., 2010): matrix factorisation and a factorised Markov chain of order one, added up.

A score is how well the item fits the user, plus how well it follows the item before. Baskets hold one item here.
"""

import torch
from torch import Tensor, nn

from bert4rec.models.bert4rec import initialise
from bert4rec.models.history_batch import HistoryBatch
from bert4rec.models.model import SequentialModel
from bert4rec.settings.networks import FPMCConfig


class FPMC(SequentialModel):
    """Users are numbered from 0; items from 1, because 0 is padding."""

    knows_users = True
    max_history = 1
    item_bias: Tensor
    """Zeros: FPMC has no bias."""

    def __init__(
        self, num_users: int, num_items: int, config: FPMCConfig, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.user_table = nn.Embedding(num_users, config.dim)
        self.previous_table = nn.Embedding(num_items + 1, config.dim)
        # The next item's two vectors, one for the user and one for the item before, side by side.
        self.next_table = nn.Embedding(num_items + 1, 2 * config.dim)
        self.register_buffer("item_bias", torch.zeros(num_items), persistent=False)
        initialise(self, generator)

    def queries(
        self,
        histories: HistoryBatch,
        users: Tensor | None = None,
        dtype: torch.dtype | None = None,  # noqa: ARG002
    ) -> Tensor:
        previous = histories.newest(1)[:, 0]
        return torch.cat([self.user_table(users), self.previous_table(previous)], dim=1)

    def item_vectors(self) -> tuple[Tensor, Tensor]:
        return self.next_table.weight, self.item_bias
