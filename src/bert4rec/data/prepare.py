"""From a log to a dataset: sort, filter, number, draw candidates."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bert4rec import __version__
from bert4rec.artefact import new_folder, refuse_existing
from bert4rec.data.array_files import new_array
from bert4rec.data.blocks import in_blocks
from bert4rec.data.dataset import MANIFEST, SCHEMA, Dataset, Repeats, candidates_file, checksum_of
from bert4rec.data.filters import Filters, apply_filters, count_oddities
from bert4rec.data.negatives import NegativeKind, draw_negatives
from bert4rec.data.sorted_actions import SortedActions, is_large
from bert4rec.data.splits import SplitSpec, make_split
from bert4rec.errors import UsageError
from bert4rec.logs.log import Log

if TYPE_CHECKING:
    import polars as pl

TIE_RULE = "actions of a user at the same time keep the order of the log"
USUAL_REPEATS = 0.1
"""If at least this share of the actions repeats an item, repeating is what users do, not an accident."""
ROWS_AT_ONCE = 2**17
"""Of candidates, while looking through them."""


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
                '`drop_repeats=True` leaves no repeats to keep. Pass either it or `repeats="keep"`, not both.'
            )


def prepare(
    log: Log,
    target: Path | None = None,
    *,
    name: str,
    recipe: Recipe = Recipe(),
    source: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Dataset:
    """Make a dataset of a log: in memory, or with `target` in that folder.

    `source` is kept in dataset.json: where the log came from. Users keep the order of the log; items are numbered
    from 1 by falling count, ties in the order of the log.
    """
    if target is not None:
        refuse_existing(target, MANIFEST, overwrite=overwrite)
    if target is None or not is_large(log):
        dataset = _make(log, None, name, recipe, source or {})
        return dataset if target is None else dataset.save(target, overwrite=overwrite)
    with new_folder(target, MANIFEST, overwrite=overwrite) as folder:
        _make(log, folder, name, recipe, source or {}).write_into(folder)
    return Dataset.open(target)


def _make(log: Log, folder: Path | None, name: str, recipe: Recipe, source: Mapping[str, Any]) -> Dataset:
    """The dataset of a log: its arrays are in memory, or mapped files of `folder`."""
    actions, notes = apply_filters(SortedActions(log, folder), recipe.filters)
    users = np.flatnonzero(actions.counts)
    user_counts = actions.counts[users]
    numbers, item_counts = _number_items(actions.item_counts())
    items, described = describe_items(_items_table(log, numbers, item_counts), log.item_columns)
    oddities = count_oddities(actions.blocks())
    sequences, times = actions.numbered(numbers)
    ordered = Ordered(
        sequences=sequences,
        offsets=np.concatenate([[0], np.cumsum(user_counts)]).astype(np.int64),
        times=times,
        oddities=oddities,
        tables={"items": items, "users": _users_table(log.user_ids, users, user_counts)},
    )
    notes = [*log.notes, *notes, *described]
    return conclude(ordered, folder, name=name, recipe=recipe, source=source, notes=notes)


@dataclass(frozen=True)
class Ordered:
    """Filtered actions in their order, users and items numbered."""

    sequences: NDArray[np.int32]
    offsets: NDArray[np.int64]
    times: NDArray[np.int64] | None
    oddities: Mapping[str, int]
    """What `count_oddities` found."""
    tables: "Mapping[str, pl.DataFrame]"
    """`items` and, unless they are in the folder already, `users`, as a dataset has them."""


def conclude(
    ordered: Ordered,
    folder: Path | None,
    *,
    name: str,
    recipe: Recipe,
    source: Mapping[str, Any],
    notes: Sequence[str],
) -> Dataset:
    """The last steps, which are the same whoever ordered the actions: the rule on repeats, candidates, the manifest.

    Candidates are in memory, or in mapped files of `folder`. An impossible split is refused here: it must not replace
    an older dataset.
    """
    sequences, num_items = ordered.sequences, len(ordered.tables["items"])
    counts = {"users": len(ordered.offsets) - 1, "items": num_items, "actions": len(sequences)}
    counts |= ordered.oddities
    # An action that is there twice by accident is not a sign of users who come back.
    share = (counts["repeats"] - counts["duplicates"]) / (len(sequences) - counts["duplicates"])
    rule: Repeats = recipe.repeats or ("keep" if share >= USUAL_REPEATS else "exclude")
    candidates, too_few = _draw_candidates(recipe, rule, sequences, ordered.offsets, num_items, folder)
    manifest = {
        "format": "bert4rec dataset",
        "schema": SCHEMA,
        "written_by": f"bert4rec {__version__}",
        "name": name,
        "source": dict(source),
        "checksum": checksum_of(sequences, ordered.offsets, ordered.times),
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
        "notes": [*notes, _describe_repeats(share, rule, chosen=recipe.repeats is None), *too_few],
    }
    dataset = Dataset(
        None, manifest, sequences, ordered.offsets, ordered.times, candidates, dict(ordered.tables)
    )
    make_split(dataset)
    return dataset


def _number_items(counts: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Per index into the log's ids the item's number (0: not left), and per number, from 1, its count."""
    by_falling_count = np.argsort(-counts, kind="stable")
    num_items = np.count_nonzero(counts)
    numbers = np.zeros(len(counts), np.int32)
    numbers[by_falling_count[:num_items]] = np.arange(1, num_items + 1)
    return numbers, counts[by_falling_count[:num_items]]


