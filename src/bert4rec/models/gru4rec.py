"""GRU4Rec (Hidasi et al., 2016): a recurrent network reads the history item by item.

Shapes: B sequences, L padded length, D = dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.data.dataset import PADDING
from bert4rec.models.attention import Packed
from bert4rec.models.bert4rec import initialise
from bert4rec.models.settings import GRUConfig


class GRU4Rec(nn.Module):
    """Items are numbered 1 to V; 0 is padding. Input and output have tables of their own."""

    is_tied = False
    """Whether the output compares the state with the input's embeddings."""

    def __init__(self, num_items: int, config: GRUConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.num_items, self.config = num_items, config
        # Two rows more than there are items, so that the tables look like BERT4Rec's to the softmax.
        self.item_table = nn.Embedding(num_items + 2, config.dim)
        self.layers = nn.ModuleList(
            nn.GRU(config.dim, config.dim, batch_first=True) for _ in range(config.layers)
        )
        if not self.is_tied:
            self.output_table = nn.Embedding(num_items + 2, config.dim)
        self.item_bias = nn.Parameter(torch.zeros(num_items))
        initialise(self, generator)
        for name, parameter in self.layers.named_parameters():
            if (
                "weight_hh" in name
            ):  # Three gates. A state that is handed on unchanged in size is learned from longest.
                for gate in parameter.data.chunk(3):
                    nn.init.orthogonal_(gate, generator=generator)
            elif "weight_ih" in name:
                nn.init.xavier_uniform_(parameter, generator=generator)

    def encode(
        self,
        tokens: Tensor,
        positions: Tensor,  # noqa: ARG002
        layout: Packed,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The states at the layout's wanted tokens. The recurrence itself always runs in float32."""
        length = layout.max_length
        place = layout.bounds[:-1, None] + torch.arange(length, device=tokens.device)
        is_inside = place < layout.bounds[1:, None]
        items_BL = torch.where(is_inside, tokens[place.clamp(max=len(tokens) - 1)], PADDING)
        states = self._states(items_BL)
        sequence = torch.searchsorted(layout.bounds, layout.rows, right=True, out_int32=True) - 1
        hidden: Tensor = states[sequence, layout.rows - layout.bounds[sequence]]
        return hidden.to(dtype or hidden.dtype)

    def query(self, history_BL: Tensor) -> Tensor:
        """The vectors [B, D] that ask what comes after these histories, filled up on the left with 0."""
        length, lengths = history_BL.shape[1], (history_BL != PADDING).sum(dim=1)
        assert length <= self.config.max_length, f"{length} items, but max_length {self.config.max_length}"
        # The recurrence must not walk through padding first: histories are moved to the left.
        place = (torch.arange(length, device=history_BL.device) - lengths[:, None]) % length
        states = self._states(history_BL.gather(1, place))
        last = (lengths - 1).clamp(min=0)
        found: Tensor = states[torch.arange(len(states), device=states.device), last]
        return found

    @property
    def table(self) -> Tensor:
        """What states are compared with: [V + 2, D]."""
        return self.item_table.weight if self.is_tied else self.output_table.weight

    def answers(self) -> tuple[Tensor, Tensor]:
        """What queries are multiplied with: a row [V, D] and a bias [V] for each item. Item 1 comes first."""
        return self.table[1 : self.num_items + 1], self.item_bias

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # The library's own recurrence is the fastest.
    def _states(self, items_BL: Tensor) -> Tensor:
        """[B, L, D]: what the network remembers after each item. Padding may stand behind, not before."""
        x: Tensor = F.dropout(self.item_table(items_BL), self.config.embedding_dropout, self.training)
        for layer in self.layers:
            x = F.dropout(layer(x)[0], self.config.hidden_dropout, self.training)
        return x
