"""What a dataset looks like: the row of Table 1, and what the paper does not print."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.blocks import first_and_last, user_blocks
from bert4rec.data.dataset import Dataset
from bert4rec.data.filters import Actions, count_oddities
from bert4rec.logs.times import format_moment

CURVE_POINTS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of the catalogue, most popular first, at which the popularity curve is given."""


def statistics(dataset: Dataset) -> dict[str, Any]:
    """Counts, lengths, density and popularity, ready for JSON."""
    lengths, num_users = _count_lengths(dataset.offsets)
    counts = dataset.manifest["counts"]
    days = (
        [] if dataset.times is None else [format_moment(each)[:10] for each in first_and_last(dataset.times)]
    )
    if "repeats" not in counts:  # Not made of a log.
        counts = count_oddities(_actions(dataset))
    return {
        "name": dataset.name,
        "users": dataset.num_users,
        "items": dataset.num_items,
        "actions": dataset.num_actions,
        "average_length": round(dataset.num_actions / dataset.num_users, 2),
        "median_length": _median(lengths, num_users),
        "shortest_length": int(lengths[0]),
        "longest_length": int(lengths[-1]),
        # The share of all pairs of a user and an item; a pair that is there twice counts once.
        "density": (dataset.num_actions - counts["repeats"]) / (dataset.num_users * dataset.num_items),
        "ties": counts["ties"],
        "repeats": counts["repeats"],
        "repeat_rule": dataset.repeats,
        "popularity": popularity_curve(dataset.item_counts[1:]),
        "first_day": days[0] if days else None,
        "last_day": days[1] if days else None,
        "checksum": dataset.checksum,
    }


def _count_lengths(offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The lengths that histories have, ascending, and how many users have each. Of any log, they are few."""
    counts = Counter[int]()
    for users in user_blocks(offsets):
        found = np.unique_counts(np.diff(offsets[users.start : users.stop + 1]))
        counts.update(dict(zip(found.values.tolist(), found.counts.tolist(), strict=True)))
    lengths = np.array(sorted(counts), np.int64)
    return lengths, np.array([counts[length] for length in lengths.tolist()], np.int64)


def _median(values: NDArray[np.int64], counts: NDArray[np.int64]) -> float:
    """As `np.median` finds it if each value is there so many times."""
    reached, total = np.cumsum(counts), int(counts.sum())
    middle = np.searchsorted(reached, [(total - 1) // 2, total // 2], side="right")
    return float(values[middle].mean())


def _actions(dataset: Dataset) -> Iterator[Actions]:
    for users in user_blocks(dataset.offsets):
        limits = dataset.offsets[users.start : users.stop + 1]
        numbers = np.repeat(np.arange(users.start, users.stop, dtype=np.uint32), np.diff(limits))
        part = slice(limits[0], limits[-1])
        times = None if dataset.times is None else np.asarray(dataset.times[part])
        yield Actions(numbers, dataset.sequences[part].astype(np.uint32), times)


def popularity_curve(counts: NDArray[np.int64]) -> dict[str, float]:
    """Share of all actions that falls on the most popular 0.1%, 1%, … of the items."""
    reached = np.cumsum(np.sort(counts)[::-1]) / counts.sum()
    return {
        f"{share:.1%}": round(float(reached[round(share * len(counts)) - 1]), 4)
        for share in CURVE_POINTS
        if share * len(counts) >= 1
    }


def plot_statistics(dataset: Dataset, path: Path) -> None:
    """Draw the lengths of histories and the popularity of items, side by side."""
    from bert4rec.plotting import new_figure, save_figure

    figure, (left, right) = new_figure(columns=2)
    lengths, num_users = _count_lengths(dataset.offsets)
    median = _median(lengths, num_users)
    bins = np.unique(np.geomspace(lengths[0], lengths[-1] + 1, 40).round())
    left.hist(lengths, bins=bins, weights=num_users, color="C0")
    left.axvline(median, color="C1", label=f"median {median:g}")
    left.set(xscale="log", xlabel="actions of a user", ylabel="users", title="Length of histories")
    left.legend()
    counts = np.sort(dataset.item_counts[1:])[::-1]
    right.plot(np.arange(1, len(counts) + 1), counts, color="C0")
    right.set(
        xscale="log", yscale="log", xlabel="items, most popular first", ylabel="actions", title="Popularity"
    )
    figure.suptitle(
        f"{dataset.name}: {dataset.num_users:,} users, {dataset.num_items:,} items, {dataset.num_actions:,} actions"
    )
    save_figure(figure, path)
