"""Attention inside sequences that lie end to end, each with queries and keys of its own (Dao et al., 2022)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.kernels.support import draw_seed, is_fused


@dataclass(frozen=True)
class Span:
    """Neighbouring sequences that are read in the same direction."""

    num_queries: int
    num_keys: int
    """Of all sequences together."""
    query_bounds: Tensor
    key_bounds: Tensor
    """int32 [B + 1]: the queries of sequence b are the rows query_bounds[b] to query_bounds[b + 1]; so are its keys."""
    max_queries: int
    max_keys: int
    """No sequence has more. Numbers of their own because reading them from the device would stall."""
    causal: bool
    """Whether query i of a sequence sees its keys up to i only."""


def attend(query: Tensor, key: Tensor, value: Tensor, spans: tuple[Span, ...], dropout: float) -> Tensor:
    """Scaled dot-product attention; [rows, H, C] in and out. The rows of a span follow those of the one before."""
    if is_fused(query) and _has_room(query):
        attended: Tensor = _Attend.apply(query, key, value, spans, dropout)  # type: ignore[no-untyped-call]
        return attended
    return plain_attend(query, key, value, spans, dropout)


def _has_room(query: Tensor) -> bool:
    """Whether tiles of heads so wide fit into a GPU's multiprocessor."""
    from bert4rec.kernels.gpu.attend_triton import LEAST_ROWS, most_rows

    return most_rows(query) >= LEAST_ROWS


def plain_attend(
    query: Tensor, key: Tensor, value: Tensor, spans: tuple[Span, ...], dropout: float
) -> Tensor:
    """The same by way of rectangles: much padding, but nothing that would have to be read back from the device."""
    by_span = zip(
        spans,
        query.split([span.num_queries for span in spans]),
        key.split([span.num_keys for span in spans]),
        value.split([span.num_keys for span in spans]),
        strict=True,
    )
    return torch.cat([_attend_in_rectangle(*each, dropout) for each in by_span])


def _attend_in_rectangle(span: Span, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
    queries, _ = _rectangle(span.query_bounds, span.max_queries)
    keys, is_key = _rectangle(span.key_bounds, span.max_keys)
    visible = is_key[:, None, None, :]
    if span.causal:
        visible = visible & visible.new_ones(span.max_queries, span.max_keys).tril()
    # A query that sees nothing would give no number, so it sees everything.
    visible = visible | ~visible.any(dim=-1, keepdim=True)
    q, k, v = (x[rows].transpose(1, 2) for x, rows in ((query, queries), (key, keys), (value, keys)))
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=dropout).transpose(1, 2)
    row = torch.arange(span.num_queries, device=query.device)
    sequence = torch.searchsorted(span.query_bounds, row, right=True) - 1
    found = attended[sequence, row - span.query_bounds[sequence]]
    return torch.where(is_key.any(dim=1)[sequence, None, None], found, 0)


def _rectangle(bounds: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """[B, width]: the rows of each sequence, and whether there is one. Others are any row."""
    row = bounds[:-1, None] + torch.arange(width, device=bounds.device)
    return row.clamp(max=bounds[-1] - 1), row < bounds[1:, None]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, spans: tuple[Span, ...], dropout: float
    ) -> Tensor:
        from bert4rec.kernels.gpu import attend_triton as kernels

        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        log_sums = torch.empty(query.shape[:2], device=query.device)
        query_bits, key_bits = kernels.draw_bits(draw_seed(query.device), query, key, dropout)
        by_query, by_key = (query, out, log_sums, query_bits), (key, value, key_bits)
        for span, asked, read in _by_span(spans, by_query, by_key):
            kernels.forward(asked, read, span, dropout)
        ctx.save_for_backward(query, key, value, out, log_sums, query_bits, key_bits)
        ctx.spans, ctx.dropout = spans, dropout
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from bert4rec.kernels.gpu import attend_triton as kernels

        query, key, value, out, log_sums, query_bits, key_bits = ctx.saved_tensors
        gradient, gradients = gradient.contiguous(), _side_by_side(query, key)
        means = kernels.means(gradient, out, ctx.dropout)
        by_query = gradient, query, means, log_sums, query_bits, gradients[0]
        by_key = key, value, key_bits, *gradients[1:]
        for span, asked, read in _by_span(ctx.spans, by_query, by_key):
            kernels.backward(asked, read, span, ctx.dropout)
        return (*gradients, None, None)


def _by_span(
    spans: tuple[Span, ...], by_query: tuple[Tensor, ...], by_key: tuple[Tensor, ...]
) -> Iterator[tuple[Span, list[Tensor], list[Tensor]]]:
    """Each span with its own rows of all tensors."""
    first_query = first_key = 0
    for span in spans:
        queries = slice(first_query, first_query + span.num_queries)
        keys = slice(first_key, first_key + span.num_keys)
        yield span, [x[queries] for x in by_query], [x[keys] for x in by_key]
        first_query, first_key = queries.stop, keys.stop


def _side_by_side(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the gradients of query, key and value, as they lie in the output of one map: see `split_heads`."""
    if len(query) == len(key):
        three = torch.empty(len(key), 3, *key.shape[1:], dtype=key.dtype, device=key.device)
        return three[:, 0], three[:, 1], three[:, 2]
    two = torch.empty(len(key), 2, *key.shape[1:], dtype=key.dtype, device=key.device)
    return torch.empty(query.shape, dtype=query.dtype, device=query.device), two[:, 0], two[:, 1]
