"""SASRec (Kang and McAuley, 2018): self-attention over what came before, to predict what comes next.

The layer is BERT4Rec's with a causal mask, so that Table 3 of the paper compares the direction of attention and
the training task, and nothing else. As in the original, the items' embeddings are scaled by the root of their
width, and the hidden state is compared with them directly, without projection or bias.

Shapes: as in `bert4rec`.
"""

import torch
from torch import Tensor, nn

from bert4rec.kernels.embed import embed
from bert4rec.models.attention import Layout
from bert4rec.models.bert4rec import Layer, Norm, initialise, through_layers
from bert4rec.models.model import TiedEncoder
from bert4rec.settings.networks import ModelConfig


class SASRec(TiedEncoder):
    """Items are numbered 1 to V; 0 is padding."""

    can_be_exported = True
    has_kernels = True
    item_bias: Tensor
    """Zeros: SASRec has no bias."""

    def __init__(self, num_items: int, config: ModelConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.num_items, self.config, self.max_length = num_items, config, config.max_length
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
        """The final hidden states of the layout's wanted tokens."""
        x = embed(
            tokens,
            self.item_table.weight,
            self.input_norm,
            dropout=self.config.embedding_dropout if self.training else 0.0,
            dtype=dtype,
            positions=positions,
            position_table=self.position_table.weight,
            scale=self.config.dim**0.5,
        )
        return through_layers(self.layers, x, layout)
