"""Caser (Tang and Wang, 2018): the last items as an image, read by horizontal and vertical convolutions.

A horizontal filter of height h slides over the items and looks for a pattern in h neighbours; its strongest
answer is kept. A vertical filter is a weighted sum over the items. Both, and the user's vector, make the query.

Shapes: B users, C last items, D = dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.data.dataset import PADDING
from bert4rec.kernels.support import dropped
from bert4rec.models.bert4rec import initialise
from bert4rec.models.history_batch import HistoryBatch
from bert4rec.models.model import SequentialModel
from bert4rec.settings.networks import CaserConfig


class Caser(SequentialModel):
    """Users are numbered from 0; items from 1, because 0 is padding."""

    knows_users = True

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
    def max_history(self) -> int:
        return self.config.max_length

    def queries(
        self,
        histories: HistoryBatch,
        users: Tensor | None = None,
        dtype: torch.dtype | None = None,  # noqa: ARG002
    ) -> Tensor:
        x_BDC = self.item_table(histories.newest(self.max_history)).transpose(1, 2)
        patterns = [F.relu(filters(x_BDC)).amax(dim=2) for filters in self.horizontal]
        found = torch.cat([*patterns, self.vertical(x_BDC).flatten(1)], dim=1)
        narrowed = F.relu(self.narrow(dropped(found, self.config.hidden_dropout if self.training else 0.0)))
        return torch.cat([narrowed, self.user_table(users)], dim=1)

    def item_vectors(self) -> tuple[Tensor, Tensor]:
        return self.output_table.weight, self.output_bias[1:]