def _describe_repeats(share: float, rule: Repeats, *, chosen: bool) -> str:
    """The rule in one line, and how to get the other."""
    found = f"{share:.1%} of the actions repeat an item of the user" if share else "No user has an item twice"
    meaning = {
        "keep": "repeats are kept: items of a history are candidates and can be recommended again",
        "exclude": "repeats are excluded: items of a history are not candidates and not recommended again",
    }
    if not chosen:
        return f"{found}. As requested, {meaning[rule]}."
    other = {"keep": "exclude", "exclude": "keep"}[rule]
    return f'{found}, so {meaning[rule]}. To change this, use `repeats="{other}"`.'


def _draw_candidates(
    recipe: Recipe,
    rule: Repeats,
    sequences: NDArray[np.int32],
    offsets: NDArray[np.int64],
    num_items: int,
    folder: Path | None,
) -> tuple[dict[str, NDArray[np.int32]], list[str]]:
    """The candidates of each kind, in memory or in files of `folder`, and a note for each kind that has too few."""
    # If a target may be drawn, draw one more: when the target is left out, as many remain.
    count = recipe.num_negatives + (rule == "keep")
    candidates = dict[str, NDArray[np.int32]]()
    for kind in recipe.negatives:
        path = None if folder is None else folder / candidates_file(kind)
        candidates[kind] = draw_negatives(
            sequences,
            offsets,
            num_items,
            kind=kind,
            seed=recipe.seed,
            count=count,
            repeats=rule,
            out=new_array(path, np.int32, (len(offsets) - 1, count)),
        )
    return candidates, [
        note
        for drawn in candidates.values()
        for note in _note_if_short(drawn, num_items, recipe.num_negatives, rule)
    ]


def _users_table(ids: "pl.Series", users: NDArray[np.int64], counts: NDArray[np.int64]) -> "pl.DataFrame":
    import polars as pl

    numbers = np.arange(len(users), dtype=np.int32)
    return pl.DataFrame({"number": numbers, "id": ids.gather(users), "count": counts})


def _items_table(log: Log, numbers: NDArray[np.int32], counts: NDArray[np.int64]) -> "pl.DataFrame":
    import polars as pl

    kept = np.flatnonzero(numbers)
    table = pl.DataFrame({"number": numbers[kept], "id": log.item_ids.gather(kept)}).sort("number")
    return table.with_columns(pl.Series("count", counts))


def describe_items(table: "pl.DataFrame", columns: "pl.DataFrame | None") -> "tuple[pl.DataFrame, list[str]]":
    """The table of items with what else is known of them, and a note of how many the catalogue describes."""
    import polars as pl

    if columns is None:
        return table, []
    known = columns.with_columns(pl.col("id").cast(pl.String)).unique("id", keep="first")
    known = known.drop([name for name in ("number", "count") if name in known.columns])
    table = table.with_columns(pl.col("id").cast(pl.String).alias("id as text"))
    found = table["id as text"].is_in(known["id"].implode()).sum()
    table = table.join(known, left_on="id as text", right_on="id", how="left", maintain_order="left")
    more = ", ".join(name for name in known.columns if name != "id")
    return table.drop("id as text"), [f"{found:,} of {len(table):,} items are described ({more})."]


def _note_if_short(negatives: NDArray[np.int32], num_items: int, wanted: int, rule: Repeats) -> list[str]:
    short, fewest = 0, wanted
    for block in in_blocks(negatives, ROWS_AT_ONCE):
        found = np.count_nonzero(block, axis=1)
        short += int(np.count_nonzero(found < block.shape[1]))
        fewest = min(fewest, int(found.min()))
    if not short:
        return []
    if rule == "keep":
        return [f"There are only {num_items:,} items, so all of them are candidates, fewer than {wanted}."]
    return [
        f"{short:,} of {len(negatives):,} users have fewer than {wanted} items that they never had: they are "
        f"ranked among fewer candidates (at least {fewest}), which is easier."
    ]
