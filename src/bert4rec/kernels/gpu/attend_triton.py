"""The kernels of `attend`. Scores never reach memory: they are computed tile by tile, and again on the way back.

A program takes a block of queries of one sequence and one head. The sequences of recommenders are short, so the way
back needs no more than that either: the same program finds the gradients of a block of queries and of a block of keys.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from bert4rec.kernels.attend import Span
from bert4rec.kernels.gpu.shared_triton import kept

LOG2_E = 1.4426950408889634
LOWEST = tl.constexpr(-1e30)
"""A finite start: with -inf, -inf minus -inf would be no number."""


@triton.jit
def _tile(x, row, end, row_step, head, channel, CHANNELS: tl.constexpr):
    """Rows of one head, zeros where there is none."""
    place = row[:, None].to(tl.int64) * row_step + head * CHANNELS + channel[None, :]
    return tl.load(x + place, mask=(row[:, None] < end) & (channel[None, :] < CHANNELS), other=0.0)


@triton.jit
def _put(x, out, row, end, row_step, head, channel, CHANNELS: tl.constexpr):
    place = row[:, None].to(tl.int64) * row_step + head * CHANNELS + channel[None, :]
    inside = (row[:, None] < end) & (channel[None, :] < CHANNELS)
    tl.store(out + place, x.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _scores(query, key, query_offset, key_offset, num_keys, scale, CAUSAL: tl.constexpr):
    """In units of which 2 is the base; the lowest where a query must not look."""
    score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    visible = key_offset[None, :] < num_keys
    if CAUSAL:
        visible = visible & (key_offset[None, :] <= query_offset[:, None])
    return tl.where(visible, score, LOWEST)


@triton.jit
def _kept(seed, query_row, key_offset, head, longest, dropout, HEADS: tl.constexpr):
    """Of each pair of a query and a key, by its place among all pairs."""
    return kept(seed, (query_row * HEADS + head)[:, None] * longest + key_offset[None, :], dropout)


@triton.jit
def _forward_kernel(
    query, key, value, out, log_sums, query_bounds, key_bounds, seed,
    query_step, key_step, value_step, scale, dropout, longest,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, CHANNEL_BLOCK: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
    query_begin, query_end = tl.load(query_bounds + sequence), tl.load(query_bounds + sequence + 1)
    offset = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    row, channel = query_begin + offset, tl.arange(0, CHANNEL_BLOCK)
    if query_begin + tl.program_id(0) * QUERIES < query_end:
        key_begin = tl.load(key_bounds + sequence)
        num_keys = tl.load(key_bounds + sequence + 1) - key_begin
        q = _tile(query, row, query_end, query_step, head, channel, CHANNELS)
        most = tl.full((QUERIES,), LOWEST, tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        mean = tl.zeros((QUERIES, CHANNEL_BLOCK), tl.float32)
        behind = num_keys
        if CAUSAL:
            behind = tl.minimum(num_keys, (tl.program_id(0) + 1) * QUERIES)
        for start in range(0, behind, KEYS):
            at = start + tl.arange(0, KEYS)
            k = _tile(key, key_begin + at, key_begin + num_keys, key_step, head, channel, CHANNELS)
            v = _tile(value, key_begin + at, key_begin + num_keys, value_step, head, channel, CHANNELS)
            score = _scores(q, k, offset, at, num_keys, scale, CAUSAL)
            new_most = tl.maximum(most, tl.max(score, axis=1))
            share = tl.exp2(score - new_most[:, None])
            shrink = tl.exp2(most - new_most)
            total = total * shrink + tl.sum(share, axis=1)
            if HAS_DROPOUT:
                share *= _kept(seed, row, at, head, longest, dropout, HEADS)
            mean = tl.dot(share.to(v.dtype), v, mean * shrink[:, None], input_precision="ieee")
            most = new_most
        total = tl.where(total > 0.0, total, 1.0)  # A dead query may have nothing to look at.
        _put(mean / total[:, None], out, row, query_end, HEADS * CHANNELS, head, channel, CHANNELS)
        tl.store(log_sums + row * HEADS + head, most + tl.log2(total), mask=row < query_end)


@triton.jit
def _score_gradient(
    q, k, v, above, attended, log_sum, query_row, query_offset, key_offset,
    num_keys, seed, head, scale, dropout, longest, HEADS: tl.constexpr, CAUSAL: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    """The shares that values were taken with, and the gradient of the scores before they were scaled."""
    score = _scores(q, k, query_offset, key_offset, num_keys, scale, CAUSAL)
    share = tl.exp2(score - log_sum[:, None])
    of_share = tl.dot(above, tl.trans(v), input_precision="ieee")
    used = share
    if HAS_DROPOUT:
        factor = _kept(seed, query_row, key_offset, head, longest, dropout, HEADS)
        used, of_share = share * factor, of_share * factor
    mean = tl.sum(above.to(tl.float32) * attended.to(tl.float32), axis=1)
    return used, share * (of_share - mean[:, None])


@triton.jit
def _backward_kernel(
    gradient, query, key, value, out, log_sums, query_gradient, key_gradient, value_gradient,
    query_bounds, key_bounds, seed, query_step, key_step, value_step,
    query_gradient_step, key_gradient_step, value_gradient_step, scale, plain_scale, dropout, longest,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, CHANNEL_BLOCK: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    block, sequence, head = tl.program_id(0), tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
    query_begin, query_end = tl.load(query_bounds + sequence), tl.load(query_bounds + sequence + 1)
    key_begin, key_end = tl.load(key_bounds + sequence), tl.load(key_bounds + sequence + 1)
    num_queries, num_keys = query_end - query_begin, key_end - key_begin
    channel = tl.arange(0, CHANNEL_BLOCK)
    width: tl.constexpr = HEADS * CHANNELS
    if block * KEYS < num_keys:
        at = block * KEYS + tl.arange(0, KEYS)
        k = _tile(key, key_begin + at, key_end, key_step, head, channel, CHANNELS)
        v = _tile(value, key_begin + at, key_end, value_step, head, channel, CHANNELS)
        of_key = tl.zeros((KEYS, CHANNEL_BLOCK), tl.float32)
        of_value = tl.zeros((KEYS, CHANNEL_BLOCK), tl.float32)
        first = 0
        if CAUSAL:
            first = block * KEYS // QUERIES * QUERIES
        for start in range(first, num_queries, QUERIES):
            offset = start + tl.arange(0, QUERIES)
            row = query_begin + offset
            q = _tile(query, row, query_end, query_step, head, channel, CHANNELS)
            above = _tile(gradient, row, query_end, width, head, channel, CHANNELS)
            attended = _tile(out, row, query_end, width, head, channel, CHANNELS)
            log_sum = tl.load(log_sums + row * HEADS + head, mask=row < query_end, other=0.0)
            used, of_score = _score_gradient(
                q, k, v, above, attended, log_sum, row, offset, at, num_keys, seed, head, scale, dropout, longest,
                HEADS, CAUSAL, HAS_DROPOUT,
            )  # fmt: skip
            of_value = tl.dot(tl.trans(used.to(above.dtype)), above, of_value, input_precision="ieee")
            of_key = tl.dot(tl.trans(of_score.to(q.dtype)), q, of_key, input_precision="ieee")
        _put(
            of_key * plain_scale,
            key_gradient,
            key_begin + at,
            key_end,
            key_gradient_step,
            head,
            channel,
            CHANNELS,
        )
        _put(of_value, value_gradient, key_begin + at, key_end, value_gradient_step, head, channel, CHANNELS)
    if block * QUERIES < num_queries:
        offset = block * QUERIES + tl.arange(0, QUERIES)
        row = query_begin + offset
        q = _tile(query, row, query_end, query_step, head, channel, CHANNELS)
        above = _tile(gradient, row, query_end, width, head, channel, CHANNELS)
        attended = _tile(out, row, query_end, width, head, channel, CHANNELS)
        log_sum = tl.load(log_sums + row * HEADS + head, mask=row < query_end, other=0.0)
        of_query = tl.zeros((QUERIES, CHANNEL_BLOCK), tl.float32)
        behind = num_keys
        if CAUSAL:
            behind = tl.minimum(num_keys, (block + 1) * QUERIES)
        for start in range(0, behind, KEYS):
            at = start + tl.arange(0, KEYS)
            k = _tile(key, key_begin + at, key_end, key_step, head, channel, CHANNELS)
            v = _tile(value, key_begin + at, key_end, value_step, head, channel, CHANNELS)
            _, of_score = _score_gradient(
                q, k, v, above, attended, log_sum, row, offset, at, num_keys, seed, head, scale, dropout, longest,
                HEADS, CAUSAL, HAS_DROPOUT,
            )  # fmt: skip
            of_query = tl.dot(of_score.to(k.dtype), k, of_query, input_precision="ieee")
        _put(
            of_query * plain_scale,
            query_gradient,
            row,
            query_end,
            query_gradient_step,
            head,
            channel,
            CHANNELS,
        )


def _blocks(channels: int, longest: int) -> tuple[int, int, int]:
    """Channels, rows and warps of a tile: rows as many as the longest sequence has, if these are few."""
    rows = min(64, max(16, triton.next_power_of_2(longest)))
    return max(16, triton.next_power_of_2(channels)), rows, 4 if rows > 16 else 2


def _step(x: Tensor) -> int:
    """From a row to the next; inside a row, heads and channels follow each other."""
    assert x.stride()[1:] == (x.shape[2], 1)
    return x.stride(0)


def forward(
    by_query: Sequence[Tensor], by_key: Sequence[Tensor], span: Span, seed: Tensor, dropout: float
) -> None:
    """By query: query, output, and [R, H] of logarithms that the way back needs. By key: key and value."""
    query, out, log_sums = by_query
    inputs = query, *by_key
    _, heads, channels = query.shape
    channel_block, rows, warps = _blocks(channels, max(span.max_queries, span.max_keys))
    _forward_kernel[(triton.cdiv(span.max_queries, rows), heads * (len(span.query_bounds) - 1))](
        *inputs, out, log_sums, span.query_bounds, span.key_bounds, seed, *map(_step, inputs),
        LOG2_E / channels**0.5, dropout, span.max_keys,
        heads, channels, channel_block, rows, rows, span.causal, dropout > 0, num_warps=warps,
    )  # fmt: skip


def backward(
    by_query: Sequence[Tensor], by_key: Sequence[Tensor], span: Span, seed: Tensor, dropout: float
) -> None:
    """By query: the output's gradient, then as in `forward`, the query's gradient last. By key: two more gradients."""
    gradient, query, out, log_sums, query_gradient = by_query
    inputs, gradients = (query, *by_key[:2]), (query_gradient, *by_key[2:])
    _, heads, channels = query.shape
    longest = max(span.max_queries, span.max_keys)
    channel_block, rows, warps = _blocks(channels, longest)
    _backward_kernel[(triton.cdiv(longest, rows), heads * (len(span.query_bounds) - 1))](
        gradient, *inputs, out, log_sums, *gradients, span.query_bounds, span.key_bounds, seed,
        *map(_step, inputs), *map(_step, gradients), LOG2_E / channels**0.5, channels**-0.5, dropout, span.max_keys,
        heads, channels, channel_block, rows, rows, span.causal, dropout > 0, num_warps=warps,
    )  # fmt: skip
