"""GRU4Rec (Hidasi et al., 2016): a recurrent network reads the history item by item.

Shapes: B sequences, L padded length, D = dim.
"""

import torch
from torch import Tensor, nn

from bert4rec.kernels.support import dropped
from bert4rec.models.attention import Layout
from bert4rec.models.bert4rec import initialise
from bert4rec.models.model import SequenceEncoder
from bert4rec.settings.networks import GRUConfig


class GRU4Rec(SequenceEncoder):
    """Items are numbered 1 to V; 0 is padding. Input and output have tables of their own."""

    is_tied = False
    """Whether the output compares the state with the input's embeddings."""

    def __init__(self, num_items: int, config: GRUConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.num_items, self.config, self.max_length = num_items, config, config.max_length
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
            if "weight_hh" in name:
                # Three gates. A state that is handed on unchanged in size is learned from longest.
                for gate in parameter.data.chunk(3):
                    nn.init.orthogonal_(gate, generator=generator)
            elif "weight_ih" in name:
                nn.init.xavier_uniform_(parameter, generator=generator)

    def encode(
        self,
        tokens: Tensor,
        positions: Tensor,  # noqa: ARG002
        layout: Layout,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The states at the layout's wanted tokens. The recurrence itself always runs in float32."""
        hidden = layout.pick(self._states(layout.rectangle(tokens)))
        return hidden.to(dtype or hidden.dtype)

    def item_vectors(self) -> tuple[Tensor, Tensor]:
        return (self.item_table if self.is_tied else self.output_table).weight, self.item_bias

    def _states(self, items_BL: Tensor) -> Tensor:
        """[B, L, D]: what the network remembers after each item. Padding may stand behind, not before.

        torch.compile leaves `nn.GRU` as it is, and the library's own recurrence is the fastest.
        """
        x: Tensor = dropped(
            self.item_table(items_BL), self.config.embedding_dropout if self.training else 0.0
        )
        for layer in self.layers:
            x = dropped(layer(x)[0], self.config.hidden_dropout if self.training else 0.0)
        return x


class GRU4RecPlus(GRU4Rec):
    """GRU4Rec+ (Hidasi and Karatzoglou, 2018): better losses, and one table for input and output.

    The losses are in `tasks.ranking_losses`, the items they compare with in `tasks.next_item`.
    """

    is_tied = True
