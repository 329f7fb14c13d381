"""`bert4rec prepare` and `bert4rec stats`."""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from bert4rec.cli.console import count, print_json, print_table, progress, say, warn
from bert4rec.data.dataset import Repeats
from bert4rec.data.splits import SplitKind, SplitSpec
from bert4rec.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from bert4rec.data.dataset import Dataset
    from bert4rec.data.filters import Filters
    from bert4rec.logs.log import Log

Flag = Annotated[bool, Parameter(negative="")]
Seed = Annotated[int, Parameter(validator=Number(gte=0, lt=2**63))]


@Parameter(name="*", group="Columns (guessed from usual names; by name or by place, counted from 1)")
@dataclass(frozen=True)
class ColumnOptions:
    user_col: str | None = None
    """Column of the user."""
    item_col: str | None = None
    """Column of the item, or of lists of items, oldest first, with a row for each user."""
    time_col: str | None = None
    """Column of the time: epoch numbers or ISO dates. With `none`, the order of the rows counts."""
    time_format: str | None = None
    """How other dates are written, such as '%d/%m/%Y' or '%m/%d/%Y %H:%M %z' (UTC without %z)."""
    title_col: str | None = None
    """Column of the item's title."""
    items: Path | None = None
    """A file with one row an item: its id, title and whatever else is known."""
    separator: str | None = None
    """Between the fields of text files, such as '^' or '||'; `tab` and `space` by name. Usual ones are guessed."""
    encoding: str | None = None
    """Of text files that are not UTF-8, such as latin-1; for the file of --items only if it is not UTF-8 either."""

    def refuse_for(self, source: str) -> None:
        """A catalogue can be joined to any data; the rest is about files whose form is not known."""
        encoding = None if self.items else self.encoding
        if replace(self, items=None, encoding=encoding) != ColumnOptions():
            raise UsageError(
                "--user-col, --item-col, --time-col, --time-format, --title-col, --separator and --encoding go with "
                f"files; the form of {source} is known."
            )


@Parameter(name="*", group="Filters (in the order they are applied)")
@dataclass(frozen=True)
class FilterOptions:
    after: str | None = None
    """Drop actions before this date."""
    before: str | None = None
    """Drop actions at or after this date."""
    drop_duplicates: Flag = False
    """Keep only one of several actions with the same user, item and time."""
    drop_repeats: Flag = False
    """Keep only a user's first action on an item."""
    min_item_actions: int | None = None
    """Drop items with fewer actions. [default: none, or as the named data set has it]"""
    min_user_actions: int = 5
    """Drop users with fewer actions."""
    k_core: int = 0
    """Drop users and items in turn until all have at least this many actions."""

    def to_filters(self, usual_min_item_actions: int) -> "Filters":
        from bert4rec.data.filters import Filters
        from bert4rec.logs.times import parse_moment

        least = self.min_item_actions
        return Filters(
            after=parse_moment(self.after) if self.after else None,
            before=parse_moment(self.before) if self.before else None,
            drop_duplicates=self.drop_duplicates,
            drop_repeats=self.drop_repeats,
            min_item_actions=usual_min_item_actions if least is None else least,
            min_user_actions=self.min_user_actions,
            k_core=self.k_core,
        )


@Parameter(name="*", group="Split")
@dataclass(frozen=True)
class SplitOptions:
    split: SplitKind | None = None
    """How histories are cut for validation and test. [default: leave-one-out, or as prepared]"""
    test_from: str | None = None
    """For `time`: the date the test part begins, or the share of actions before it (0.9)."""
    valid_from: str | None = None
    """For `time`: likewise for validation. [default: as many actions as in the test part]"""

    def to_spec(self) -> SplitSpec | None:
        """None where nothing was said."""
        if self.split is None and not self.test_from and not self.valid_from:
            return None
        return SplitSpec(self.split or "leave-one-out", self.test_from, self.valid_from)


