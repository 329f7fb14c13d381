"""What is known of items besides id and title: the columns that `where` asks about.

A column is its distinct values in ascending order, and for each item the place of its value among them. So a condition
is decided once for each distinct value, and looked up for each item. Columns are read when they are first asked for:
a catalogue may have long texts that nobody filters by.

attributes.npz, of an exported model, holds plain arrays: `index` (JSON as UTF-8: name and kind of each column), and of
column n `n.values` (texts end to end as UTF-8, with `n.ends`), `n.codes` and, where items have lists of values,
`n.offsets`; see `Column`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from bert4rec.errors import DataError

if TYPE_CHECKING:
    import polars as pl

Kind = Literal["text", "number", "bool", "time"]
Values = list[str] | NDArray[Any]
FILE = "attributes.npz"
_NOT_ATTRIBUTES = {"number", "id", "count", "title"}
_PARTS = ("values", "ends", "codes", "offsets")


@dataclass(frozen=True, eq=False)
class Column:
    """What one column has for all items."""

    values: Values
    """Distinct and ascending: a list of texts, or an array of numbers, booleans or moments (in UTC)."""
    codes: NDArray[np.signedinteger[Any]]
    """The place of each item's value among them, -1 if it has none; of lists, of all elements end to end."""
    offsets: NDArray[np.int64] | None = None
    """Of lists: item n has the elements codes[offsets[n - 1] : offsets[n]]."""

    def having(self, wanted: Sequence[range]) -> NDArray[np.bool_]:
        """Which items have one of the wanted values, which are given by their places; of a list, one is enough."""
        if len(wanted) == 1:  # comparing takes a fraction of looking up
            found = self.codes >= wanted[0].start
            found &= self.codes < wanted[0].stop
        else:
            is_wanted = np.zeros(len(self.values) + 1, bool)
            for places in wanted:
                is_wanted[places.start : places.stop] = True
            found = is_wanted[self.codes]
        if self.offsets is None:
            return found
        found_before = np.concatenate([[0], np.cumsum(found)])
        return np.diff(found_before[self.offsets]) > 0

    @classmethod
    def of(cls, series: "pl.Series", kind: Kind) -> "Column":
        """From a column of a table of items."""
        import polars as pl

        offsets = None
        if isinstance(series.dtype, pl.List | pl.Array):
            series = series.cast(pl.List(series.dtype.inner))
            lengths = series.list.len().fill_null(0)
            offsets = np.concatenate([[0], np.cumsum(lengths.to_numpy(), dtype=np.int64)])
            series = series.filter(lengths > 0).explode()
        plain = _plain(series, kind)
        distinct = plain.drop_nulls().unique().sort()
        values = distinct.to_list() if kind == "text" else distinct.to_numpy()
        places = plain.rank("dense").cast(pl.Int64).fill_null(0).to_numpy() - 1
        return cls(values, places.astype(np.min_scalar_type(-len(values) - 1)), offsets)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it as arrays, by the names of the file."""
        parts: dict[str, NDArray[Any]] = {"codes": self.codes}
        if self.offsets is not None:
            parts["offsets"] = self.offsets
        if isinstance(self.values, np.ndarray):
            return {**parts, "values": self.values}
        texts = [text.encode() for text in self.values]
        ends = np.cumsum([*map(len, texts)], dtype=np.int64)
        return {**parts, "values": np.frombuffer(b"".join(texts), np.uint8), "ends": ends}

    @classmethod
    def of_arrays(cls, parts: Mapping[str, NDArray[Any]]) -> "Column":
        """From what `arrays` gave."""
        values: Any = parts["values"]
        if "ends" in parts:
            joined, ends = values.tobytes(), parts["ends"].tolist()
            limits = zip([0, *ends], ends, strict=False)
            values = [joined[begin:end].decode() for begin, end in limits]
        return cls(values, parts["codes"], parts.get("offsets"))


class Attributes:
    """The columns that a model has of its items."""

    def __init__(self, kinds: Mapping[str, Kind], read_column: Callable[[str], Column]) -> None:
        self.kinds, self._read_column = kinds, read_column
        self._columns: dict[str, Column] = {}

    def column(self, name: str) -> Column:
        """One of `kinds`, by its name."""
        if name not in self._columns:
            self._columns[name] = self._read_column(name)
        return self._columns[name]

    @classmethod
    def of_table(cls, path: Path) -> "Attributes":
        """From the items.parquet of a run."""
        import polars as pl

        kinds = {
            name: kind
            for name, dtype in pl.read_parquet_schema(path).items()
            if name not in _NOT_ATTRIBUTES and (kind := _kind_of(dtype))
        }
        return cls(kinds, lambda name: Column.of(pl.read_parquet(path, columns=[name])[name], kinds[name]))

    def write(self, path: Path) -> None:
        """As arrays, which a service reads without polars; no file if there are no columns."""
        if not self.kinds:
            return
        index = json.dumps(list(self.kinds.items()), ensure_ascii=False).encode()
        arrays: dict[str, Any] = {"index": np.frombuffer(index, np.uint8)}
        for place, name in enumerate(self.kinds):
            arrays |= {f"{place}.{part}": array for part, array in self.column(name).arrays().items()}
        np.savez(path, **arrays)

    @classmethod
    def read(cls, path: Path) -> "Attributes":
        """From the attributes.npz of an exported model; models without attributes have no such file."""
        if not path.is_file():
            return NO_ATTRIBUTES
        with _undamaged(path):
            # It stays open: what is read later is of this model, even if its folder was replaced.
            archive = ZipFile(path)
            kinds: dict[str, Kind] = dict(json.loads(_array(archive, "index").tobytes()))

        def read_column(name: str) -> Column:
            place = list(kinds).index(name)
            with _undamaged(path):
                keys = {part: f"{place}.{part}" for part in _PARTS}
                known = {key.removesuffix(".npy") for key in archive.namelist()}
                return Column.of_arrays(
                    {part: _array(archive, key) for part, key in keys.items() if key in known}
                )

        return cls(kinds, read_column)


def _array(archive: ZipFile, key: str) -> NDArray[Any]:
    with archive.open(f"{key}.npy") as file:
        array: NDArray[Any] = np.load(file, allow_pickle=False)
        return array


def _nothing_to_read(name: str) -> Column:
    raise KeyError(name)


NO_ATTRIBUTES = Attributes({}, _nothing_to_read)


def _kind_of(dtype: "pl.DataType") -> Kind | None:
    """None if nothing can be asked of such values, as of structures and bytes."""
    import polars as pl

    element = dtype.inner if isinstance(dtype, pl.List | pl.Array) else dtype
    if isinstance(element, pl.String | pl.Categorical | pl.Enum | pl.Null):
        return "text"
    if isinstance(element, pl.Boolean):
        return "bool"
    if isinstance(element, pl.Date | pl.Datetime):
        return "time"
    return "number" if element.is_numeric() else None


def _plain(series: "pl.Series", kind: Kind) -> "pl.Series":
    """Texts, booleans, moments, whole numbers or floats; what is not a number is missing."""
    import polars as pl

    if kind == "text":
        return series.cast(pl.String)
    if kind == "bool":
        return series
    if kind == "time":
        zone = series.dtype.time_zone if isinstance(series.dtype, pl.Datetime) else None
        return (series.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if zone else series).cast(
            pl.Datetime("us")
        )
    if series.dtype.is_integer():
        whole = series.cast(pl.Int64, strict=False)
        if whole.null_count() == series.null_count():
            return whole
    return series.cast(pl.Float64).fill_nan(None)


@contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
        raise DataError(f"{path} is damaged and cannot be read ({error}). Export the model again.") from error
