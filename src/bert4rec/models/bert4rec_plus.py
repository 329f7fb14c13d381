"""BERT4Rec+: one network that learns by both tasks, masked items and next items, and can be asked either way.

The network is the paper's with three changes, each of which was found to help on validation items: positions turn
queries and keys instead of being added to the input, the feed-forward network has a gate, and hidden states meet the
item table directly, without a projection or a bias. How it learns is in `tasks.joint`.

Shapes: as in `bert4rec`.
"""

from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.data.dataset import PADDING
from bert4rec.kernels.embed import embed
from bert4rec.kernels.linear import Dense
from bert4rec.models.attention import Layout, RecordingLayout, RotaryLayout
from bert4rec.models.bert4rec import Layer, Norm, initialise, through_layers
from bert4rec.models.history_batch import HistoryBatch
from bert4rec.models.model import Question, TiedEncoder
from bert4rec.settings.networks import Ask, PlusConfig


class GatedLayer(Layer):
    """The paper's layer with a gated feed-forward network (Shazeer, 2020) of the same size."""

    has_gate = True

    def __init__(self, config: PlusConfig) -> None:
        super().__init__(config)
        # Three matrices instead of two, so each has two thirds of the width; a multiple of 8, which GPUs like.
        inner = -(-config.dim * config.feed_forward * 2 // 3 // 8) * 8
        self.widen = Dense(config.dim, 2 * inner)
        self.narrow = Dense(inner, config.dim)


class BERT4RecPlus(TiedEncoder):
    """Items are numbered 1 to V; 0 is padding and V + 1 is [mask]. Those two are never predicted."""

    causal = False
    can_be_exported = True
    has_kernels = True
    item_bias: Tensor
    """Zeros: there is no bias."""
    cos: Tensor
    sin: Tensor
    """[N, C / 2]: of the angles by which each position turns queries and keys."""

    def __init__(self, num_items: int, config: PlusConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.num_items, self.config, self.max_length = num_items, config, config.max_length
        self.item_table = nn.Embedding(num_items + 2, config.dim)
        self.input_norm = Norm(config.dim)
        self.layers = nn.ModuleList(GatedLayer(config) for _ in range(config.layers))
        self.register_buffer("item_bias", torch.zeros(num_items), persistent=False)
        angles = RotaryLayout.angles(config.max_length, config.dim // config.heads)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        initialise(self, generator)

    @property
    def end_token(self) -> int:
        """[mask]: masked items are predicted, and so is the next one, if [mask] stands in its place."""
        return self.num_items + 1

    @property
    def ways_to_ask(self) -> tuple[str, ...]:
        return get_args(Ask) if self.config.ask == "auto" else ()

    @property
    def questions(self) -> tuple[Question, ...]:
        """By [mask], which looks in both directions; by the newest item, which looks back; or by both."""
        by_mask, by_last = Question(self.end_token, causal=False), Question(None, causal=True)
        both = by_mask, by_last
        ways = {"mask": (by_mask,), "last": (by_last,), "both": both, "auto": both}
        return ways[self.way_to_ask or self.config.ask]

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
        )
        rotary = RotaryLayout(layout, positions.expand_as(tokens), self.cos, self.sin)
        return through_layers(self.layers, x, rotary)

    def attention(self, histories: HistoryBatch) -> Tensor:
        """Where it is asked in both ways, the mean of the two."""
        shares = []
        for question in self.questions:
            asked = self.asked(histories, question)
            recording = RecordingLayout(asked.tokens != PADDING, question.causal)
            self.encode(asked.tokens, asked.positions, recording)
            looks = torch.stack(recording.maps, dim=1)[:, :, :, -1]
            # The newest item looks at itself as one of the items; there is nothing behind it.
            shares.append(F.pad(looks, (0, int(question.end_token is None))))
        return torch.stack(shares).mean(dim=0)
