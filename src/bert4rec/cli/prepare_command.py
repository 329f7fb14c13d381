"""`bert4rec prepare` and `bert4rec stats`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from bert4rec.cli.console import count, messages, print_json, print_table, say, warn
from bert4rec.cli.options import as_options
from bert4rec.data.dataset import Repeats
from bert4rec.data.splits import SplitKind, SplitSpec

if TYPE_CHECKING:
    from bert4rec.data.dataset import Dataset

Flag = Annotated[bool, Parameter(negative="")]
Seed = Annotated[int, Parameter(validator=Number(gte=0, lt=2**63))]


@Parameter(name="*", group="Columns (guessed from usual names; by name or by place, counted from 1)")
@dataclass(frozen=True)
class ColumnOptions:
    """Which columns are read, and how text is written."""

    user_col: str | None = None
    """Column of the user."""
    item_col: str | None = None
    """Column of the item, or of lists of items, oldest first, with one row per user."""
    time_col: str | None = None
    """Column of the time: epoch numbers or ISO dates. With `none`, the order of the rows counts."""
    time_format: str | None = None
    """How other dates are written, such as '%d/%m/%Y' or '%m/%d/%Y %H:%M %z' (UTC without %z)."""
    title_col: str | None = None
    """Column of the item's title."""
    items: Path | None = None
    """A file with one row per item: its id, title and other columns."""
    separator: str | None = None
    """Between the fields of text files, such as '^' or '||'; `tab` and `space` by name. Usual ones are guessed."""
    encoding: str | None = None
    """Encoding of text files that are not UTF-8, such as latin-1; for --items only if that file is not UTF-8."""


@Parameter(name="*", group="Filters (in the order they are applied)")
@dataclass(frozen=True)
class FilterOptions:
    """Which actions are kept."""

    drop_bad_rows: Flag = False
    """Drop rows whose time cannot be read, instead of refusing the log. Rows without user, item or time are dropped
    anyway."""
    after: str | None = None
    """Drop actions before this date."""
    before: str | None = None
    """Drop actions at or after this date."""
    drop_duplicates: Flag = False
    """Keep only one of several actions with the same user, item and time."""
    drop_repeats: Flag = False
    """Keep only a user's first action on an item."""
    min_item_actions: int | None = None
    """Drop items with fewer actions. [default: none, or as the paper did for the named data set]"""
    min_user_actions: int = 5
    """Drop users with fewer actions."""
    k_core: int = 0
    """Drop users and items in turn until all have at least this many actions."""


@Parameter(name="*", group="Split")
@dataclass(frozen=True)
class SplitOptions:
    """How histories are cut for validation and test."""

    split: SplitKind | None = None
    """How histories are cut for validation and test. [default: leave-one-out, or as prepared]"""
    test_from: str | None = None
    """For `time`: the date at which the test part begins, or the share of actions before it (0.9)."""
    valid_from: str | None = None
    """For `time`: likewise for validation. [default: as many actions as in the test part]"""

    def to_spec(self) -> SplitSpec | None:
        """None if no option was used."""
        if self.split is None and not self.test_from and not self.valid_from:
            return None
        return SplitSpec(self.split or "leave-one-out", self.test_from, self.valid_from)


@Parameter(name="*", group="Engine (the dataset is the same)")
@dataclass(frozen=True)
class EngineOptions:
    """What reads the log and puts it in order."""

    engine: Literal["embedded", "spark"] = "embedded"
    """`embedded` is this process. `spark` is for logs in a lake (s3a://…, or a table by its name) and for those too
    large for one machine; it requires the extra `spark` and Java 17."""
    master: str | None = None
    """With `spark`: where it computes, such as spark://HOST:7077. [default: as configured, or this machine]"""


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
    engine: EngineOptions = EngineOptions(),
) -> None:
    """Turn an interaction log into a dataset folder.

    Parameters
    ----------
    source
        Files, folders or globs (CSV, TSV, user::item::…, Parquet, Feather, JSON Lines, "user item item …" lines;
        plain, .gz, .zst, .bz2, .xz, or in a .zip; archive.zip/ratings.csv is one file of an archive), or the name of
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
        Replace the folder if it already exists.
    json
        Print the statistics as JSON.
    repeats
        Whether items of a history may come again. `keep`: they are candidates, and recommended, like any other.
        `exclude`: they are neither, and test items that repeat one are left out. [default: keep if at least 10% of
        the actions repeat an item, otherwise exclude]
    negatives
        How the 100 stored candidates of each user are drawn; `both` adds a set that is drawn uniformly.
    seed
        Seed of the candidates, and of synthetic data.
    """
    from bert4rec.api.datasets import prepare

    named = {name.removesuffix("_col"): value for name, value in vars(columns).items()}
    dataset = prepare(
        source,
        output,
        local_copy=from_path,
        like=like,
        name=name,
        overwrite=overwrite,
        **named,
        **vars(filters),
        split=split.to_spec() or SplitSpec(),
        repeats=repeats,
        negatives=negatives,
        seed=seed,
        **vars(engine),
        progress=messages.is_terminal,
    )
    for note in dataset.notes:
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

    opened = Dataset.open(dataset)
    opened.verify()
    _report(opened, split.to_spec(), as_json=json)
    if plot:
        opened.plot(plot)
        say(f"Drew {plot}.")


def _report(dataset: "Dataset", spec: SplitSpec | None, *, as_json: bool) -> None:
    """Print statistics to stdout and warnings to stderr."""
    from bert4rec.data.leakage import split_warnings
    from bert4rec.data.splits import make_split
    from bert4rec.sources.named import SOURCES, compare_with_paper

    found, split = dataset.statistics(), make_split(dataset, spec)
    warnings = [as_options(warning) for warning in split_warnings(dataset, split)]
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
