"""BPR-MF (Rendle et al., 2009): a vector for every user and every item, and a bias for every item.

Blind to order: of a user it knows who it is, and not what came last. Trained with the pairwise ranking loss.
"""

import torch
from torch import Tensor, nn

from bert4rec.models.bert4rec import initialise
from bert4rec.models.history_batch import HistoryBatch
from bert4rec.models.model import SequentialModel
from bert4rec.settings.networks import BPRMFConfig


class BPRMF(SequentialModel):
    """Users are numbered from 0; items from 1, because 0 is padding."""

    knows_users = True
    max_history = 0

    def __init__(
        self, num_users: int, num_items: int, config: BPRMFConfig, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.user_table = nn.Embedding(num_users, config.dim)
        self.item_table = nn.Embedding(num_items + 1, config.dim)
        self.item_bias = nn.Parameter(torch.zeros(num_items + 1))
        initialise(self, generator)

    def queries(
        self,
        histories: HistoryBatch,  # noqa: ARG002
        users: Tensor | None = None,
        dtype: torch.dtype | None = None,  # noqa: ARG002
    ) -> Tensor:
        query: Tensor = self.user_table(users)
        return query

    def item_vectors(self) -> tuple[Tensor, Tensor]:
        return self.item_table.weight, self.item_bias[1:]
