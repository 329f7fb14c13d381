"""Tables in and out: pandas, polars, Arrow, and everything with the Arrow PyCapsule interface.

Neither pandas nor pyarrow is required, unless their tables are asked for. pandas frames are converted column by
column through NumPy, because pandas' own Arrow export needs pyarrow.
"""

import sys
from abc import ABC, abstractmethod
from datetime import date
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, Union, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from bert4rec.errors import DataError, UsageError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from polars._typing import ArrowStreamExportable
    from pyspark.sql import DataFrame as SparkFrame


@runtime_checkable
class ArrowStream(Protocol):
    """A table with the Arrow PyCapsule interface: pandas, polars, pyarrow, DuckDB and our own results."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


@runtime_checkable
class ArrowArray(Protocol):
    """One batch of a table with the Arrow PyCapsule interface."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object: ...


Frame: TypeAlias = Union[ArrowStream, ArrowArray, "pl.LazyFrame"]
"""A table of any library: a pandas or polars DataFrame, a polars LazyFrame, a pyarrow Table, a DuckDB relation, …"""


def is_frame(value: object) -> TypeGuard[Frame]:
    """Whether `value` is a table that `to_lazy` can read."""
    return isinstance(value, ArrowStream | ArrowArray) or _is_from(value, "polars", "LazyFrame")


def is_spark_frame(value: object) -> "TypeGuard[SparkFrame]":
    """Whether `value` is a DataFrame of Spark, which can be larger than the memory."""
    return _is_from(value, "pyspark.sql", "DataFrame")


def to_lazy(frame: Frame, parameter: str) -> "pl.LazyFrame":
    """Any frame as a polars LazyFrame. Errors name the `parameter` that it was passed as."""
    import polars as pl

    if isinstance(frame, pl.LazyFrame):
        return frame
    if isinstance(frame, pl.DataFrame):
        return frame.lazy()
    if _is_from(frame, "pandas", "DataFrame"):
        return _from_pandas(frame, parameter).lazy()
    try:
        return pl.DataFrame(cast("ArrowStreamExportable", frame)).lazy()
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        kind = type(frame).__name__
        raise UsageError(f"`{parameter}`: this {kind} cannot be read as a table: {error}") from error


class Tabular(ABC):
    """A result that is a table: it can become a frame of any library."""

    @abstractmethod
    def to_polars(self) -> "pl.DataFrame":
        """As a polars DataFrame."""

    def to_pandas(self) -> "pd.DataFrame":
        """As a pandas DataFrame. Requires pandas, but not pyarrow."""
        try:
            import pandas as pd
        except ImportError as error:
            raise UsageError("`to_pandas()` requires pandas: pip install pandas.") from error
        frame = self.to_polars()
        return pd.DataFrame({column.name: _to_pandas(column) for column in frame}, columns=frame.columns)

    def to_arrow(self) -> "pa.Table":
        """As a pyarrow Table. Requires pyarrow."""
        import polars as pl

        try:
            # Of the types of Arrow, those that every reader knows.
            return self.to_polars().to_arrow(compat_level=pl.CompatLevel.oldest())
        except ImportError as error:
            raise UsageError("`to_arrow()` requires pyarrow: pip install pyarrow.") from error

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_polars().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"{type(self).__name__}, {self.to_polars()}"

    def _repr_html_(self) -> str | None:
        return self.to_polars()._repr_html_()


def _is_from(value: object, module: str, name: str) -> bool:
    """Whether `value` is of a class of a library, which is not imported for this."""
    library = sys.modules.get(module)
    return library is not None and isinstance(value, getattr(library, name))


def _from_pandas(frame: Any, parameter: str) -> "pl.DataFrame":
    """Every column, and the levels of the index that have a name, such as the user after `groupby`."""
    import polars as pl

    levels = [name for name in frame.index.names if name is not None and name not in frame.columns]
    columns = [(name, frame.index.get_level_values(name).to_series()) for name in levels]
    columns += [(name, frame.iloc[:, place]) for place, name in enumerate(frame.columns)]
    names = [str(name) for name, _ in columns]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"`{parameter}`: the frame has two columns called {doubled!r}. Rename one of them.")
    return pl.DataFrame(
        [_from_pandas_column(column).alias(name) for name, (_, column) in zip(names, columns, strict=True)]
    )


