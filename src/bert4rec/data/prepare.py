"""From a log in memory to a dataset on disk: sort, filter, number, draw candidates, write."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bert4rec import __version__
from bert4rec.artefact import new_folder, sha256_of, write_manifest
from bert4rec.data.dataset import MANIFEST, SCHEMA, Dataset, Repeats
from bert4rec.data.filters import Actions, Filters, apply_filters, duplicates, repeats
from bert4rec.data.negatives import NegativeKind, draw_negatives
from bert4rec.data.splits import SplitSpec, make_split
from bert4rec.errors import UsageError
from bert4rec.logs.log import Log

if TYPE_CHECKING:
    import polars as pl

TIE_RULE = "actions of a user at the same time keep the order of the log"
USUAL_REPEATS = 0.1
"""From this share of actions on items that the user had before, repeating is what people do, not an accident."""


@dataclass(frozen=True)
class Recipe:
    """How a log becomes a dataset."""

    filters: Filters = Filters()
    split: SplitSpec = SplitSpec()
    negatives: Sequence[NegativeKind] = ("popularity",)
    """Which candidates are drawn and stored."""
    num_negatives: int = 100
    seed: int = 0
    """Of the candidates: the same seed draws the same ones on every machine."""
    repeats: Repeats | None = None
    """Whether items of a history may come again; None decides by how many do."""

    def __post_init__(self) -> None:
        if self.filters.drop_repeats and self.repeats == "keep":
            raise UsageError(
                "--drop-repeats leaves no repeats to keep: leave out one of it and --repeats keep."
            )


def prepare(
    log: Log,
    target: Path,
    *,
    name: str,
    recipe: Recipe = Recipe(),
    source: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Dataset:
    """Write the dataset folder `target` and open it. `source` is kept in dataset.json: where the log came from.

    Users keep the order of the log; items are numbered from 1 by falling count, ties in the order of the log.
    """
    with new_folder(target, MANIFEST, overwrite=overwrite) as folder:
        actions, notes = apply_filters(_sorted(log), recipe.filters)
        users, user_counts = _number_users(actions.users)
        items, item_counts = _number_items(actions.items)
        sequences = items[actions.items]
        offsets = np.concatenate([[0], np.cumsum(user_counts)]).astype(np.int64)
        counts = {"users": len(users), "items": len(item_counts), "actions": len(sequences)} | _oddities(
            actions
        )
        np.save(folder / "sequences.npy", sequences)
        np.save(folder / "offsets.npy", offsets)
        if actions.times is not None:
            np.save(folder / "times.npy", actions.times)
        _write_users(folder / "users.parquet", log.user_ids, users, user_counts)
        notes += _write_items(folder / "items.parquet", log, items, item_counts)
        del actions
        # An action that is there twice, by accident, is no sign of people who come back.
        share = (counts["repeats"] - counts["duplicates"]) / (len(sequences) - counts["duplicates"])
        rule: Repeats = recipe.repeats or ("keep" if share >= USUAL_REPEATS else "exclude")
        notes.append(_say_repeats(share, rule, chosen=recipe.repeats is None))
        notes += _write_candidates(folder, recipe, rule, sequences, offsets, len(item_counts))
        write_manifest(
            folder,
            MANIFEST,
            {
                "format": "bert4rec dataset",
                "schema": SCHEMA,
                "written_by": f"bert4rec {__version__}",
                "name": name,
                "source": dict(source or {}),
                "checksum": _checksum(folder),
                "counts": counts,
                "filters": asdict(recipe.filters),
                "tie_rule": TIE_RULE,
                "repeats": rule,
                "split": asdict(recipe.split),
                "negatives": {
                    "kinds": list(recipe.negatives),
                    "per_user": recipe.num_negatives,
                    "seed": recipe.seed,
                },
                "notes": [*log.notes, *notes],
            },
        )
        make_split(Dataset.open(folder))  # an impossible split must not take an old dataset's place
    return Dataset.open(target)


def _sorted(log: Log) -> Actions:
    """Actions by user, then time. Stable: what the log does not order by time stays in the log's order."""
    import polars as pl

    keys = [pl.Series("user", log.users)]
    if log.times is not None:
        keys.append(pl.Series("time", log.times))
    frame = pl.DataFrame(keys)
    order = frame.select(pl.arg_sort_by(frame.columns, maintain_order=True)).to_series().to_numpy()
    times = None if log.times is None else log.times[order]
    return Actions(log.users[order], log.items[order], times)


