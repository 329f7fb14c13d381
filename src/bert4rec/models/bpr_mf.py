"""BPR-MF (Rendle et al., 2009): a vector for every user and every item, and a bias for every item.

Blind to order: of a user it knows who it is, and not what came last. Trained with the pairwise ranking loss.
"""

import torch
from torch import Tensor, nn

from bert4rec.models.bert4rec import initialise
from bert4rec.models.settings import BPRMFConfig


class BPRMF(nn.Module):
    """Users are numbered from 0; items from 1, because 0 is padding."""

    context = 0
    """Items of the history that are looked at."""

    def __init__(
        self, num_users: int, num_items: int, config: BPRMFConfig, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.user_table = nn.Embedding(num_users, config.dim)
        self.item_table = nn.Embedding(num_items + 1, config.dim)
        self.item_bias = nn.Parameter(torch.zeros(num_items + 1))
        initialise(self, generator)

    def score(self, users_B: Tensor, context_BC: Tensor, items_BK: Tensor) -> Tensor:  # noqa: ARG002
        """Scores [B, K] of some items for each user."""
        # A product and a sum: as many small matrix products they take twice as long on a CPU.
        products: Tensor = (self.user_table(users_B)[:, None] * self.item_table(items_BK)).sum(dim=-1)
        return products + self.item_bias[items_BK]

    def scores(self, users_B: Tensor, context_BC: Tensor) -> Tensor:  # noqa: ARG002
        """Scores [B, V + 1] of all items; column 0 is padding."""
        return torch.addmm(self.item_bias, self.user_table(users_B), self.item_table.weight.T)
