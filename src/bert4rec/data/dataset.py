"""The prepared dataset: a folder of memory-mapped arrays, or the same arrays in memory.

Only NumPy is needed to read it. The tables of ids and titles are Parquet and are opened on request.
"""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bert4rec.artefact import Manifest, new_folder, read_manifest, sha256_of, verify_files, write_manifest
from bert4rec.data.blocks import count_numbers
from bert4rec.errors import NotFoundError, UsageError
from bert4rec.frames import Tabular

if TYPE_CHECKING:
    import polars as pl

    from bert4rec.data.splits import SplitSpec

MANIFEST = "dataset.json"
SCHEMA = 1
ROWS_PER_GROUP = 150_000
"""In a Parquet file. Fixed, so that equal tables are equal files, whether they were written whole or in pieces."""
PADDING = 0
"""The item number that stands for "nothing here". Items are 1 to V, and V + 1 is [mask]."""

Repeats = Literal["keep", "exclude"]
"""Which items are candidates: `keep` means all items, also those of the user's history; `exclude` means only items
that the user never had. Drawing, ranking and recommending all follow it."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(Tabular):
    """Every user's actions in order, as item numbers, all users end to end.

    `bert4rec.prepare` makes one, in memory or in a folder; `Dataset.open` opens a folder. As a table
    (`to_polars()`, `to_pandas()`, `to_arrow()`) it is the log after filtering: user, item and time.
    """

    path: Path | None
    """The folder, or None for a dataset in memory."""
    manifest: Mapping[str, Any]
    """What `dataset.json` says: name, source, counts, filters, split, notes."""
    sequences: NDArray[np.int32]
    """Item numbers of all actions: user u's are sequences[offsets[u] : offsets[u + 1]], oldest first."""
    offsets: NDArray[np.int64]
    """Where each user's actions begin in `sequences`, and the end of the last."""
    times: NDArray[np.int64] | None
    """Microseconds since 1970, one per action; None if the log had no times."""
    candidates: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)
    """Of a dataset in memory: the stored candidates by kind. `negatives()` reads them, from memory or folder."""
    tables: "Mapping[str, pl.DataFrame]" = field(default_factory=dict)
    """Of a dataset in memory: what `items()` and `users()` give."""

    @classmethod
    def open(cls, path: str | Path) -> "Dataset":
        """Open a dataset folder in milliseconds; data is read when it is used.

        Parameters
        ----------
        path
            A folder that `bert4rec.prepare` or `Dataset.save` wrote.
        """
        folder = Path(path)
        manifest = read_manifest(folder, MANIFEST, kind="dataset", schema=SCHEMA, check=_check_facts)
        has_times = "times.npy" in manifest["files"]
        return cls(
            path=folder,
            manifest=manifest,
            sequences=_map(folder / "sequences.npy"),
            offsets=_map(folder / "offsets.npy"),
            times=_map(folder / "times.npy") if has_times else None,
        )

    @classmethod
    def from_sequences(
        cls,
        sequences: NDArray[np.int32],
        offsets: NDArray[np.int64],
        *,
        num_items: int | None = None,
        times: NDArray[np.int64] | None = None,
        name: str = "sequences",
        repeats: Repeats = "exclude",
        candidates: Mapping[str, NDArray[np.int32]] | None = None,
    ) -> "Dataset":
        """A dataset in memory from item numbers; ids are the numbers themselves.

        Parameters
        ----------
        sequences
            Item numbers from 1, user after user, oldest first.
        offsets
            Where each user begins, and the end of the last: one more than there are users.
        num_items
            The size of the catalogue. By default the largest item number.
        times
            Microseconds since 1970, one per action.
        name
            What the dataset is called.
        repeats
            Whether items of a history may come again.
        candidates
            Stored candidates by kind, one row per user.
        """
        items = int(sequences.max(initial=0)) if num_items is None else num_items
        manifest = {
            "name": name,
            "source": {},
            "counts": {"users": len(offsets) - 1, "items": items, "actions": len(sequences)},
            "repeats": repeats,
            "split": {"kind": "leave-one-out"},
            "notes": [],
        }
        return cls(None, manifest, sequences, offsets, times, candidates or {})

    def save(self, folder: str | Path, *, overwrite: bool = False) -> "Dataset":
        """Write the dataset to a folder and open it there.

        The folder appears when it is complete; an error leaves whatever was there before.

        Parameters
        ----------
        folder
            Where to write.
        overwrite
            Replace a dataset that is already there.
        """
        target = Path(folder)
        with new_folder(target, MANIFEST, overwrite=overwrite) as unfinished:
            self.write_into(unfinished)
        return Dataset.open(target)

    def write_into(self, unfinished: Path) -> None:
        """Write all files into a folder that `new_folder` made; arrays and users that are there already stay."""
        arrays: dict[str, NDArray[Any] | None] = {
            "sequences.npy": self.sequences,
            "offsets.npy": self.offsets,
            "times.npy": self.times,
        }
        arrays |= {candidates_file(kind): self.negatives(kind) for kind in self.candidate_kinds}
        for name, array in arrays.items():
            if array is not None and not (unfinished / name).exists():
                np.save(unfinished / name, array)
        if not (unfinished / "users.parquet").exists():
            write_table(self.users().lazy(), unfinished / "users.parquet")
        self.write_items(unfinished / "items.parquet")
        head = {"format": "bert4rec dataset", "schema": SCHEMA}
        facts = {key: value for key, value in self.manifest.items() if key != "files"}
        write_manifest(unfinished, MANIFEST, {**head, **facts, "checksum": self.checksum})

    @property
    def name(self) -> str:
        """What the dataset is called in tables and reports."""
        return str(self.manifest["name"])

    @property
    def where(self) -> str:
        """How messages refer to this dataset: by its folder, or by its name if it is in memory."""
        return f"Dataset {self.name!r}" if self.path is None else str(self.path)

    @property
    def folder(self) -> Path:
        """The dataset's folder; a dataset in memory has none, and asking for it is an error."""
        if self.path is None:
            raise UsageError(
                f"{self.where} is in memory. Write it to a folder first with `dataset.save(folder)`."
            )
        return self.path

    @property
    def notes(self) -> list[str]:
        """What was read, assumed and dropped while preparing, one sentence each."""
        return list(self.manifest.get("notes", []))

    @cached_property
    def checksum(self) -> str:
        """Identifies sequences and times, not titles: equal for equal data on every machine."""
        if "checksum" in self.manifest:
            return str(self.manifest["checksum"])
        return checksum_of(self.sequences, self.offsets, self.times)

    @property
    def repeats(self) -> Repeats:
        """Whether items of a history may come again. Datasets written before this was recorded exclude them."""
        repeats: Repeats = self.manifest.get("repeats", "exclude")
        return repeats

    @property
    def num_users(self) -> int:
        """Number of users."""
        return len(self.offsets) - 1

    @property
    def num_items(self) -> int:
        """V: items are numbered 1 to V, by falling popularity."""
        return int(self.manifest["counts"]["items"])

    @property
    def num_actions(self) -> int:
        """Number of actions of all users."""
        return len(self.sequences)

    @property
    def mask_number(self) -> int:
        """The number of the [mask] token."""
        return self.num_items + 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of actions of each user."""
        return np.diff(self.offsets)

    @cached_property
    def item_counts(self) -> NDArray[np.int64]:
        """How often each item number occurs in the whole log; entry 0, padding, is 0."""
        return count_numbers(self.sequences, self.num_items + 1)

    def history(self, user: int) -> NDArray[np.int32]:
        """All actions of the user with this number, oldest first, as item numbers."""
        return self.sequences[self.offsets[user] : self.offsets[user + 1]]

    @property
    def candidate_kinds(self) -> tuple[str, ...]:
        """Kinds of stored candidates: `popularity`, `uniform` or both."""
        if self.path is None:
            return tuple(self.candidates)
        return tuple(kind for kind in ("popularity", "uniform") if candidates_file(kind) in self._files)

    def negatives(self, kind: str = "popularity") -> NDArray[np.int32]:
        """The stored candidates, one row per user; 0 fills up rows that have fewer.

        If repeats are kept, a target may be among them, so there is one more than needed.
        """
        if kind not in self.candidate_kinds:
            raise NotFoundError(
                f"{self.where} has no {kind} candidates. Prepare it again with "
                f'`negatives="{"popularity" if kind == "popularity" else "both"}"`.'
            )
        return self.candidates[kind] if self.path is None else _map(self.path / candidates_file(kind))

    def candidates_checksum(self, kind: str = "popularity") -> str:
        """Identifies the stored candidates of one kind; empty if there are none."""
        if kind not in self.candidate_kinds:
            return ""
        facts = self._files.get(candidates_file(kind))
        return (facts["sha256"] if facts else _sha256_of_array(self.negatives(kind)))[:16]

    def items(self) -> "pl.DataFrame":
        """One row per item in the order of the item numbers: `number`, `id`, `count`, and `title` etc. if known."""
        return self._table("items", self.item_counts[1:], first=1)

    def users(self) -> "pl.DataFrame":
        """One row per user in the order of the sequences: `number` (from 0), `id`, `count`."""
        return self._table("users", self.lengths, first=0)

    def write_items(self, path: Path) -> None:
        """Write the table of items as a Parquet file. A dataset folder's own file is copied, without polars."""
        if self.path is None:
            write_table(self.items().lazy(), path)
        elif (self.path / "items.parquet").exists():
            shutil.copyfile(self.path / "items.parquet", path)

    def to_polars(self) -> "pl.DataFrame":
        """The log after filtering: `user`, `item` and, if known, `time`, with the ids of the original log."""
        import polars as pl

        users = np.repeat(np.arange(self.num_users), self.lengths)
        columns = {
            "user": self.users()["id"].gather(users),
            "item": self.items()["id"].gather(self.sequences - np.int32(1)),
        }
        if self.times is not None:
            columns["time"] = pl.Series(np.asarray(self.times)).cast(pl.Datetime("us", "UTC"))
        return pl.DataFrame(columns)

    def statistics(self) -> dict[str, Any]:
        """Counts, lengths of histories, density and popularity, ready for JSON."""
        from bert4rec.data.stats import statistics

        return statistics(self)

    def warnings(self, split: "SplitSpec | None" = None) -> list[str]:
        """What to know before trusting numbers on this dataset, one sentence each.

        Parameters
        ----------
        split
            How histories are cut. By default as the dataset was prepared.
        """
        from bert4rec.data.leakage import split_warnings
        from bert4rec.data.splits import make_split

        return split_warnings(self, make_split(self, split))

    def plot(self, path: str | Path) -> None:
        """Draw the lengths of histories and the popularity of items into a .png, .svg or .pdf file."""
        from bert4rec.data.stats import plot_statistics

        plot_statistics(self, Path(path))

    def verify(self) -> None:
        """Hash every file of the folder; raises DataError for the first that was changed."""
        if self.path is not None:
            verify_files(self.path, dict(self.manifest))

    def __repr__(self) -> str:
        size = f"{self.num_users:,} users, {self.num_items:,} items, {self.num_actions:,} actions"
        return f"<Dataset {self.name!r}: {size}, {'in memory' if self.path is None else self.path}>"

    def _repr_html_(self) -> str:
        """Notebooks show the line above, not the whole log."""
        return f"<code>{escape(repr(self))}</code>"

    @property
    def _files(self) -> Mapping[str, Any]:
        files: Mapping[str, Any] = self.manifest.get("files", {})
        return files

    def _table(self, name: str, counts: NDArray[np.int64], *, first: int) -> "pl.DataFrame":
        """A table from the folder or from memory; without either, the numbers are the ids."""
        import polars as pl

        if self.path is not None:
            return pl.read_parquet(self.path / f"{name}.parquet")
        if name in self.tables:
            return self.tables[name]
        numbers = np.arange(first, first + len(counts), dtype=np.int32)
        return pl.DataFrame({"number": numbers, "id": numbers.astype(np.int64), "count": counts})


