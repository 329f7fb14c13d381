"""FPMC (Rendle et al., 2010): matrix factorisation and a factorised Markov chain of order one, added up.

A score is how well the item fits the user, plus how well it follows the item before. Baskets hold one item here.
"""

import torch
from torch import Tensor, nn

from bert4rec.models.bert4rec import initialise
from bert4rec.models.settings import FPMCConfig


class FPMC(nn.Module):
    """Users are numbered from 0; items from 1, because 0 is padding."""

    context = 1
    """Items of the history that are looked at."""

    def __init__(
        self, num_users: int, num_items: int, config: FPMCConfig, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.user_table = nn.Embedding(num_users, config.dim)
        self.previous_table = nn.Embedding(num_items + 1, config.dim)
        # The next item's two vectors, one for the user and one for the item before, side by side.
        self.next_table = nn.Embedding(num_items + 1, 2 * config.dim)
        initialise(self, generator)

    def score(self, users_B: Tensor, context_BC: Tensor, items_BK: Tensor) -> Tensor:
        """Scores [B, K] of some items for each user after what came before."""
        # A product and a sum: as many small matrix products they take twice as long on a CPU.
        scores: Tensor = (self._query(users_B, context_BC)[:, None] * self.next_table(items_BK)).sum(dim=-1)
        return scores

    def scores(self, users_B: Tensor, context_BC: Tensor) -> Tensor:
        """Scores [B, V + 1] of all items; column 0 is padding."""
        return self._query(users_B, context_BC) @ self.next_table.weight.T

    def _query(self, users_B: Tensor, context_BC: Tensor) -> Tensor:
        return torch.cat([self.user_table(users_B), self.previous_table(context_BC[:, -1])], dim=1)