def _number_users(users: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The users that are left, as indices into the log's ids, and how many actions each has."""
    counts = np.bincount(users)
    present = np.flatnonzero(counts)
    return present, counts[present]


def _number_items(items: NDArray[np.uint32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Per index into the log's ids the item's number (0: not left), and per number, from 1, its count."""
    counts = np.bincount(items)
    by_falling_count = np.argsort(-counts, kind="stable")
    num_items = np.count_nonzero(counts)
    numbers = np.zeros(len(counts), np.int32)
    numbers[by_falling_count[:num_items]] = np.arange(1, num_items + 1)
    return numbers, counts[by_falling_count[:num_items]]


def _oddities(actions: Actions) -> dict[str, int]:
    """How many actions tie with the user's previous one, repeat an item, or are there twice.

    Without times there are no duplicates: who does the same thing twice in a row may mean it.
    """
    counts = {
        "ties": 0,
        "repeats": int(np.count_nonzero(repeats(actions.users, actions.items))),
        "duplicates": 0,
    }
    if actions.times is not None:
        same_user = actions.users[1:] == actions.users[:-1]
        counts["ties"] = int(np.count_nonzero(same_user & (actions.times[1:] == actions.times[:-1])))
        counts["duplicates"] = int(np.count_nonzero(duplicates(actions, actions.times)))
    return counts


def _say_repeats(share: float, rule: Repeats, *, chosen: bool) -> str:
    """The rule in one line, and how to have the other."""
    found = (
        f"{share:.1%} of the actions are on items that the user had before"
        if share
        else "No user has an item twice"
    )
    meaning = {
        "keep": "repeats are kept: items of a history are candidates and recommended like any other",
        "exclude": "repeats are excluded: items of a history are no candidates and not recommended again",
    }
    other = {"keep": "exclude", "exclude": "keep"}[rule]
    if not chosen:
        return f"{found}. As asked, {meaning[rule]}."
    return f"{found}, so {meaning[rule]}. For the other: --repeats {other}."


def _write_candidates(
    folder: Path,
    recipe: Recipe,
    rule: Repeats,
    sequences: NDArray[np.int32],
    offsets: NDArray[np.int64],
    num_items: int,
) -> list[str]:
    """Draw and write the candidates of each kind; says where there are too few."""
    notes = []
    for kind in recipe.negatives:
        # Where a target may be drawn, one more than needed: when the target is left out, as many remain.
        count = recipe.num_negatives + (rule == "keep")
        drawn = draw_negatives(
            sequences, offsets, num_items, kind=kind, seed=recipe.seed, count=count, repeats=rule
        )
        np.save(folder / f"negatives-{kind}.npy", drawn)
        notes += _say_if_short(drawn, num_items, recipe.num_negatives, rule)
    return notes


def _write_users(path: Path, ids: "pl.Series", users: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    import polars as pl

    columns = {"number": np.arange(len(users), dtype=np.int32), "id": ids.gather(users), "count": counts}
    pl.DataFrame(columns).write_parquet(path)


def _write_items(path: Path, log: Log, numbers: NDArray[np.int32], counts: NDArray[np.int64]) -> list[str]:
    """Write the table of items; says how many of them the catalogue knows."""
    import polars as pl

    kept = np.flatnonzero(numbers)
    table = pl.DataFrame({"number": numbers[kept], "id": log.item_ids.gather(kept)}).sort("number")
    table = table.with_columns(pl.Series("count", counts))
    if log.item_columns is None:
        table.write_parquet(path)
        return []
    known = log.item_columns.with_columns(pl.col("id").cast(pl.String)).unique("id", keep="first")
    known = known.drop([name for name in ("number", "count") if name in known.columns])
    table = table.with_columns(pl.col("id").cast(pl.String).alias("id as text"))
    found = table["id as text"].is_in(known["id"].implode()).sum()
    table = table.join(known, left_on="id as text", right_on="id", how="left", maintain_order="left")
    table.drop("id as text").write_parquet(path)
    more = ", ".join(name for name in known.columns if name != "id")
    return [f"{found:,} of {len(kept):,} items are described ({more})."]


def _say_if_short(negatives: NDArray[np.int32], num_items: int, wanted: int, rule: Repeats) -> list[str]:
    short = np.flatnonzero((negatives == 0).any(axis=1))
    if not len(short):
        return []
    if rule == "keep":
        return [
            f"There are only {num_items:,} items: sampled candidates are all of them, fewer than {wanted}."
        ]
    fewest = int((negatives[short] > 0).sum(axis=1).min())
    return [
        f"{len(short):,} of {len(negatives):,} users have left fewer than {wanted} items untouched: they "
        f"are judged among fewer candidates, at the least {fewest}, which is easier."
    ]


def _checksum(folder: Path) -> str:
    """Of what a model sees and what splits go by, so not of titles: equal data has equal checksums."""
    names = ("sequences.npy", "offsets.npy", "times.npy")
    parts = [sha256_of(folder / name) for name in names if (folder / name).exists()]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]