def prepare_command(
    *source: str,
    output: Annotated[Path, Parameter(alias="-o")],
    from_path: Annotated[Path | None, Parameter(name="--from")] = None,
    like: str | None = None,
    name: str | None = None,
    overwrite: Flag = False,
    json: Flag = False,
    columns: ColumnOptions = ColumnOptions(),
    filters: FilterOptions = FilterOptions(),
    split: SplitOptions = SplitOptions(),
    repeats: Repeats | None = None,
    negatives: Literal["popularity", "both"] = "popularity",
    seed: Seed = 0,
) -> None:
    """Turn an interaction log into a dataset folder.

    Parameters
    ----------
    source
        Files, folders or globs (CSV, TSV, user::item::…, Parquet, Feather, JSON Lines, "user item item …" lines;
        plain, .gz, .zst, .bz2, .xz, or in a .zip, of which archive.zip/ratings.csv names one member), or the name of
        a data set: ml-100k, ml-1m, ml-20m, beauty, steam, synthetic.
    output
        Folder to write.
    from_path
        A local copy of the named data set, instead of downloading it.
    like
        With synthetic: the shape of ml-1m, beauty, steam or ml-20m.
    name
        What the dataset is called in tables. [default: the name of the source]
    overwrite
        Replace the folder if it exists.
    json
        Print the statistics as JSON.
    repeats
        Whether items of a history may come again. `keep`: they are candidates, and recommended, like any other.
        `exclude`: they are neither, and test items that repeat one are left out. [default: keep where 10% of the
        actions or more repeat an item, otherwise exclude]
    negatives
        How the 100 stored candidates of each user are drawn; `both` adds a set that is drawn uniformly.
    seed
        Of the candidates, and of synthetic data.
    """
    from bert4rec.artefact import refuse_existing
    from bert4rec.data.dataset import MANIFEST
    from bert4rec.data.prepare import Recipe, prepare
    from bert4rec.logs.items import join_items, read_items

    refuse_existing(output, MANIFEST, overwrite=overwrite)
    if not source:
        raise UsageError("Name a file, a folder, or a data set such as ml-1m or synthetic.")
    # What contradicts itself is said before a long reading.
    Recipe(filters=filters.to_filters(0), repeats=repeats)
    read = _read_source(source, from_path, like, columns, seed)
    log = read.log
    if columns.items:
        log = replace(
            log, item_columns=join_items(log.item_columns, read_items(columns.items, columns.encoding))
        )
    recipe = Recipe(
        filters=filters.to_filters(read.min_item_actions),
        split=split.to_spec() or SplitSpec(),
        negatives=("popularity", "uniform") if negatives == "both" else ("popularity",),
        seed=seed,
        repeats=repeats,
    )
    dataset = prepare(
        log, output, name=name or read.name, recipe=recipe, source=read.origin, overwrite=overwrite
    )
    for note in dataset.manifest["notes"]:
        say(note)
    _report(dataset, None, as_json=json)
    say(f"Wrote {output}.")


def stats_command(
    dataset: Path,
    *,
    split: SplitOptions = SplitOptions(),
    plot: Path | None = None,
    json: Flag = False,
) -> None:
    """Show what a dataset looks like, beside the row of the paper's Table 1 that it corresponds to.

    Parameters
    ----------
    dataset
        A folder that `bert4rec prepare` wrote.
    plot
        Draw the lengths of histories and the popularity of items into this file (.png, .svg or .pdf).
    json
        Print the statistics as JSON.
    """
    from bert4rec.data.dataset import Dataset
    from bert4rec.data.stats import plot_statistics

    opened = Dataset.open(dataset)
    opened.verify()
    _report(opened, split.to_spec(), as_json=json)
    if plot:
        plot_statistics(opened, plot)
        say(f"Drew {plot}.")


@dataclass(frozen=True)
class _Read:
    """A log and what its source says about it."""

    log: "Log"
    name: str
    origin: dict[str, Any]
    min_item_actions: int = 0


def _read_source(
    source: tuple[str, ...], from_path: Path | None, like: str | None, columns: ColumnOptions, seed: int
) -> _Read:
    from bert4rec.sources.named import SOURCES

    if like and source != ("synthetic",):
        raise UsageError("--like goes with the source synthetic.")
    is_named = len(source) == 1 and source[0] in SOURCES
    if from_path and not is_named:
        raise UsageError(f"--from goes with a named data set: {', '.join(SOURCES)}.")
    if is_named or source == ("synthetic",):
        columns.refuse_for(source[0])
        return _read_named(source[0], from_path) if is_named else _read_synthetic(like, seed)
    try:
        return _read_files(source, columns)
    except NotFoundError as error:
        near = get_close_matches(source[0], SOURCES, n=1)
        raise NotFoundError(
            f"{error} Did you mean the data set {near[0]}?" if near else str(error)
        ) from error


