"""Attention inside sequences that lie end to end, where no kernel does it: those of similar length share a rectangle.

A call for each length would be many small ones, and one rectangle for all would be mostly padding. So sequences are
sorted by length and cut into a few buckets, each as wide as its longest sequence. What fills the others up are tokens
of neighbours: they are hidden from the queries, and what is computed for them is thrown away.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.signedinteger[Any]]

PAIRS_OF_A_CALL = 2000
"""Pairs of a query and a key that a CPU computes in the time that one more call takes: so many may be wasted."""


class Buckets:
    """How packed sequences get into rectangles and back. Made once for all layers."""

    def __init__(self, query_bounds: Tensor, key_bounds: Tensor, *, causal: bool) -> None:
        """Sequence b has the packed queries query_bounds[b] to query_bounds[b + 1]; its keys likewise.

        Where it is `causal`, they are as many.
        """
        first_query, first_key = query_bounds.cpu().numpy(), key_bounds.cpu().numpy()
        # Dead rows may have no keys: they look at a neighbour's, and nobody reads what they find.
        num_queries, num_keys = np.diff(first_query), np.diff(first_key).clip(min=1)
        order = np.argsort(-num_keys, kind="stable")
        order = order[num_queries[order] > 0]
        num_queries, num_keys = num_queries[order], num_keys[order]
        cuts = _cuts(num_keys.tolist())
        rows = np.diff([*cuts, len(order)])
        most_queries, most_keys = np.maximum.reduceat(num_queries, cuts), num_keys[cuts]
        queries, is_query = _rectangles(first_query, order, num_queries, np.repeat(most_queries, rows))
        keys, is_key = _rectangles(first_key, order, num_keys, np.repeat(most_keys, rows))
        places = np.empty(first_query[-1], np.int64)
        places[queries[is_query]] = np.flatnonzero(is_query)
        on_device = [torch.from_numpy(each).to(key_bounds.device) for each in (queries, keys, places, is_key)]
        self._queries, self._keys, self._places, visible = on_device
        self._sizes = [(rows * most_queries).tolist(), (rows * most_keys).tolist()]
        self._rows, self._causal = rows.tolist(), causal
        # Filling stands behind what is real, so that a causal query sees none of it.
        is_masked = np.minimum.reduceat(num_keys, cuts) < (0 if causal else most_keys)
        self._visible = [
            part.view(count, 1, 1, -1) if masked else None
            for part, count, masked in zip(visible.split(self._sizes[1]), self._rows, is_masked, strict=True)
        ]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        """Scaled dot-product attention inside each sequence; packed, [T, H, C] in and out."""
        of_queries, of_keys = self._sizes
        queries = query.index_select(0, self._queries).split(of_queries)
        keys, values = (x.index_select(0, self._keys).split(of_keys) for x in (key, value))
        attended = []
        for rows, visible, *qkv in zip(self._rows, self._visible, queries, keys, values, strict=True):
            q, k, v = (x.view(rows, -1, *x.shape[1:]).transpose(1, 2) for x in qkv)
            found = F.scaled_dot_product_attention(q, k, v, visible, dropout, is_causal=self._causal)
            attended.append(found.transpose(1, 2).flatten(0, 1))
        return torch.cat(attended).index_select(0, self._places)


def _cuts(lengths: list[int]) -> list[int]:
    """Where buckets begin among falling lengths, so that filling up costs hardly more than another call would."""
    cuts, longest, wasted = [0], lengths[0], 0
    for number, length in enumerate(lengths):
        wasted += longest**2 - length**2
        if wasted > PAIRS_OF_A_CALL:
            cuts.append(number)
            longest, wasted = length, 0
    return cuts


def _rectangles(
    first: Numbers, sequences: Numbers, lengths: Numbers, widths: Numbers
) -> tuple[Numbers, NDArray[np.bool_]]:
    """The token at each place, row after row of these widths, and whether it belongs to the row's sequence."""
    end = widths.cumsum()
    begin = end - widths
    place = np.arange(end[-1])
    tokens = np.minimum(place + np.repeat(first[sequences] - begin, widths), first[-1] - 1)
    return tokens, place < np.repeat(begin + lengths, widths)
