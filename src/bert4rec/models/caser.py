"""Caser (Tang and Wang, 2018): the last items as an image, read by horizontal and vertical convolutions.

A horizontal filter of height h slides over the items and looks for a pattern in h neighbours; its strongest
answer is kept. A vertical filter is a weighted sum over the items. Both, and the user's vector, make the query.

Shapes: B users, C last items, D = dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.data.dataset import PADDING
from bert4rec.models.bert4rec import initialise
from bert4rec.models.settings import CaserConfig


class Caser(nn.Module):
    """Users are numbered from 0; items from 1, because 0 is padding."""

    def __init__(
        self, num_users: int, num_items: int, config: CaserConfig, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.config, dim = config, config.dim
        self.user_table = nn.Embedding(num_users, dim)
        self.item_table = nn.Embedding(num_items + 1, dim, padding_idx=PADDING)
        self.horizontal = nn.ModuleList(
            nn.Conv1d(dim, config.horizontal, height) for height in range(1, config.max_length + 1)
        )
        self.vertical = nn.Linear(config.max_length, config.vertical)
        found = config.horizontal * config.max_length + config.vertical * dim
        self.narrow = nn.Linear(found, dim)
        self.output_table = nn.Embedding(num_items + 1, 2 * dim)
        self.output_bias = nn.Parameter(torch.zeros(num_items + 1))
        initialise(self, generator)
        nn.init.zeros_(self.item_table.weight.data[PADDING])  # nothing to be seen there, now and ever
        for layer in [*self.horizontal, self.vertical, self.narrow]:
            nn.init.xavier_uniform_(layer.weight, generator=generator)

    @property
    def context(self) -> int:
        """Items of the history that are looked at."""
        return self.config.max_length

    def score(self, users_B: Tensor, context_BC: Tensor, items_BK: Tensor) -> Tensor:
        """Scores [B, K] of some items for each user after what came before."""
        query = self._query(users_B, context_BC)
        # A product and a sum: as many small matrix products they take twice as long on a CPU.
        products: Tensor = (query[:, None] * self.output_table(items_BK)).sum(dim=-1)
        return products + self.output_bias[items_BK]

    def scores(self, users_B: Tensor, context_BC: Tensor) -> Tensor:
        """Scores [B, V + 1] of all items; column 0 is padding."""
        return torch.addmm(self.output_bias, self._query(users_B, context_BC), self.output_table.weight.T)

    def _query(self, users_B: Tensor, context_BC: Tensor) -> Tensor:
        x_BDC = self.item_table(context_BC).transpose(1, 2)
        patterns = [F.relu(filters(x_BDC)).amax(dim=2) for filters in self.horizontal]
        found = torch.cat([*patterns, self.vertical(x_BDC).flatten(1)], dim=1)
        narrowed = F.relu(self.narrow(F.dropout(found, self.config.hidden_dropout, self.training)))
        return torch.cat([narrowed, self.user_table(users_B)], dim=1)
