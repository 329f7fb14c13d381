"""BERT4Rec: a bidirectional Transformer that predicts masked items of a history (sections 3.2 to 3.5 of the paper).

Where the paper is silent, the authors' published code decides; each such place says so. One deliberate
difference from that code: positions are counted from the end, so the newest item always has the last one.

Shapes: tokens are [T] or [B, L], as the layout says; hidden states have one more dimension, D.
"""

import torch
from torch import Tensor, nn

from bert4rec.data.dataset import PADDING
from bert4rec.kernels.add_norm import add_norm, gelu_norm
from bert4rec.kernels.embed import embed
from bert4rec.kernels.feed_forward import feed_forward
from bert4rec.kernels.linear import Dense
from bert4rec.kernels.split_heads import split_heads
from bert4rec.models.attention import Layout, RecordingLayout
from bert4rec.models.history_batch import HistoryBatch, PaddedHistories
from bert4rec.models.model import TiedEncoder
from bert4rec.settings.networks import ModelConfig

INITIAL_STD = 0.02
"""Weights start from a normal distribution cut at two standard deviations, biases at 0 (authors' code)."""
NORM_EPSILON = 1e-12
"""Added to the variance in every LayerNorm (authors' code). Norms are computed in float32 at least."""


class Norm(nn.LayerNorm):
    """LayerNorm that computes in the dtype of its parameters and answers in that of its input."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, eps=NORM_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class Layer(nn.Module):
    """Trm of the paper: multi-head self-attention and a feed-forward network, each LN(x + Dropout(sublayer(x)))."""

    has_gate = False
    """Whether the feed-forward network has one, instead of a GELU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        dim, inner = config.dim, config.dim * config.feed_forward
        self.query_key_value = Dense(dim, 3 * dim)  # with biases, as all projections (authors' code)
        self.attention_output = Dense(dim, dim)
        self.attention_norm = Norm(dim)
        self.widen = Dense(dim, inner)
        self.narrow = Dense(inner, dim)
        self.output_norm = Norm(dim)

    def forward(self, x: Tensor, layout: Layout, *, wanted_only: bool = False) -> Tensor:
        dim, heads = self.config.dim, self.config.heads
        if wanted_only:
            to_query, to_key_value = self.query_key_value.split(dim, 2 * dim)
            mapped, x = to_key_value(x)
            key, value = split_heads(mapped, 2, heads)
            mapped, x = to_query(layout.wanted(x))
            (query,) = split_heads(mapped, 1, heads)
        else:
            mapped, x = self.query_key_value.beside(x)
            query, key, value = split_heads(mapped, 3, heads)
        dropout = self.config.attention_dropout if self.training else 0.0
        attended = layout.attend(query, key, value, dropout=dropout, wanted_only=wanted_only).flatten(-2)
        dropout = self.config.hidden_dropout if self.training else 0.0
        x = add_norm(x, attended, self.attention_output, self.attention_norm, dropout)
        # No dropout between the two maps (authors' code).
        return feed_forward(
            x, self.widen, self.narrow, self.output_norm, has_gate=self.has_gate, dropout=dropout
        )


def through_layers(layers: nn.ModuleList, x: Tensor, layout: Layout) -> Tensor:
    """The final hidden states of the layout's wanted tokens."""
    *lower_layers, last_layer = layers
    for layer in lower_layers:
        x = layer(x, layout)
    hidden: Tensor = last_layer(x, layout, wanted_only=True)
    return hidden


def initialise(model: nn.Module, generator: torch.Generator | None) -> None:
    """Set matrices and tables to small random numbers, and biases to 0."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            nn.init.trunc_normal_(
                parameter, std=INITIAL_STD, a=-2 * INITIAL_STD, b=2 * INITIAL_STD, generator=generator
            )
        elif "bias" in name:
            nn.init.zeros_(parameter)


class BERT4Rec(TiedEncoder):
    """Items are numbered 1 to V; 0 is padding and V + 1 is [mask]. Those two are never predicted."""

    causal = False
    can_be_exported = True
    has_kernels = True

    def __init__(self, num_items: int, config: ModelConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.num_items, self.config, self.max_length = num_items, config, config.max_length
        self.item_table = nn.Embedding(num_items + 2, config.dim)
        self.position_table = nn.Embedding(config.max_length, config.dim)
        self.input_norm = Norm(config.dim)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.projection = Dense(config.dim, config.dim)
        self.projection_norm = Norm(config.dim)  # not in equation 7, but in the authors' code
        self.item_bias = nn.Parameter(torch.zeros(num_items))  # of equation 7
        initialise(self, generator)

    @property
    def mask_number(self) -> int:
        """The number of the token [mask]."""
        return self.num_items + 1

    @property
    def end_token(self) -> int:
        """What comes next is what [mask] at the end stands for (section 3.6)."""
        return self.mask_number

    def encode(
        self, tokens: Tensor, positions: Tensor, layout: Layout, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The final hidden states of the layout's wanted tokens."""
        # Dropout on the normed sum, before the first layer (authors' code).
        x = embed(
            tokens,
            self.item_table.weight,
            self.input_norm,
            dropout=self.config.embedding_dropout if self.training else 0.0,
            dtype=dtype,
            positions=positions,
            position_table=self.position_table.weight,
        )
        return through_layers(self.layers, x, layout)

    def project(self, hidden: Tensor) -> Tensor:
        """The output layer (equation 7) up to the product with the shared item table."""
        return gelu_norm(hidden, self.projection, self.projection_norm)

    def attention(self, histories: HistoryBatch) -> Tensor:
        asked = histories.sequences(self.max_length, self.end_token, causal=False)
        return self.attention_maps(asked.tokens)[:, :, :, -1]

    def attention_maps(self, items_BL: Tensor) -> Tensor:
        """Attention weights [B, layers, H, L, L], query before key, as in figure 2 of the paper.

        `items_BL` ends with [mask] where what comes next is asked, and is filled up on the left with 0.
        """
        read, recording = PaddedHistories(items_BL), RecordingLayout(items_BL != PADDING)
        self.encode(items_BL, read.sequences(self.max_length, causal=False).positions, recording)
        return torch.stack(recording.maps, dim=1)
