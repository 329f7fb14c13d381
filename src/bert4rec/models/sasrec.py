"""SASRec (Kang and McAuley, 2018): self-attention over what came before, to guess what comes next.

The layer is BERT4Rec's with a causal mask, so that Table 3 of the paper compares the direction of attention and
the training task, and nothing else. As in the original, the items' embeddings are scaled by the root of their
width, and the hidden state is compared with them directly, without projection or bias.

Shapes: as in `bert4rec`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.data.dataset import PADDING
from bert4rec.models.attention import Layout, Padded
from bert4rec.models.bert4rec import Layer, Norm, initialise
from bert4rec.models.settings import ModelConfig


class SASRec(nn.Module):
    """Items are numbered 1 to V; 0 is padding."""

    item_bias: Tensor
    """Zeros, for those who ask: SASRec has none."""

    def __init__(self, num_items: int, config: ModelConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.num_items, self.config = num_items, config
        # One row more than needed, so that the table looks like BERT4Rec's to the softmax.
        self.item_table = nn.Embedding(num_items + 2, config.dim)
        self.position_table = nn.Embedding(config.max_length, config.dim)
        self.input_norm = Norm(config.dim)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.register_buffer("item_bias", torch.zeros(num_items), persistent=False)
        initialise(self, generator)

    def encode(
        self, tokens: Tensor, positions: Tensor, layout: Layout, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The final hidden states of the layout's wanted tokens. `dtype` is that of the activations."""
        x = self.item_table(tokens) * self.config.dim**0.5 + self.position_table(positions)
        x = F.dropout(self.input_norm(x).to(dtype or x.dtype), self.config.embedding_dropout, self.training)
        *lower_layers, last_layer = self.layers
        for layer in lower_layers:
            x = layer(x, layout)
        hidden: Tensor = last_layer(x, layout, wanted_only=True)
        return hidden

    def query(self, history_BL: Tensor) -> Tensor:
        """The vectors [B, D] that ask the item table what comes after these histories, filled up on the left with 0."""
        first = self.config.max_length - history_BL.shape[1]
        assert first >= 0, f"{history_BL.shape[1]} items, but max_length {self.config.max_length}"
        positions = torch.arange(first, self.config.max_length, device=history_BL.device)
        # The last token is always looked at: an empty history is a single PADDING, as where it is packed.
        present = (history_BL != PADDING) | (positions == self.config.max_length - 1)
        return self.encode(history_BL, positions, Padded(present, causal=True))[:, 0]

    @property
    def table(self) -> Tensor:
        """What hidden states are compared with: [V + 2, D]."""
        return self.item_table.weight

    def answers(self) -> tuple[Tensor, Tensor]:
        """What queries are multiplied with: a row [V, D] and a bias [V] for each item. Item 1 comes first."""
        return self.table[1 : self.num_items + 1], self.item_bias
