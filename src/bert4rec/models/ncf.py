"""NCF (He et al., 2017): NeuMF, a generalised matrix factorisation and a small network, joined in one output.

Both towers have user and item vectors of their own. Blind to order, as BPR-MF is. Trained to tell chosen items
from others, one by one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.models.bert4rec import initialise
from bert4rec.models.history_batch import HistoryBatch
from bert4rec.models.model import SequentialModel
from bert4rec.settings.networks import NCFConfig

PAIRS_AT_ONCE = 1 << 22
"""Pairs of user and item whose hidden layers are held at a time when all items are scored."""


class NCF(SequentialModel):
    """Users are numbered from 0; items from 1, because 0 is padding."""

    knows_users = True
    max_history = 0

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

    def queries(
        self,
        histories: HistoryBatch,  # noqa: ARG002
        users: Tensor | None = None,
        dtype: torch.dtype | None = None,  # noqa: ARG002
    ) -> Tensor:
        """The user's vectors of both towers, side by side."""
        return torch.cat([self.user_product(users), self.user_network(users)], dim=1)

    def item_vectors(self) -> tuple[Tensor, Tensor]:
        """The items' vectors of both towers, side by side; how they meet a query is in `scores`."""
        table = torch.cat([self.item_product.weight, self.item_network.weight], dim=1)
        return table, table.new_zeros(len(table) - 1)

    def scores(self, queries: Tensor, items: Tensor | None = None) -> Tensor:
        """Not a product: both towers meet in a network. Column 0, padding, is -inf where all items are scored."""
        if items is None:
            num_items = self.item_product.num_embeddings
            all_items = torch.arange(num_items, device=queries.device)
            rows = max(1, PAIRS_AT_ONCE // num_items)
            parts = [self.scores(part, all_items.expand(len(part), -1)) for part in queries.split(rows)]
            return torch.cat(parts).index_fill_(1, all_items[:1], -torch.inf)
        product, network = queries[:, None].chunk(2, dim=-1)
        return self._join(product * self.item_product(items), network + self.item_network(items))

    def _join(self, product: Tensor, hidden: Tensor) -> Tensor:
        hidden = self._drop(F.relu(hidden))
        for layer in self.network:
            hidden = self._drop(F.relu(layer(hidden)))
        joined: Tensor = self.output(torch.cat([product, hidden], dim=-1))
        return joined.squeeze(-1)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.config.hidden_dropout, self.training)
