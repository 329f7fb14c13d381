"""What the recommender asks of a model, whatever computes it: torch on any device, or ONNX Runtime."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.histories import Histories
from bert4rec.recommend.rules.subset import Subset

Numbers = NDArray[np.int32]
Scores = NDArray[np.float32]


class Engine(Protocol):
    """Turns histories into queries, and queries into the items that answer them best.

    The score of an item is its row times the query, plus its bias. Histories that are handed over are no longer
    than `max_history`, and the longest come first, so that neighbours can be computed together; they may be empty.
    """

    max_history: int
    rows: NDArray[np.float32]
    """[V, D]: the vector of each item; item 1 comes first."""
    bias: NDArray[np.float32]
    """[V]; -inf for items that the model was never trained on."""

    def queries(self, histories: Histories) -> NDArray[np.float32]:
        """The query of each history, [B, D]."""
        ...

    def top(
        self, histories: Histories, excluded: Histories, k: int, subset: Subset | None = None
    ) -> tuple[Numbers, Scores]:
        """The k best items of each history, [B, k], less its row of `excluded`; k is at most V.

        If there is a `subset`, nothing else is found. Where fewer items remain, the rest of the row has score -inf.
        """
        ...

    def attention(self, history: Numbers) -> NDArray[np.float32] | None:
        """How much the asked place looks at each item and, last, at itself: [layers, heads, items + 1]."""
        ...


@runtime_checkable
class Steady(Protocol):
    """An engine whose answer about one of many histories does not depend on the others, not even in the last bit."""

    enough: int
    """From how many histories on."""


def by_tokens(histories: Histories, tokens: int, *, of_one_length: bool = False) -> Iterator[Histories]:
    """Cut histories, longest first, into pieces of at most so many items, or of one history."""
    lengths, first = histories.lengths, 0
    while first < len(histories):
        last = first + max(1, tokens // (int(lengths[first]) + 1))
        if of_one_length:
            last = first + int(np.searchsorted(-lengths[first:last], -lengths[first], side="right"))
        yield histories[first:last]
        first = last


def by_rows(count: int, rows: int) -> Iterator[slice]:
    return (slice(first, first + rows) for first in range(0, count, rows))