def _read_files(source: tuple[str, ...], columns: ColumnOptions) -> _Read:
    from bert4rec.logs.columns import ColumnRequest
    from bert4rec.logs.files import Hints
    from bert4rec.logs.log import read_log

    request = ColumnRequest(columns.user_col, columns.item_col, columns.time_col, columns.title_col)
    hints = Hints(columns.encoding, columns.separator, columns.time_format)
    with progress("Reading", "rows") as report:
        log = read_log(source, request, hints, progress=report)
    return _Read(log, Path(source[0]).name.split(".")[0] or "log", {"files": list(source)})


def _read_named(name: str, from_path: Path | None) -> _Read:
    from bert4rec.logs.log import encode
    from bert4rec.sources.download import cache_folder
    from bert4rec.sources.named import open_source

    with (
        progress("Downloading", "bytes") as downloaded,
        open_source(name, from_path, cache=cache_folder(), progress=downloaded) as files,
    ):
        with progress("Reading", "rows") as report:
            log = encode(files.frames(), progress=report)
        log = replace(log, item_columns=files.items(), notes=[*files.notes, *log.notes])
        return _Read(log, name, dict(files.provenance), files.filters.min_item_actions)


def _read_synthetic(like: str | None, seed: int) -> _Read:
    from bert4rec.world.world import World, WorldConfig
    from bert4rec.world.world import like as shaped_like

    config = shaped_like(like, seed) if like else WorldConfig(seed=seed)
    name = f"synthetic-{like}" if like else "synthetic"
    return _Read(World.generate(config).log(), name, {"name": "synthetic", "world": config.to_json()})


def _report(dataset: "Dataset", spec: SplitSpec | None, *, as_json: bool) -> None:
    """Print statistics to stdout; say what deserves a warning."""
    from bert4rec.data.leakage import split_warnings
    from bert4rec.data.splits import make_split
    from bert4rec.data.stats import statistics
    from bert4rec.sources.named import SOURCES, compare_with_paper

    found = statistics(dataset)
    split = make_split(dataset, spec)
    warnings = split_warnings(dataset, split)
    source = dataset.manifest["source"].get("name", "")
    row = SOURCES[source].paper if source in SOURCES else None
    if as_json:
        cut = {"kind": split.kind, "validation_users": len(split.valid), "test_users": len(split.test)}
        print_json({**found, "split": cut, "warnings": warnings, "table1": row and vars(row)})
    else:
        _print_statistics(found)
        users = count(len(split.valid), "user")
        say(f"Split {split.kind}: {users} to validate on, {len(split.test):,} to test on.")
        if row:
            say(
                f"Table 1 of the paper: {row.name}, {row.users:,} users, {row.items:,} items, {row.actions} actions."
            )
    for difference in compare_with_paper(source, dataset.num_users, dataset.num_items, dataset.num_actions):
        warn(difference)
    for warning in warnings:
        warn(warning)


def _print_statistics(found: dict[str, Any]) -> None:
    rows = [
        ("users", f"{found['users']:,}"),
        ("items", f"{found['items']:,}"),
        ("actions", f"{found['actions']:,}"),
        ("average length", f"{found['average_length']:.1f}"),
        ("median length", f"{found['median_length']:g}"),
        ("shortest, longest", f"{found['shortest_length']:,}, {found['longest_length']:,}"),
        ("density", f"{found['density']:.2%}"),
        ("ties in time", f"{found['ties']:,}"),
        ("repeats", f"{found['repeats']:,} ({'kept' if found['repeat_rule'] == 'keep' else 'excluded'})"),
    ]
    if found["first_day"]:
        rows.append(("from, to", f"{found['first_day']}, {found['last_day']}"))
    rows += [
        (f"actions on top {share} of items", f"{part:.1%}")
        for share, part in found["popularity"].items()
        if share != "100.0%"
    ]
    print_table([found["name"], ""], rows)