def write_table(table: "pl.LazyFrame", path: Path) -> None:
    """Write a table of users or items, a piece at a time."""
    table.sink_parquet(path, row_group_size=ROWS_PER_GROUP, engine="streaming")


def checksum_of(
    sequences: NDArray[np.int32], offsets: NDArray[np.int64], times: NDArray[np.int64] | None
) -> str:
    """Of what a model sees and what splits go by, so not of titles: equal data has equal checksums."""
    parts = [_sha256_of_array(array) for array in (sequences, offsets, times) if array is not None]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def _check_facts(manifest: Manifest) -> None:
    """What every version wrote, of the type it was written in."""
    from bert4rec.data.splits import SplitKind, SplitSpec

    for fact, kind in (("name", str), ("source", dict), ("counts", dict), ("split", dict)):
        if not isinstance(manifest[fact], kind):
            raise TypeError(f"{fact} is {manifest[fact]!r}")
    if not all(isinstance(manifest["counts"][each], int) for each in ("users", "items", "actions")):
        raise TypeError(f"counts is {manifest['counts']}")
    if SplitSpec(**manifest["split"]).kind not in get_args(SplitKind):
        raise ValueError(f"split is {manifest['split']}")


class _HashingFile:
    """A file that keeps only the checksum of what is written to it."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, block: bytes) -> None:
        self.hash.update(block)


def _sha256_of_array(array: NDArray[Any]) -> str:
    """The checksum of the file that `np.save` would write, or has written."""
    below: object = array.base
    if isinstance(array, np.memmap) and array.filename and isinstance(below, mmap):  # No part of a map.
        return sha256_of(Path(array.filename))
    file = _HashingFile()
    np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
    return file.hash.hexdigest()


def candidates_file(kind: str) -> str:
    """The name of the file that holds the candidates of this kind."""
    return f"negatives-{kind}.npy"


def _map(path: Path) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