def _from_pandas_column(column: Any) -> "pl.Series":
    """One column, by its type; a missing value of any kind is null."""
    import pandas as pd
    import polars as pl

    kind = column.dtype
    missing = column.isna().to_numpy()
    if isinstance(kind, pd.CategoricalDtype):
        categories = _from_pandas_column(kind.categories.to_series())
        return categories.gather(pl.Series(column.cat.codes.to_numpy()).set(pl.Series(missing), None))
    if isinstance(kind, pd.ArrowDtype) or getattr(kind, "storage", None) == "pyarrow":
        return pl.Series(column.array.__arrow_array__())
    if isinstance(kind, pd.DatetimeTZDtype):
        return _from_numpy(column.dt.tz_convert("UTC").dt.tz_localize(None)).dt.replace_time_zone("UTC")
    if isinstance(kind, np.dtype) and kind.kind != "O":
        return _from_numpy(column)
    if (plain := getattr(kind, "numpy_dtype", None)) is not None and plain.kind in "iufb":
        series = pl.Series(column.to_numpy(plain, na_value=0)).set(pl.Series(missing), None)
        return series.fill_nan(None) if series.dtype.is_float() else series
    values = column.to_numpy(object, copy=True)
    values[missing] = None
    return _from_objects(values.tolist())


def _from_numpy(column: Any) -> "pl.Series":
    import polars as pl

    values = column.to_numpy()
    if values.dtype.kind in "mM":  # polars knows no seconds.
        values = values.astype(f"{values.dtype.kind}8[us]")
    series = pl.Series(values)
    return series.fill_nan(None) if series.dtype.is_float() else series


def _from_objects(values: list[Any]) -> "pl.Series":
    """Python objects: of one kind as what they are, and mixed ones as text, as in JSON Lines."""
    import polars as pl

    present = [value for value in values if value is not None]
    if all(isinstance(value, str) for value in present):
        return pl.Series(values, dtype=pl.String)
    if all(isinstance(value, list | tuple | np.ndarray) for value in present):
        return _from_lists(values)
    if all(isinstance(value, date) for value in present):
        return pl.Series(values)
    if all(isinstance(value, Real) and not isinstance(value, bool | np.bool_) for value in present):
        is_integer = all(isinstance(value, Integral) for value in present)
        if is_integer and all(-(2**63) <= value < 2**63 for value in present):
            return pl.Series(values, dtype=pl.Int64)
        if not is_integer:
            return pl.Series([None if value is None else float(value) for value in values])
    return pl.Series([None if value is None else str(value) for value in values], dtype=pl.String)


def _from_lists(values: list[Any]) -> "pl.Series":
    """Lists: what is in them is converted as one column, and cut again."""
    import pandas as pd
    import polars as pl

    flat = _from_objects(
        [
            None if pd.api.types.is_scalar(item) and pd.isna(item) else item
            for row in values
            if row is not None
            for item in row
        ]
    )
    items = iter(flat.to_list())
    rows = [None if row is None else [next(items) for _ in row] for row in values]
    return pl.Series(rows, dtype=pl.List(flat.dtype))


def _to_pandas(column: "pl.Series") -> Any:
    """One column for pandas: integers stay integers, whatever is missing."""
    import pandas as pd
    import polars as pl

    kind, has_nulls = column.dtype, column.has_nulls()
    if isinstance(kind, pl.Datetime) and kind.time_zone:
        in_utc = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return pd.Series(in_utc.to_numpy()).dt.tz_localize("UTC").dt.tz_convert(kind.time_zone)
    if has_nulls and (kind.is_integer() or kind == pl.Boolean):
        mask: NDArray[np.bool_] = column.is_null().to_numpy()
        array = pd.arrays.BooleanArray if kind == pl.Boolean else pd.arrays.IntegerArray
        filler = False if kind == pl.Boolean else 0
        return array(column.fill_null(filler).to_numpy().copy(), mask.copy())
    if kind.is_numeric() or kind.is_temporal() or kind == pl.Boolean:
        return column.to_numpy().copy()
    return pd.Series((column.cast(pl.String) if kind in (pl.Categorical, pl.Enum) else column).to_list())
