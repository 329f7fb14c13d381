"""What a dataset looks like: the row of Table 1, and what the paper does not print."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.filters import Actions, count_oddities
from bert4rec.logs.times import format_moment

CURVE_POINTS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of the catalogue, most popular first, at which the popularity curve is given."""


def statistics(dataset: Dataset) -> dict[str, Any]:
    """Counts, lengths, density and popularity, ready for JSON."""
    lengths, counts = dataset.lengths, dataset.manifest["counts"]
    if "repeats" not in counts:  # Not made of a log.
        users = np.repeat(np.arange(dataset.num_users, dtype=np.uint32), lengths)
        counts = count_oddities(Actions(users, dataset.sequences.astype(np.uint32), dataset.times))
    return {
        "name": dataset.name,
        "users": dataset.num_users,
        "items": dataset.num_items,
        "actions": dataset.num_actions,
        "average_length": round(float(lengths.mean()), 2),
        "median_length": float(np.median(lengths)),
        "shortest_length": int(lengths.min()),
        "longest_length": int(lengths.max()),
        # The share of all pairs of a user and an item; a pair that is there twice counts once.
        "density": (dataset.num_actions - counts["repeats"]) / (dataset.num_users * dataset.num_items),
        "ties": counts["ties"],
        "repeats": counts["repeats"],
        "repeat_rule": dataset.repeats,
        "popularity": popularity_curve(dataset.item_counts[1:]),
        "first_day": None if dataset.times is None else format_moment(int(dataset.times.min()))[:10],
        "last_day": None if dataset.times is None else format_moment(int(dataset.times.max()))[:10],
        "checksum": dataset.checksum,
    }


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
    lengths = np.sort(dataset.lengths)
    bins = np.unique(np.geomspace(lengths[0], lengths[-1] + 1, 40).round())
    left.hist(lengths, bins=bins, color="C0")
    left.axvline(float(np.median(lengths)), color="C1", label=f"median {np.median(lengths):g}")
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
