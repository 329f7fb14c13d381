"""The kernels of `attend`. Scores never reach memory: they are computed tile by tile, and again on the way back.

A program takes a block of queries of one sequence and one head, and on the way back also a block of its keys.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from bert4rec.kernels.attend import Span
from bert4rec.kernels.gpu.launch_triton import Kernel
from bert4rec.kernels.gpu.shared_triton import lowest_kept, mixed, shared_memory

LOG2_E = 1.4426950408889634
LEAST_ROWS = 16
"""Of a tile: with fewer there is no product of matrices."""
LOWEST = tl.constexpr(-1e30)
"""A finite start: with -inf, -inf minus -inf would be no number."""


@triton.jit
def _tile(x, begin, offset, count, row_step, head, channel, CHANNELS: tl.constexpr):
    """Rows of one sequence and one head, zeros where there is none."""
    place = begin.to(tl.int64) * row_step + head * CHANNELS + (offset[:, None] * row_step + channel[None, :])
    return tl.load(x + place, mask=(offset[:, None] < count) & (channel[None, :] < CHANNELS), other=0.0)


@triton.jit
def _put(x, out, begin, offset, count, row_step, head, channel, CHANNELS: tl.constexpr):
    place = begin.to(tl.int64) * row_step + head * CHANNELS + (offset[:, None] * row_step + channel[None, :])
    inside = (offset[:, None] < count) & (channel[None, :] < CHANNELS)
    tl.store(out + place, x.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _scores(
    query, key, query_offset, key_offset, num_keys, scale, CAUSAL: tl.constexpr, KEYS_FIRST: tl.constexpr
):
    """In units of which 2 is the base; the lowest where a query must not look. [Q, K], or [K, Q] with keys first."""
    no_key = tl.where(key_offset < num_keys, 0.0, LOWEST)
    if KEYS_FIRST:
        score = tl.dot(key, tl.trans(query), input_precision="ieee") * scale + no_key[:, None]
        if CAUSAL:
            score = tl.where(key_offset[:, None] <= query_offset[None, :], score, LOWEST)
    else:
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale + no_key[None, :]
        if CAUSAL:
            score = tl.where(key_offset[None, :] <= query_offset[:, None], score, LOWEST)
    return score


@triton.jit
def _bits(seed, query_row, key_row, head, HEADS: tl.constexpr):
    """Of queries and keys: their products decide what dropout leaves, as `support.keep_pairs` says."""
    return mixed(query_row * HEADS + head, seed) | 1, mixed(-1 - (key_row * HEADS + head), seed) | 1


@Kernel
def _attend_forward_kernel(
    query, key, value, out, log_sums, query_bounds, key_bounds, seed,
    query_step, key_step, value_step, scale, dropout,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, CHANNEL_BLOCK: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    sequence, head, block = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS, tl.program_id(1)
    query_begin, key_begin = tl.load(query_bounds + sequence), tl.load(key_bounds + sequence)
    num_queries = tl.load(query_bounds + sequence + 1) - query_begin
    if block * QUERIES < num_queries:
        num_keys = tl.load(key_bounds + sequence + 1) - key_begin
        offset, channel = block * QUERIES + tl.arange(0, QUERIES), tl.arange(0, CHANNEL_BLOCK)
        q = _tile(query, query_begin, offset, num_queries, query_step, head, channel, CHANNELS)
        most = tl.full((QUERIES,), LOWEST, tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        mean = tl.zeros((QUERIES, CHANNEL_BLOCK), tl.float32)
        behind = num_keys
        if CAUSAL:
            behind = tl.minimum(num_keys, (block + 1) * QUERIES)
        for start in range(0, behind, KEYS):
            at = start + tl.arange(0, KEYS)
            k = _tile(key, key_begin, at, num_keys, key_step, head, channel, CHANNELS)
            v = _tile(value, key_begin, at, num_keys, value_step, head, channel, CHANNELS)
            score = _scores(q, k, offset, at, num_keys, scale, CAUSAL, False)
            new_most = tl.maximum(most, tl.max(score, axis=1))
            share = tl.exp2(score - new_most[:, None])
            shrink = tl.exp2(most - new_most)
            total = total * shrink + tl.sum(share, axis=1)
            if HAS_DROPOUT:
                of_query, of_key = _bits(seed, query_begin + offset, key_begin + at, head, HEADS)
                share = tl.where(of_query[:, None] * of_key[None, :] >= lowest_kept(dropout), share, 0.0)
            mean = tl.dot(share.to(v.dtype), v, mean * shrink[:, None], input_precision="ieee")
            most = new_most
        total = tl.where(total > 0.0, total, 1.0)  # A dead query may have nothing to look at.
        mean = mean / (total * (1.0 - dropout))[:, None]
        _put(mean, out, query_begin, offset, num_queries, HEADS * CHANNELS, head, channel, CHANNELS)
        at_row = (query_begin + offset) * HEADS + head
        tl.store(log_sums + at_row, most + tl.log2(total), mask=offset < num_queries)


@triton.jit
def _score_gradient(
    q, k, v, above, mean, log_sum, query_begin, query_offset, key_begin, key_offset, num_keys, seed, head,
    scale, dropout, HEADS: tl.constexpr, CAUSAL: tl.constexpr, HAS_DROPOUT: tl.constexpr, KEYS_FIRST: tl.constexpr,
):  # fmt: skip
    """The shares that values were taken with, and the gradient of the scores, both up to a factor.

    Computed the way round in which the next product takes them: to turn them over would cost more than to compute them.
    """
    score = _scores(q, k, query_offset, key_offset, num_keys, scale, CAUSAL, KEYS_FIRST)
    if KEYS_FIRST:
        of_share = tl.dot(v, tl.trans(above), input_precision="ieee")
        log_sum, mean = log_sum[None, :], mean[None, :]
    else:
        of_share = tl.dot(above, tl.trans(v), input_precision="ieee")
        log_sum, mean = log_sum[:, None], mean[:, None]
    share = tl.exp2(score - log_sum)
    used = share
    if HAS_DROPOUT:
        of_query, of_key = _bits(seed, query_begin + query_offset, key_begin + key_offset, head, HEADS)
        bits = of_key[:, None] * of_query[None, :] if KEYS_FIRST else of_query[:, None] * of_key[None, :]
        is_kept = bits >= lowest_kept(dropout)
        used, of_share = tl.where(is_kept, share, 0.0), tl.where(is_kept, of_share, 0.0)
    return used, share * (of_share - mean)


@triton.jit
def _about_queries(
    query, gradient, out, log_sums, begin, offset, count, query_step, head, channel, dropout,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """What the way back reads of queries: themselves, the gradient of their output, and two numbers each."""
    q = _tile(query, begin, offset, count, query_step, head, channel, CHANNELS)
    above = _tile(gradient, begin, offset, count, HEADS * CHANNELS, head, channel, CHANNELS)
    attended = _tile(out, begin, offset, count, HEADS * CHANNELS, head, channel, CHANNELS)
    mean = tl.sum(above.to(tl.float32) * attended.to(tl.float32), axis=1) * (1.0 - dropout)
    log_sum = tl.load(log_sums + (begin + offset) * HEADS + head, mask=offset < count, other=0.0)
    return q, above, mean, log_sum


@Kernel
def _attend_backward_kernel(
    gradient, query, key, value, out, log_sums, query_gradient, key_gradient, value_gradient,
    query_bounds, key_bounds, seed, query_step, key_step, value_step,
    query_gradient_step, key_gradient_step, value_gradient_step, scale, plain_scale, dropout,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, CHANNEL_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    """A block of keys, for which it goes over the queries; then a block of queries, for which it goes over the keys."""
    sequence, head, block = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS, tl.program_id(1)
    query_begin, key_begin = tl.load(query_bounds + sequence), tl.load(key_bounds + sequence)
    num_queries = tl.load(query_bounds + sequence + 1) - query_begin
    num_keys = tl.load(key_bounds + sequence + 1) - key_begin
    row, channel = block * ROWS + tl.arange(0, ROWS), tl.arange(0, CHANNEL_BLOCK)
    made_up = 1.0 / (1.0 - dropout)
    if block * ROWS < num_keys:
        k = _tile(key, key_begin, row, num_keys, key_step, head, channel, CHANNELS)
        v = _tile(value, key_begin, row, num_keys, value_step, head, channel, CHANNELS)
        of_key = tl.zeros((ROWS, CHANNEL_BLOCK), tl.float32)
        of_value = tl.zeros((ROWS, CHANNEL_BLOCK), tl.float32)
        first = 0
        if CAUSAL:
            first = block * ROWS // COLUMNS * COLUMNS
        for start in range(first, num_queries, COLUMNS):
            offset = start + tl.arange(0, COLUMNS)
            q, above, mean, log_sum = _about_queries(
                query, gradient, out, log_sums, query_begin, offset, num_queries, query_step, head, channel, dropout,
                HEADS, CHANNELS,
            )  # fmt: skip
            used, of_score = _score_gradient(
                q, k, v, above, mean, log_sum, query_begin, offset, key_begin, row, num_keys, seed, head,
                scale, dropout, HEADS, CAUSAL, HAS_DROPOUT, True,
            )  # fmt: skip
            of_value = tl.dot(used.to(above.dtype), above, of_value, input_precision="ieee")
            of_key = tl.dot(of_score.to(q.dtype), q, of_key, input_precision="ieee")
        of_key, of_value = of_key * (plain_scale * made_up), of_value * made_up
        _put(of_key, key_gradient, key_begin, row, num_keys, key_gradient_step, head, channel, CHANNELS)
        _put(of_value, value_gradient, key_begin, row, num_keys, value_gradient_step, head, channel, CHANNELS)
    if block * ROWS < num_queries:
        q, above, mean, log_sum = _about_queries(
            query, gradient, out, log_sums, query_begin, row, num_queries, query_step, head, channel, dropout,
            HEADS, CHANNELS,
        )  # fmt: skip
        of_query = tl.zeros((ROWS, CHANNEL_BLOCK), tl.float32)
        behind = num_keys
        if CAUSAL:
            behind = tl.minimum(num_keys, (block + 1) * ROWS)
        for start in range(0, behind, COLUMNS):
            at = start + tl.arange(0, COLUMNS)
            k = _tile(key, key_begin, at, num_keys, key_step, head, channel, CHANNELS)
            v = _tile(value, key_begin, at, num_keys, value_step, head, channel, CHANNELS)
            _, of_score = _score_gradient(
                q, k, v, above, mean, log_sum, query_begin, row, key_begin, at, num_keys, seed, head,
                scale, dropout, HEADS, CAUSAL, HAS_DROPOUT, False,
            )  # fmt: skip
            of_query = tl.dot(of_score.to(k.dtype), k, of_query, input_precision="ieee")
        of_query = of_query * (plain_scale * made_up)
        _put(
            of_query,
            query_gradient,
            query_begin,
            row,
            num_queries,
            query_gradient_step,
            head,
            channel,
            CHANNELS,
        )


def most_rows(query: Tensor) -> int:
    """Of a tile, such that the memory of a multiprocessor holds a block of queries and three of keys and values."""
    row = _channel_block(query.shape[-1]) * query.element_size()
    room = shared_memory(query.device) // (7 * row)
    return min(64, 1 << room.bit_length() >> 1)


def _channel_block(channels: int) -> int:
    return int(max(16, triton.next_power_of_2(channels)))


def _blocks(query: Tensor, span: Span) -> tuple[int, int, int]:
    """Channels, rows and warps of a tile: about as many rows as sequences have, if these are short."""
    mean = span.num_keys // max(1, len(span.key_bounds) - 1)
    longest = max(span.max_queries, span.max_keys)
    rows = min(most_rows(query), max(LEAST_ROWS, triton.next_power_of_2(min(longest, 2 * mean))))
    channels = _channel_block(query.shape[-1])
    return channels, rows, 4 if rows > LEAST_ROWS or channels > 128 else 1


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
    channel_block, rows, warps = _blocks(query, span)
    _attend_forward_kernel[(heads * (len(span.query_bounds) - 1), triton.cdiv(span.max_queries, rows))](
        *inputs, out, log_sums, span.query_bounds, span.key_bounds, seed, *map(_step, inputs),
        LOG2_E / channels**0.5, dropout,
        heads, channels, channel_block, rows, rows, span.causal, dropout > 0, num_warps=warps,
    )  # fmt: skip


def backward(
    by_query: Sequence[Tensor], by_key: Sequence[Tensor], span: Span, seed: Tensor, dropout: float
) -> None:
    """By query: the output's gradient, then as in `forward`, the query's gradient last. By key: two more gradients."""
    gradient, query, out, log_sums, query_gradient = by_query
    inputs, gradients = (query, *by_key[:2]), (query_gradient, *by_key[2:])
    _, heads, channels = query.shape
    channel_block, rows, warps = _blocks(query, span)
    longest = max(span.max_queries, span.max_keys)
    _attend_backward_kernel[(heads * (len(span.query_bounds) - 1), triton.cdiv(longest, rows))](
        gradient, *inputs, out, log_sums, *gradients, span.query_bounds, span.key_bounds, seed,
        *map(_step, inputs), *map(_step, gradients), LOG2_E / channels**0.5, channels**-0.5, dropout,
        heads, channels, channel_block, rows, max(16, rows // 2), span.causal, dropout > 0, num_warps=warps,
    )  # fmt: skip
