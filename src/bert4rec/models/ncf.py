"""NCF (He et al., 2017): NeuMF, a generalised matrix factorisation and a small network, joined in one output.

Both towers have user and item vectors of their own. Blind to order, as BPR-MF is. Trained to tell chosen items
from others, one by one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.models.bert4rec import initialise
from bert4rec.models.settings import NCFConfig

PAIRS_AT_ONCE = 1 << 22
"""Pairs of user and item whose hidden layers are held at a time when all items are scored."""


class NCF(nn.Module):
    """Users are numbered from 0; items from 1, because 0 is padding."""

    context = 0
    """Items of the history that are looked at."""

    def __init__(
        self, num_users: int, num_items: int, config: NCFConfig, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.config, dim = config, config.dim
        self.user_product, self.item_product = nn.Embedding(num_users, dim), nn.Embedding(num_items + 1, dim)
        # The first layer reads the vectors of user and item side by side, which is the sum of a product with
        # each: those products are what is learned as the network's tables. It saves the layer.
        self.user_network, self.item_network = nn.Embedding(num_users, dim), nn.Embedding(num_items + 1, dim)
        self.network = nn.ModuleList(
            nn.Linear(dim >> depth, dim >> (depth + 1)) for depth in range(config.layers - 1)
        )
        self.output = nn.Linear(dim + (dim >> (config.layers - 1)), 1)
        initialise(self, generator)
        for layer in [*self.network, self.output]:
            nn.init.xavier_uniform_(layer.weight, generator=generator)

    def score(self, users_B: Tensor, context_BC: Tensor, items_BK: Tensor) -> Tensor:  # noqa: ARG002
        """Scores [B, K] of some items for each user."""
        user, item = users_B[:, None], items_BK
        return self._join(
            self.user_product(user) * self.item_product(item),
            self.user_network(user) + self.item_network(item),
        )

    def scores(self, users_B: Tensor, context_BC: Tensor) -> Tensor:
        """Scores [B, V + 1] of all items; column 0 is padding."""
        num_items = self.item_product.num_embeddings
        all_items = torch.arange(num_items, device=users_B.device)
        rows = max(1, PAIRS_AT_ONCE // num_items)
        return torch.cat(
            [self.score(part, context_BC, all_items.expand(len(part), -1)) for part in users_B.split(rows)]
        )

    def _join(self, product: Tensor, hidden: Tensor) -> Tensor:
        hidden = self._drop(F.relu(hidden))
        for layer in self.network:
            hidden = self._drop(F.relu(layer(hidden)))
        joined: Tensor = self.output(torch.cat([product, hidden], dim=-1))
        return joined.squeeze(-1)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.config.hidden_dropout, self.training)
