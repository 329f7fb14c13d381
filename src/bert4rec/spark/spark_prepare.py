"""`prepare` on Spark: the dataset that polars makes of the same log, byte for byte."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.artefact import new_folder
from bert4rec.data.dataset import MANIFEST, Dataset
from bert4rec.data.filters import apply_filters
from bert4rec.data.prepare import Recipe, conclude, describe_items
from bert4rec.extras import require_spark
from bert4rec.logs.columns import ColumnRequest
from bert4rec.logs.files import Hints, name_of_log
from bert4rec.logs.items import join_items
from bert4rec.spark.complete_log import Shelf, SparkLog, read_complete, stream
from bert4rec.spark.deliver import deliver
from bert4rec.spark.failures import explained
from bert4rec.spark.raw_log import read_dataframe, read_sources
from bert4rec.spark.session import job_settings, open_session, without_pandas_warning
from bert4rec.spark.spark_actions import SparkActions

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    # Were batches bounded by bytes, too, Spark would count them anew for every row.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "30000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    # What is kept is in as many partitions as its size asks for, not in 200 whose tasks have nothing to do.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
}
"""Of the session, for speed. None may change the plan of a user's own DataFrame, and with it the order of its rows."""


@dataclass(frozen=True)
class SparkSource:
    """What is prepared, and how it is written."""

    rows: "DataFrame | Sequence[str]"
    """A DataFrame; or files, folders, globs, addresses and tables."""
    columns: ColumnRequest = ColumnRequest()
    hints: Hints = Hints()
    drop_bad_rows: bool = False

    @property
    def name(self) -> str:
        """What the dataset is called unless the user says."""
        return name_of_log(self.rows[0]) if isinstance(self.rows, Sequence) else "log"

    @property
    def origin(self) -> dict[str, Any]:
        """What dataset.json keeps of the source."""
        return (
            {"files": list(self.rows)} if isinstance(self.rows, Sequence) else {"frame": "pyspark.DataFrame"}
        )


def prepare_on_spark(
    source: SparkSource,
    target: Path,
    *,
    name: str | None,
    recipe: Recipe,
    catalogue: "pl.DataFrame | None" = None,
    master: str | None = None,
    overwrite: bool = False,
) -> Dataset:
    """Make a dataset of a log, on the executors of Spark, and write it to the folder `target`.

    Ids are numbered and actions are put in order on the executors. The driver appends what they send to the files, and
    draws the candidates, which takes one stream of random numbers. `catalogue` holds what else is known of items.
    """
    require_spark()
    with without_pandas_warning(), explained():
        spark = open_session(master) if isinstance(source.rows, Sequence) else source.rows.sparkSession
        with Shelf() as shelf, job_settings(spark, SETTINGS):
            log = _read(spark, source, shelf)
            actions, notes = apply_filters(SparkActions.of(log.actions.drop("title"), shelf), recipe.filters)
            with new_folder(target, MANIFEST, overwrite=overwrite) as folder:
                ordered = deliver(actions, folder, shelf)
                known = _titles(log.actions) if "title" in log.actions.columns else None
                known = known if catalogue is None else join_items(known, catalogue)
                items, described = describe_items(ordered.tables["items"], known)
                ordered = replace(ordered, tables={**ordered.tables, "items": items})
                notes = [*log.notes, *notes, *described]
                dataset = conclude(
                    ordered,
                    folder,
                    name=name or source.name,
                    recipe=recipe,
                    source=source.origin,
                    notes=notes,
                )
                dataset.write_into(folder)
    return Dataset.open(target)


def _read(spark: "SparkSession", source: SparkSource, shelf: Shelf) -> SparkLog:
    if isinstance(source.rows, Sequence):
        raw = read_sources(spark, source.rows, source.columns, source.hints)
    else:
        raw = read_dataframe(source.rows, source.columns)
    return read_complete(raw, shelf, source.hints.time_format, drop_bad_rows=source.drop_bad_rows)


def _titles(actions: "DataFrame") -> "pl.DataFrame":
    """The first title of each item, whose id is text."""
    import polars as pl
    from pyspark.sql import functions as F

    titled = actions.filter(F.col("title") != "").groupBy(F.col("item").cast("string").alias("id"))
    empty = pl.DataFrame(schema={"id": pl.String, "title": pl.String})
    return pl.concat([empty, *stream(titled.agg(F.min_by("title", "row").alias("title")))])
