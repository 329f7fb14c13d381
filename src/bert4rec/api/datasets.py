"""`bert4rec.prepare`: from a DataFrame, files or the name of a data set to a dataset."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from bert4rec.api.source_reader import SYNTHETIC, SourceReader, refuse_artefacts
from bert4rec.data.dataset import MANIFEST, Dataset, Repeats
from bert4rec.data.splits import SplitKind, SplitSpec
from bert4rec.errors import UsageError, one_of
from bert4rec.frames import Frame, is_frame, is_spark_frame
from bert4rec.progress import ProgressCallback

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame as SparkFrame

    from bert4rec.logs.growing import Scratch

Engine = Literal["embedded", "spark"]
"""What reads a log and puts it in order. The dataset is the same."""
Moment = str | float | date
"""A date or time: an ISO text, epoch seconds, a `date` or a `datetime`."""


def prepare(
    source: Frame | str | Path | Sequence[str | Path],
    folder: str | Path | None = None,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    time: str | int | None = None,
    title: str | int | None = None,
    items: Frame | str | Path | None = None,
    time_format: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    name: str | None = None,
    local_copy: str | Path | None = None,
    like: str | None = None,
    drop_bad_rows: bool = False,
    after: Moment | None = None,
    before: Moment | None = None,
    drop_duplicates: bool = False,
    drop_repeats: bool = False,
    min_item_actions: int | None = None,
    min_user_actions: int = 5,
    k_core: int = 0,
    split: SplitKind | SplitSpec = "leave-one-out",
    test_from: Moment | None = None,
    valid_from: Moment | None = None,
    repeats: Repeats | None = None,
    negatives: Literal["popularity", "both"] = "popularity",
    seed: int = 0,
    overwrite: bool = False,
    engine: Engine | None = None,
    master: str | None = None,
    progress: bool | None = None,
    callback: ProgressCallback | None = None,
) -> Dataset:
    """Turn an interaction log into a dataset, in memory or in a folder.

    What was read, assumed and dropped is in `dataset.notes`; `dataset.warnings()` says what to know before
    trusting numbers on it.

    Parameters
    ----------
    source
        A frame (pandas, polars, pyarrow, Spark, anything with the Arrow PyCapsule interface) with a row per action, or
        a row per user and a list of items; a file, folder or glob, or several of them; or the name of a data set:
        ml-100k, ml-1m, ml-20m, beauty, steam, synthetic.
    folder
        Where to write the dataset. By default it stays in memory.
    user
        Column of the user, by name or by place counted from 1. By default guessed from usual names.
    item
        Column of the item, or of lists of items, oldest first.
    time
        Column of the time: dates, or numbers since 1970. With "none", the order of the rows counts.
    title
        Column of the item's title.
    items
        A frame or a file with one row per item: its id, title and other columns.
    time_format
        How dates in text are written, such as "%d/%m/%Y" or "%m/%d/%Y %H:%M %z" (UTC without %z).
    separator
        Between the fields of text files, such as "^" or "||"; "tab" and "space" by name. By default guessed.
    encoding
        Encoding of text files that are not UTF-8, such as "latin-1".
    name
        What the dataset is called in tables. By default the name of the source.
    local_copy
        A copy of the named data set, instead of downloading it.
    like
        For "synthetic": the shape of ml-1m, beauty, steam or ml-20m.
    drop_bad_rows
        Drop rows whose time cannot be read, instead of refusing the log. Rows without user, item or time are dropped
        anyway.
    after
        Drop actions before this date.
    before
        Drop actions at or after this date.
    drop_duplicates
        Keep only one of several actions with the same user, item and time.
    drop_repeats
        Keep only a user's first action on an item.
    min_item_actions
        Drop items with fewer actions. By default none are dropped, or as the paper did for the named data set.
    min_user_actions
        Drop users with fewer actions.
    k_core
        Drop users and items in turn until all have at least this many actions.
    split
        How histories are cut for validation and test: "leave-one-out", "time", or a `SplitSpec`.
    test_from
        For "time": the date at which the test part begins, or the share of actions before it (0.9).
    valid_from
        For "time": likewise for validation. By default it has as many actions as the test part.
    repeats
        Whether items of a history may come again. "keep": they are candidates and recommended like any other.
        "exclude": they are neither, and test items that repeat one are left out. By default "keep" if at least 10%
        of the actions repeat an item, otherwise "exclude".
    negatives
        How the 100 stored candidates of each user are drawn; "both" adds a set that is drawn uniformly.
    seed
        Seed of the candidates, and of synthetic data.
    overwrite
        Replace the folder if it is a dataset already.
    engine
        "embedded" is this process, with polars. "spark" leaves the log on Spark's executors and makes the same dataset:
        for logs in a lake (`"s3a://…"`, or the name of a table), or too large for one machine. It requires `folder`. By
        default a Spark DataFrame is prepared on its own session, all else here.
    master
        For "spark": where it computes, such as "spark://HOST:7077" or "local[4]". By default as configured, or on this
        machine.
    progress
        Whether to show a progress bar. By default in notebooks and interactive sessions only.
    callback
        Called with (done, total) while reading: rows, or bytes while downloading. The total is None if unknown.
    """
    from bert4rec.artefact import refuse_existing
    from bert4rec.data.filters import Filters
    from bert4rec.data.prepare import Recipe
    from bert4rec.data.prepare import prepare as prepare_log
    from bert4rec.logs.columns import ColumnRequest
    from bert4rec.logs.files import Hints
    from bert4rec.logs.items import join_items
    from bert4rec.logs.times import parse_moment

    one_of("negatives", negatives, ("popularity", "both"))
    if repeats is not None:
        one_of("repeats", repeats, get_args(Repeats))
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise UsageError(f"`seed` must be a whole number, 0 or more; found {seed!r}.")
    target = None if folder is None else Path(folder)
    if target is not None:
        refuse_existing(target, MANIFEST, overwrite=overwrite)
    # Contradictions are refused before the log is read, which may take long.
    recipe = Recipe(
        filters=Filters(
            after=None if after is None else parse_moment(str(after)),
            before=None if before is None else parse_moment(str(before)),
            drop_duplicates=drop_duplicates,
            drop_repeats=drop_repeats,
            min_item_actions=min_item_actions or 0,
            min_user_actions=min_user_actions,
            k_core=k_core,
        ),
        split=split_spec(split, test_from, valid_from),
        negatives=("popularity", "uniform") if negatives == "both" else ("popularity",),
        seed=seed,
        repeats=repeats,
    )
    columns, hints = ColumnRequest.of(user, item, time, title), Hints(encoding, separator, time_format)
    if _chosen_engine(engine, master, source) == "spark":
        from bert4rec.spark.spark_prepare import SparkSource, prepare_on_spark

        if target is None:
            raise UsageError(
                '`engine="spark"` requires `folder`: the dataset is written there, part by part.'
            )
        if local_copy or like:
            raise UsageError(
                '`local_copy` and `like` are for named data sets, which `engine="embedded"` prepares.'
            )
        hints = hints if items is None else replace(hints, encoding=None)  # it is the catalogue's
        return prepare_on_spark(
            SparkSource(_spark_rows(source), columns, hints, drop_bad_rows),
            target,
            name=name,
            recipe=recipe,
            catalogue=None if items is None else _catalogue(items, encoding),
            master=master,
            overwrite=overwrite,
        )
    with _place_for_rows(target) as scratch:
        reader = SourceReader(
            columns,
            hints,
            drop_bad_rows,
            items is not None,
            show=progress,
            callback=callback,
            scratch=scratch,
        )
        read = reader.read(source, local_copy, like, seed)
        log = read.log
        if items is not None:
            log = replace(log, item_columns=join_items(log.item_columns, _catalogue(items, encoding)))
        if min_item_actions is None:
            recipe = replace(recipe, filters=replace(recipe.filters, min_item_actions=read.min_item_actions))
        return prepare_log(
            log, target, name=name or read.name, recipe=recipe, source=read.origin, overwrite=overwrite
        )


@contextmanager
def _place_for_rows(target: Path | None) -> Iterator["Scratch | None"]:
    """Where the rows of a log go that is too large for the memory: beside `target`, if and as long as it is needed.

    A dataset without a folder is in memory, as all that leads to it.
    """
    from bert4rec.artefact import scratch_folder

    with ExitStack() as closing:
        yield None if target is None else cache(lambda: closing.enter_context(scratch_folder(target)))


def _chosen_engine(engine: Engine | None, master: str | None, source: object) -> Engine:
    if engine is not None:
        one_of("engine", engine, get_args(Engine))
    chosen: Engine = engine or ("spark" if is_spark_frame(source) else "embedded")
    if chosen == "embedded" and is_spark_frame(source):
        raise UsageError('`engine="embedded"` would collect the Spark DataFrame. Leave out `engine`.')
    if master is not None and (chosen == "embedded" or is_spark_frame(source)):
        reason = (
            "the DataFrame has a session of its own" if chosen == "spark" else 'it requires `engine="spark"`'
        )
        raise UsageError(f"Leave out `master`: {reason}.")
    return chosen


def _spark_rows(source: object) -> "SparkFrame | list[str]":
    """What Spark is to read: a DataFrame, or what names files and tables."""
    from bert4rec.sources.named import SOURCES

    if is_spark_frame(source):
        return source
    paths = [source] if isinstance(source, str | Path) else source
    if is_frame(source) or not isinstance(paths, Sequence) or not paths:
        raise UsageError(
            '`engine="spark"` reads files, tables by name and Spark DataFrames, found '
            f"{type(source).__name__}."
        )
    named = next((path for path in map(str, paths) if path == SYNTHETIC or path in SOURCES), None)
    if named:
        raise UsageError(
            f'{named} is a named data set, which `engine="embedded"` prepares. Leave out `engine`.'
        )
    refuse_artefacts([path for path in paths if "://" not in str(path)])
    return [str(path) for path in paths]


def _catalogue(items: Frame | str | Path, encoding: str | None) -> "pl.DataFrame":
    from bert4rec.logs.items import read_items
    from bert4rec.logs.readers import LogFrame

    return read_items(Path(items) if isinstance(items, str | Path) else LogFrame.of(items, "items"), encoding)


def split_spec(
    split: SplitKind | SplitSpec = "leave-one-out",
    test_from: Moment | None = None,
    valid_from: Moment | None = None,
) -> SplitSpec:
    """How histories are cut, from parameters as `prepare` takes them."""
    if isinstance(split, SplitSpec):
        if test_from is not None or valid_from is not None:
            raise UsageError("Pass `test_from` and `valid_from` in the `SplitSpec`, not beside it.")
        one_of("split", split.kind, get_args(SplitKind))
        return split
    one_of("split", split, get_args(SplitKind))
    dates = (None if moment is None else str(moment) for moment in (test_from, valid_from))
    return SplitSpec(split, *dates)
