"""Tables in and out: pandas, polars, Arrow, and whatever speaks the Arrow PyCapsule interface.

Neither pandas nor pyarrow is needed, unless somebody asks for a table of theirs.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl


class Tabular(ABC):
    """A result that is a table: it can become a frame of any library."""

    @abstractmethod
    def to_polars(self) -> "pl.DataFrame":
        """As a polars DataFrame."""

    def to_pandas(self) -> Any:
        """As a pandas DataFrame."""
        import pandas as pd

        frame = self.to_polars()
        return pd.DataFrame({name: frame[name].to_numpy() for name in frame.columns})

    def to_arrow(self) -> Any:
        """As a pyarrow Table."""
        import pyarrow as pa

        return pa.table(self)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_polars().__arrow_c_stream__(requested_schema)
