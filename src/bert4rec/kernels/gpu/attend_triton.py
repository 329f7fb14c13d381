"""The kernels of `attend`. Scores never reach memory: they are computed tile by tile, and again on the way back.

A program takes a block of queries of one sequence and one head, and on the way back also a block of its keys.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from bert4rec.kernels.attend import Span
from bert4rec.kernels.gpu.launch_triton import Kernel
from bert4rec.kernels.gpu.shared_triton import lowest_kept, mixed, shared_memory

LOG2_E = 1.4426950408889634
BLOCK = 512
LEAST_ROWS = 16
"""Of a tile: with fewer there is no product of matrices."""
MOST_DOUBLED = 64
"""Channels of a head of which registers hold twice as many queries."""
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


@Kernel
def _bits_kernel(seed, query_bits, key_bits, num_query_bits, num_key_bits, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    of_query, of_key = mixed(place, seed) | 1, mixed(-1 - place, seed) | 1
    tl.store(query_bits + place, of_query.to(tl.int32, bitcast=True), mask=place < num_query_bits)
    tl.store(key_bits + place, of_key.to(tl.int32, bitcast=True), mask=place < num_key_bits)


@triton.jit
def _read(x, begin, offset, count, head, other, HEADS: tl.constexpr):
    """A number for each of these rows."""
    return tl.load(x + (begin + offset) * HEADS + head, mask=offset < count, other=other)


@triton.jit
def _is_kept(of_first, of_second, dropout):
    """By the products of the bits of queries and keys, as `support.keep_pairs` says."""
    product = of_first[:, None] * of_second[None, :]
    return product.to(tl.uint32, bitcast=True) >= lowest_kept(dropout)


@triton.jit
def _made_up(share, dropout):
    """For what was dropped. At once and not in the end: the compiler would drop from bfloat16, in twice the time."""
    return share * (1.0 / (1.0 - dropout))


@Kernel
def _attend_forward_kernel(
    query, key, value, out, log_sums, query_bits, key_bits, query_bounds, key_bounds,
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
        of_query = _read(query_bits, query_begin, offset, num_queries, head, 0, HEADS) if HAS_DROPOUT else 0
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
                of_key = _read(key_bits, key_begin, at, num_keys, head, 0, HEADS)
                share = _made_up(tl.where(_is_kept(of_query, of_key, dropout), share, 0.0), dropout)
            mean = tl.dot(share.to(v.dtype), v, mean * shrink[:, None], input_precision="ieee")
            most = new_most
        total = tl.where(total > 0.0, total, 1.0)  # A dead query may have nothing to look at.
        mean = mean / total[:, None]
        _put(mean, out, query_begin, offset, num_queries, HEADS * CHANNELS, head, channel, CHANNELS)
        at_row = (query_begin + offset) * HEADS + head
        tl.store(log_sums + at_row, most + tl.log2(total), mask=offset < num_queries)


@triton.jit
def _score_gradient(
    q, k, v, above, mean, log_sum, of_query, of_key, query_offset, key_offset, num_keys,
    scale, dropout, CAUSAL: tl.constexpr, HAS_DROPOUT: tl.constexpr, KEYS_FIRST: tl.constexpr,
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
        is_kept = _is_kept(of_key, of_query, dropout) if KEYS_FIRST else _is_kept(of_query, of_key, dropout)
        used = _made_up(tl.where(is_kept, share, 0.0), dropout)
        of_share = tl.where(is_kept, of_share, 0.0)
    return used, share * (of_share - mean)


@triton.jit
def _about_queries(
    query, gradient, means, log_sums, query_bits, begin, offset, count, query_step, head, channel,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, HAS_DROPOUT: tl.constexpr,
):  # fmt: skip
    """What the way back reads of queries: themselves, the gradient of their output, and three numbers each."""
    q = _tile(query, begin, offset, count, query_step, head, channel, CHANNELS)
    above = _tile(gradient, begin, offset, count, HEADS * CHANNELS, head, channel, CHANNELS)
    mean = _read(means, begin, offset, count, head, 0.0, HEADS)
    log_sum = _read(log_sums, begin, offset, count, head, 0.0, HEADS)
    of_query = _read(query_bits, begin, offset, count, head, 0, HEADS) if HAS_DROPOUT else 0
    return q, above, mean, log_sum, of_query


@Kernel
def _means_kernel(
    gradient, out, means, size, dropout, CHANNELS: tl.constexpr, CHANNEL_BLOCK: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """How much the output of each query and head already points along its gradient."""
    row, channel = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, CHANNEL_BLOCK)
    inside = (row[:, None] < size) & (channel[None, :] < CHANNELS)
    place = row[:, None].to(tl.int64) * CHANNELS + channel[None, :]
    above = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    attended = tl.load(out + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(means + row, tl.sum(above * attended, axis=1) * (1.0 - dropout), mask=row < size)


@Kernel
def _attend_backward_kernel(
    gradient, query, key, value, means, log_sums, query_bits, key_bits, query_gradient, key_gradient, value_gradient,
    query_bounds, key_bounds, query_step, key_step, value_step,
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
        of_key_bits = _read(key_bits, key_begin, row, num_keys, head, 0, HEADS) if HAS_DROPOUT else 0
        of_key = tl.zeros((ROWS, CHANNEL_BLOCK), tl.float32)
        of_value = tl.zeros((ROWS, CHANNEL_BLOCK), tl.float32)
        first = 0
        if CAUSAL:
            first = block * ROWS // COLUMNS * COLUMNS
        for start in range(first, num_queries, COLUMNS):
            offset = start + tl.arange(0, COLUMNS)
            q, above, mean, log_sum, of_query_bits = _about_queries(
                query, gradient, means, log_sums, query_bits, query_begin, offset, num_queries, query_step,
                head, channel, HEADS, CHANNELS, HAS_DROPOUT,
            )  # fmt: skip
            used, of_score = _score_gradient(
                q, k, v, above, mean, log_sum, of_query_bits, of_key_bits, offset, row, num_keys,
                scale, dropout, CAUSAL, HAS_DROPOUT, True,
            )  # fmt: skip
            of_value = tl.dot(used.to(above.dtype), above, of_value, input_precision="ieee")
            of_key = tl.dot(of_score.to(q.dtype), q, of_key, input_precision="ieee")
        of_key *= plain_scale * made_up
        _put(of_key, key_gradient, key_begin, row, num_keys, key_gradient_step, head, channel, CHANNELS)
        _put(of_value, value_gradient, key_begin, row, num_keys, value_gradient_step, head, channel, CHANNELS)
    if block * ROWS < num_queries:
        q, above, mean, log_sum, of_query_bits = _about_queries(
            query, gradient, means, log_sums, query_bits, query_begin, row, num_queries, query_step,
            head, channel, HEADS, CHANNELS, HAS_DROPOUT,
        )  # fmt: skip
        of_query = tl.zeros((ROWS, CHANNEL_BLOCK), tl.float32)
        behind = num_keys
        if CAUSAL:
            behind = tl.minimum(num_keys, (block + 1) * ROWS)
        for start in range(0, behind, COLUMNS):
            at = start + tl.arange(0, COLUMNS)
            k = _tile(key, key_begin, at, num_keys, key_step, head, channel, CHANNELS)
            v = _tile(value, key_begin, at, num_keys, value_step, head, channel, CHANNELS)
            of_key_bits = _read(key_bits, key_begin, at, num_keys, head, 0, HEADS) if HAS_DROPOUT else 0
            _, of_score = _score_gradient(
                q, k, v, above, mean, log_sum, of_query_bits, of_key_bits, row, at, num_keys,
                scale, dropout, CAUSAL, HAS_DROPOUT, False,
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


def draw_bits(seed: Tensor, query: Tensor, key: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
    """[queries, H] and [keys, H]: random numbers whose products decide what dropout leaves.

    Drawn once, because the kernels would make each of them again for every tile. Without dropout they are not read.
    """
    if not dropout:
        return query, key
    query_bits, key_bits = (
        torch.empty(x.shape[:2], dtype=torch.int32, device=x.device) for x in (query, key)
    )
    sizes = query_bits.numel(), key_bits.numel()
    _bits_kernel[(triton.cdiv(max(sizes), BLOCK),)](seed, query_bits, key_bits, *sizes, BLOCK)
    return query_bits, key_bits


def means(gradient: Tensor, out: Tensor, dropout: float) -> Tensor:
    """[queries, H]: what the way back subtracts from the gradient of every score."""
    channels = out.shape[2]
    found = torch.empty(out.shape[:2], device=out.device)
    channel_block = _channel_block(channels)
    rows = max(1, 2 * BLOCK // channel_block)
    _means_kernel[(triton.cdiv(found.numel(), rows),)](
        gradient, out, found, found.numel(), dropout, channels, channel_block, rows
    )
    return found


def forward(by_query: Sequence[Tensor], by_key: Sequence[Tensor], span: Span, dropout: float) -> None:
    """By query: query, output, logarithms [R, H] that the way back needs, bits. By key: key, value, bits."""
    query, out, log_sums, query_bits = by_query
    key, value, key_bits = by_key
    inputs = query, key, value
    _, heads, channels = query.shape
    channel_block, rows, warps = _blocks(query, span)
    # Queries stay in registers, keys pass by: many of the former and few of the latter at once are best.
    queries, keys = rows, max(LEAST_ROWS, rows // 2)
    if channel_block <= MOST_DOUBLED and span.max_queries > rows:
        queries *= 2
    _attend_forward_kernel[(heads * (len(span.query_bounds) - 1), triton.cdiv(span.max_queries, queries))](
        *inputs, out, log_sums, query_bits, key_bits, span.query_bounds, span.key_bounds, *map(_step, inputs),
        LOG2_E / channels**0.5, dropout,
        heads, channels, channel_block, queries, keys, span.causal, dropout > 0, num_warps=warps,
    )  # fmt: skip


def backward(by_query: Sequence[Tensor], by_key: Sequence[Tensor], span: Span, dropout: float) -> None:
    """By query: the output's gradient, query, means, logarithms, bits, its gradient. By key: two more gradients."""
    gradient, query, means_, log_sums, query_bits, query_gradient = by_query
    key, value, key_bits, *key_gradients = by_key
    inputs, gradients = (query, key, value), (query_gradient, *key_gradients)
    _, heads, channels = query.shape
    channel_block, rows, warps = _blocks(query, span)
    longest = max(span.max_queries, span.max_keys)
    _attend_backward_kernel[(heads * (len(span.query_bounds) - 1), triton.cdiv(longest, rows))](
        gradient, *inputs, means_, log_sums, query_bits, key_bits, *gradients, span.query_bounds, span.key_bounds,
        *map(_step, inputs), *map(_step, gradients), LOG2_E / channels**0.5, channels**-0.5, dropout,
        heads, channels, channel_block, rows, max(LEAST_ROWS, rows // 2), span.causal, dropout > 0,
        num_warps=warps, num_stages=1,  # To read ahead takes registers, and with them programs that could run.
    )  # fmt: skip
