"""Who attends to whom: the one place of the encoder that knows where a sequence begins and ends.

Two layouts of the same computation. `PackedLayout` lays the sequences of a batch end to end, without padding: it is
what training, evaluation and recommendation use. `PaddedLayout` is a plain rectangle, filled up on the left: what
exported models use. Both give the same numbers up to rounding.

`JoinedLayout` lays two packed batches side by side, one read in both directions and one forwards: what joint training
uses. `RotaryLayout` adds to any of them what tells a model where a token stands.

Shapes: T tokens, R wanted rows, B sequences, L padded length, H heads, C channels a head, D = H * C.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.data.dataset import PADDING
from bert4rec.errors import UsageError
from bert4rec.kernels.attend import Span, attend
from bert4rec.kernels.rotary import turned
from bert4rec.kernels.support import is_on_gpu
from bert4rec.kernels.take_rows import take_rows
from bert4rec.models.buckets import Buckets


class Layout(Protocol):
    """How tokens are arranged, and which of them the caller wants the final hidden state of.

    The last layer computes the wanted tokens alone. Nothing else is ever read of it, so this is exact and
    saves most of that layer: at most ρ of the tokens are wanted in training, one per sequence afterwards.
    """

    def wanted(self, hidden: Tensor) -> Tensor:
        """The hidden states of the wanted tokens."""
        ...

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, wanted_only: bool
    ) -> Tensor:
        """Scaled dot-product attention inside each sequence; [..., H, C] in and out.

        `wanted_only` says that the queries are those of the wanted tokens, not of all.
        """
        ...

    def rectangle(self, tokens: Tensor) -> Tensor:
        """The tokens as rows [B, L], one a sequence, filled up on the right with PADDING.

        For models that compute something for every place, such as a recurrence; `pick` is the way back.
        """
        ...

    def pick(self, states: Tensor) -> Tensor:
        """The wanted ones among the states [B, L, D] of a `rectangle`."""
        ...


@dataclass(frozen=True)
class PackedLayout:
    """Sequences end to end. Every token, and every wanted row, must lie in a sequence: see `bounds`."""

    bounds: Tensor
    """int32 [B + 1]: sequence b holds the tokens bounds[b] to bounds[b + 1]; the last entry is T."""
    max_length: int
    """No sequence is longer. A number of its own because reading it from the device would stall."""
    rows: Tensor
    """int32 [R]: the wanted tokens, sequence after sequence."""
    row_bounds: Tensor
    """int32 [B + 1]: rows[row_bounds[b]] to rows[row_bounds[b + 1]] are tokens of sequence b."""
    max_rows: int
    """No sequence has more wanted rows."""
    causal: bool = False
    """Whether tokens see only themselves and what came before. All tokens are wanted then, or the last of each."""

    def wanted(self, hidden: Tensor) -> Tensor:
        if self.causal and len(self.rows) == len(hidden):
            return hidden
        return take_rows(hidden, self.rows)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, wanted_only: bool
    ) -> Tensor:
        if is_on_gpu(query):
            span = self.span(len(query), len(key), wanted_only=wanted_only)
            return attend(query, key, value, (span,), dropout)
        buckets = self._buckets_of_wanted if wanted_only else self._buckets
        return buckets.attend(query, key, value, dropout)

    def span(self, num_queries: int, num_keys: int, *, wanted_only: bool) -> Span:
        """So many queries, of all tokens or of the wanted ones, and so many keys."""
        max_queries = self.max_rows if wanted_only else self.max_length
        return Span(
            num_queries=num_queries,
            num_keys=num_keys,
            query_bounds=self.row_bounds if wanted_only else self.bounds,
            key_bounds=self.bounds,
            max_queries=max_queries,
            max_keys=self.max_length,
            causal=self.causal and max_queries > 1,  # The last token of a sequence sees all of it.
        )

    # Made once for all layers.

    @cached_property
    def _buckets(self) -> Buckets:
        return Buckets(self.bounds, self.bounds, causal=self.causal and self.max_length > 1)

    @cached_property
    def _buckets_of_wanted(self) -> Buckets:
        if self.causal and self.max_rows > 1:
            return self._buckets
        return Buckets(self.row_bounds, self.bounds, causal=False)

    def rectangle(self, tokens: Tensor) -> Tensor:
        place = self.bounds[:-1, None] + torch.arange(self.max_length, device=tokens.device)
        is_inside = place < self.bounds[1:, None]
        return torch.where(is_inside, tokens[place.clamp(max=len(tokens) - 1)], PADDING)

    def pick(self, states: Tensor) -> Tensor:
        sequence = torch.searchsorted(self.bounds, self.rows, right=True, out_int32=True) - 1
        return states[sequence, self.rows - self.bounds[sequence]]


@dataclass(frozen=True)
class PaddedLayout:
    """A rectangle of sequences, filled up on the left; the last token of each row is the wanted one."""

    present: Tensor
    """bool [B, L]: False where there is padding. At least one token of each row is present."""
    causal: bool = False
    """Whether tokens see only themselves and what came before."""

    def wanted(self, hidden: Tensor) -> Tensor:
        return hidden[:, -1:]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        dropout: float,
        wanted_only: bool,
    ) -> Tensor:
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        visible = self._visible(self.causal and not wanted_only)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=dropout)
        return attended.transpose(1, 2)

    def _visible(self, causal: bool) -> Tensor:
        """Which keys each query sees, [B, 1, 1 or L, L]. The last token of a sequence sees all of it anyway."""
        visible = self.present[:, None, None, :]
        if not causal:
            return visible
        length = self.present.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool, device=visible.device).tril()
        # Padding sees itself, because attention to nothing at all is not a number.
        return (visible & earlier) | torch.eye(length, dtype=torch.bool, device=visible.device)

    def rectangle(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        place = (torch.arange(length, device=tokens.device) - self.present.sum(dim=1)[:, None]) % length
        return tokens.gather(1, place)

    def pick(self, states: Tensor) -> Tensor:
        last = self.present.sum(dim=1) - 1
        return states[torch.arange(len(states), device=states.device), last][:, None]


@dataclass(frozen=True)
class RecordingLayout(PaddedLayout):
    """The same, but every token is wanted and the attention weights are kept: a map [B, H, L, L] for each layer."""

    maps: list[Tensor] = field(default_factory=list)

    def wanted(self, hidden: Tensor) -> Tensor:
        return hidden

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        dropout: float,
        wanted_only: bool,  # noqa: ARG002
    ) -> Tensor:
        scores = torch.einsum("bqhc,bkhc->bhqk", query, key) / query.shape[-1] ** 0.5
        weights = scores.masked_fill(~self._visible(self.causal), float("-inf")).softmax(dim=-1)
        self.maps.append(weights)
        return torch.einsum("bhqk,bkhc->bqhc", F.dropout(weights, dropout), value)


@dataclass(frozen=True)
class JoinedLayout:
    """The tokens of one packed batch, then those of another, which may be read in another direction."""

    first: PackedLayout
    second: PackedLayout
    num_tokens: int
    """Of the first."""

    def wanted(self, hidden: Tensor) -> Tensor:
        first, second = self._halves(hidden, self.num_tokens)
        return torch.cat([self.first.wanted(first), self.second.wanted(second)])

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, wanted_only: bool
    ) -> Tensor:
        num_queries, num_keys = len(self.first.rows) if wanted_only else self.num_tokens, self.num_tokens
        if is_on_gpu(query):
            first = self.first.span(num_queries, num_keys, wanted_only=wanted_only)
            second = self.second.span(len(query) - num_queries, len(key) - num_keys, wanted_only=wanted_only)
            return attend(query, key, value, (first, second), dropout)
        halves = zip(
            (self.first, self.second),
            self._halves(query, num_queries),
            self._halves(key, num_keys),
            self._halves(value, num_keys),
            strict=True,
        )
        return torch.cat(
            [each.attend(*qkv, dropout=dropout, wanted_only=wanted_only) for each, *qkv in halves]
        )

    @staticmethod
    def _halves(x: Tensor, size: int) -> tuple[Tensor, ...]:
        """Split, because the gradient of two slices would be two sums with mostly zeros."""
        return torch.split(x, [size, len(x) - size])

    def rectangle(self, tokens: Tensor) -> Tensor:  # noqa: ARG002
        raise UsageError(
            "JointTask cannot train a model that reads its batches as rectangles: half of each is read in both "
            "directions, half from left to right. Use ClozeTask or NextItemTask."
        )

    pick = rectangle


@dataclass(frozen=True)
class RotaryLayout:
    """Another layout in which queries and keys are turned by their positions (Su et al., 2021).

    So a product of the two depends on how far apart the tokens are, and on nothing else of where they stand.
    """

    plain: Layout
    positions: Tensor
    """Of each token."""
    cos: Tensor
    sin: Tensor
    """[N, C / 2]: of the angles by which each position turns its pairs of channels."""

    @staticmethod
    def angles(positions: int, channels: int) -> Tensor:
        """[positions, C / 2]: from a turn of one radian a position down to almost none."""
        frequencies = 10_000.0 ** (-torch.arange(channels // 2) / (channels // 2))
        return torch.arange(positions)[:, None] * frequencies

    def wanted(self, hidden: Tensor) -> Tensor:
        return self.plain.wanted(hidden)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, wanted_only: bool
    ) -> Tensor:
        at_queries = self.wanted(self.positions[..., None])[..., 0] if wanted_only else self.positions
        query = turned(query, at_queries, self.cos, self.sin)
        key = turned(key, self.positions, self.cos, self.sin)
        return self.plain.attend(query, key, value, dropout=dropout, wanted_only=wanted_only)

    def rectangle(self, tokens: Tensor) -> Tensor:
        return self.plain.rectangle(tokens)

    def pick(self, states: Tensor) -> Tensor:
        return self.plain.pick(states)
