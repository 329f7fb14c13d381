"""The shape of a data set: how many users, items and actions, how long histories are, how unequal items are.

The two distributions are kept as quantiles, at positions that crowd towards the top, where a few long
histories and a few popular items hold much of the total. The facts about the named data sets are in
`shapes.json`; each says whether it was measured or estimated.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert4rec.errors import NotFoundError, UsageError

NUM_QUANTILES = 65


@dataclass(frozen=True)
class Shape:
    """What is known about a log without any user or item."""

    num_users: int
    num_items: int
    num_actions: int
    length_quantiles: tuple[float, ...]
    """Actions per user, from the fewest to the most, at `quantile_positions`."""
    count_quantiles: tuple[float, ...]
    """Actions per item, likewise."""
    source: str
    """Where the figures are from: "measured", or a sentence."""

    def __post_init__(self) -> None:
        if min(self.num_users, self.num_items, self.num_actions) < 1:
            raise UsageError("A shape must have at least one user, one item and one action.")
        for quantiles in (self.length_quantiles, self.count_quantiles):
            if len(quantiles) < 2 or quantiles[0] < 1 or list(quantiles) != sorted(quantiles):
                raise UsageError(f"Quantiles must be increasing and at least 1; got {list(quantiles)}.")


def shape_names() -> list[str]:
    """The data sets whose shape is known."""
    return list(_stored_shapes())


def named_shape(name: str) -> Shape:
    """The shape of a data set of the paper."""
    stored = _stored_shapes()
    if name not in stored:
        raise NotFoundError(f"Unknown shape {name!r}. Known: {', '.join(stored)}.")
    facts = stored[name]
    return Shape(
        num_users=facts["users"],
        num_items=facts["items"],
        num_actions=facts["actions"],
        length_quantiles=tuple(facts["length_quantiles"]),
        count_quantiles=tuple(facts["count_quantiles"]),
        source=facts["source"],
    )


def measure_shape(lengths: NDArray[np.int64], counts: NDArray[np.int64]) -> Shape:
    """The shape of a log, from its actions per user and its actions per item (none of them 0)."""
    assert lengths.sum() == counts.sum(), "both must add up to the number of actions"
    positions = quantile_positions(NUM_QUANTILES)
    return Shape(
        num_users=len(lengths),
        num_items=len(counts),
        num_actions=int(lengths.sum()),
        length_quantiles=tuple(np.quantile(lengths, positions).round(2).tolist()),
        count_quantiles=tuple(np.quantile(counts, positions).round(2).tolist()),
        source="measured",
    )


def quantile_positions(number: int) -> NDArray[np.float64]:
    """Where `number` quantiles are taken: from 0 to 1, ever closer together towards 1."""
    return 1 - (1 - np.linspace(0, 1, number)) ** 3


def spread(quantiles: Sequence[float], size: int) -> NDArray[np.float64]:
    """`size` rising values that have these quantiles; between two of them, logarithms are interpolated."""
    return _interpolate(quantiles, np.linspace(0, 1, size))


def spread_whole(quantiles: Sequence[float], size: int, *, total: int, ceiling: int) -> NDArray[np.int64]:
    """`size` rising whole numbers of about these quantiles that add up to exactly `total`, none above `ceiling`.

    The smallest quantile is kept; what lies above it is stretched or shrunk by one factor.
    """
    floor = int(quantiles[0])
    excess = spread(quantiles, size) - floor

    def stretched(factor: float) -> NDArray[np.float64]:
        return np.minimum(floor + factor * excess, ceiling)

    low, high = 0.0, 1e6
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if stretched(middle).sum() < total else (low, middle)
    ends = np.rint(np.cumsum(stretched(high))).astype(np.int64)
    if ends[-1] != total:
        raise UsageError(
            f"{size} histories of {floor} to {ceiling} actions with this distribution cannot add up to {total} "
            "actions. Change the number of users, items or actions."
        )
    return np.diff(ends, prepend=0)


def weights_for_counts(
    shape: Shape, *, affinities: NDArray[np.float64], shares: NDArray[np.float64], repeat_share: float
) -> NDArray[np.float64]:
    """How strongly each item must be drawn for the counts to come out as `spread(count_quantiles, num_items)`.

    A user who already has an item draws another one, so popular items need more than their share of the draws. If
    a user draws for a time t, an item of weight w is in the history with probability 1 - exp(-a w t), where a is the
    user's affinity to it (`affinities`, in these `shares` of all pairs of user and item), and t is such that the
    probabilities of all items add up to the length of the history. The lengths and the number of users of each item are
    known; t and w are improved in turn. Only the ratios of weights matter.
    """
    lengths, num_users = _condense(shape.length_quantiles, shape.num_users)
    counts, num_items = _condense(shape.count_quantiles, shape.num_items)
    num_draws = (1 - repeat_share) * shape.num_actions
    # No user can have more than every item once, and nearly all of them takes forever.
    lengths = np.minimum(lengths * num_draws / (lengths @ num_users), 0.98 * shape.num_items)
    wanted = np.minimum(counts * num_draws / (counts @ num_items), 0.98 * shape.num_users)
    weights, times = wanted / (wanted @ num_items), lengths
    for _ in range(40):
        for _ in range(2):
            missed = np.exp(-affinities * weights[:, None] * times[:, None, None])
            found = (1 - missed) @ shares
            gain = (missed * affinities * weights[:, None]) @ shares
            newton = times + (lengths - found @ num_items) / np.maximum(gain @ num_items, 1e-12)
            times = np.clip(newton, times / 4, times * 4)
        weights = weights * wanted / (num_users @ found)
        weights /= weights @ num_items
    exact_counts = spread(shape.count_quantiles, shape.num_items)
    return np.asarray(np.exp(np.interp(np.log(exact_counts), np.log(counts), np.log(weights))))


def _condense(quantiles: Sequence[float], size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A few values that stand for `size` of these quantiles, and how many each stands for."""
    positions = quantile_positions(97)
    middles = (positions[1:] + positions[:-1]) / 2
    return _interpolate(quantiles, positions), size * np.diff(middles, prepend=0, append=1)


def _interpolate(quantiles: Sequence[float], positions: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.exp(np.interp(positions, quantile_positions(len(quantiles)), np.log(quantiles))))


def _stored_shapes() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(files("bert4rec.world").joinpath("shapes.json").read_text("utf-8"))
    return stored
