"""Recommendations for everybody in a Spark DataFrame, or in whatever Spark reads: the answers of one machine.

Executors need Python with bert4rec, pyarrow and onnxruntime; the model comes to them, torch does not.
"""

import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from bert4rec.artefact import wrong_folder
from bert4rec.errors import DataError, UsageError
from bert4rec.extras import require_spark
from bert4rec.logs.columns import ColumnRequest
from bert4rec.recommend.answers import ItemId
from bert4rec.recommend.bulk import Tally
from bert4rec.recommend.onnx_engine import is_exported
from bert4rec.recommend.recommender import Recommender
from bert4rec.recommend.rules.rules import Rules, Where
from bert4rec.spark.answering import TALLY, Answering, ModelPlace
from bert4rec.spark.complete_log import Shelf
from bert4rec.spark.failures import explained
from bert4rec.spark.session import job_settings, without_pandas_warning
from bert4rec.spark.tables import file_system, full_path, lists_of, open_lists

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITERS = {".parquet": "parquet", ".csv": "csv", ".jsonl": "json"}
"""How the name of an output ends → how Spark writes it; Parquet if it ends otherwise."""


def recommend(
    df: "DataFrame",
    model: str | Path,
    k: int = 10,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    time: str | int | None = None,
    exclude_seen: bool | None = None,
    allow: Iterable[ItemId] | None = None,
    deny: Iterable[ItemId] | None = None,
    where: Where | None = None,
    diversity: float = 0.0,
    titles: bool = False,
) -> "DataFrame":
    """The items that should follow the history of each user, as a Spark DataFrame that is computed when it is used.

    It has a row for each recommended item: `user`, `rank` (from 1), `item`, `score` and `fallback`, which is "popular"
    if nothing of the user's history is known. Rows come in no particular order. Each is the one that one machine gives.

    Parameters
    ----------
    df
        A row for each user with a list of items, oldest first; or a log, with a row for each action, which is grouped
        by user and sorted by time. Actions of the same time stay in the order in which Spark reads the rows.
    model
        Folder of an exported model on this machine; it is sent to the executors.
    k
        How many items to recommend to each user, at most.
    user, item, time
        Columns of `df`. They are guessed from usual names. With `time="none"`, the rows of a log are in order.
    exclude_seen, allow, deny, where, diversity
        As in `Recommender.recommend`.
    titles
        Whether there is a column `title`.
    """
    require_spark()
    from pyspark.sql import DataFrame

    if not isinstance(df, DataFrame):
        raise UsageError(f"`df` must be a DataFrame of Spark; found {type(df).__name__}.")
    rules = Rules(k, exclude_seen, allow, deny, where, diversity)
    recommender = open_model(model)
    lists = lists_of(df, ColumnRequest.of(user, item, time), where="`df`")
    return _Job(lists, Path(model), recommender, rules).answers(titles=titles)


def open_model(model: str | Path, *, quantised: bool = True, force: bool = False) -> Recommender:
    """An exported model, as the driver needs it to check a request."""
    folder = Path(model)
    if not is_exported(folder):
        raise wrong_folder(folder, "model")
    return Recommender.load(folder, quantised=quantised, force=force)


@dataclass(frozen=True)
class _Job:
    """Whom to answer, by which model and rules."""

    lists: "DataFrame"
    """A row for each user, with the columns `user` and `item`, a list."""
    folder: Path
    recommender: Recommender
    rules: Rules
    quantised: bool = True

    def answers(self, *, titles: bool = False, has_tally: bool = False) -> "DataFrame":
        """What `recommend` gives; with rows of counts if asked for."""
        from pyspark.sql.types import ArrayType, FloatType, IntegerType, LongType, StringType, StructType

        self.recommender.question((), self.rules)  # refuses what this model cannot do
        lists, catalogue, spark = self.lists, self.recommender.catalogue, self.lists.sparkSession
        place = _place(spark, self.folder, self.recommender.version)
        titles = titles and bool(catalogue.titles)
        schema = StructType().add("user", lists.schema["user"].dataType).add("rank", IntegerType())
        schema = schema.add("item", LongType() if catalogue.whole_numbers else StringType())
        schema = schema.add("title", StringType()) if titles else schema
        schema = schema.add("score", FloatType()).add("fallback", StringType())
        schema = schema.add(TALLY, ArrayType(LongType())) if has_tally else schema
        answering = Answering(replace(place, quantised=self.quantised), self.rules, titles, has_tally)
        with without_pandas_warning():
            return lists.mapInArrow(answering, schema)


def _place(spark: "SparkSession", folder: Path, version: str) -> ModelPlace:
    """Where executors find the model: in its folder if they are on this machine for certain, otherwise sent to each.

    Spark sends archives to executors that start later too, and unpacks them; it keeps them until it stops.
    """
    context = spark.sparkContext
    if re.match(r"local(\[|$)", context.master or ""):
        return ModelPlace(str(folder.absolute()), is_shipped=False, version=version)
    from pyspark import SparkFiles

    name = f"bert4rec-model-{version}"
    if not any(archive.endswith(f"#{name}") for archive in context.listArchives):
        archive = Path(SparkFiles.getRootDirectory(), f"{name}.zip")  # Spark removes it in the end
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
            for path in sorted(folder.iterdir()):
                file.write(path, path.name)
        context.addArchive(f"{archive}#{name}")
    return ModelPlace(name, is_shipped=True, version=version)


def recommend_table(
    source: str,
    target: str,
    model: Path,
    recommender: Recommender,
    rules: Rules,
    columns: ColumnRequest,
    *,
    spark: "SparkSession",
    quantised: bool = True,
    overwrite: bool = False,
) -> Tally:
    """Recommend to everybody in what Spark reads at `source`, and write a folder of parts, which is whole or absent."""
    with without_pandas_warning(), explained(), Shelf() as shelf, job_settings(spark):
        lists = open_lists(spark, source, columns, shelf)
        job = _Job(lists, model, recommender, rules, quantised)
        return write_answers(job.answers(has_tally=True), target, source=source, overwrite=overwrite)


def write_answers(answers: "DataFrame", target: str, *, source: str, overwrite: bool) -> Tally:
    """Write answers, among which are rows of counts: the counts are those of what was written, each part once."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    counts = {"users": 0, "unknown": 1, "fallbacks": 2}
    sums = [F.sum(F.col(TALLY)[place]).alias(name) for name, place in counts.items()]
    observed = Observation()
    written = answers.observe(observed, *sums).filter(f"{TALLY} is null").drop(TALLY)
    with _whole(answers.sparkSession, target, overwrite=overwrite) as unfinished:
        writer = written.write.option("header", True).option("ignoreNullFields", False)
        writer.format(WRITERS.get(Path(target).suffix, "parquet")).save(unfinished)
        users, unknown, fallbacks = (observed.get[name] or 0 for name in counts)
        tally = Tally(users, unknown, fallbacks)
        if not tally.users:
            raise DataError(f"No users found in {source}.")
    return tally


def check_target(spark: "SparkSession", target: str, *, overwrite: bool) -> None:
    """Refuse a target that cannot be written before any long work."""
    with explained():
        target = full_path(spark, target)
        files, path = file_system(spark, target)
        if not files.exists(path):
            return
        if not overwrite:
            raise UsageError(f"{target} already exists. Choose another `target`, or use `overwrite=True`.")
        if not files.exists(file_system(spark, f"{target}/_SUCCESS")[1]):
            raise UsageError(
                f"{target} was not written by Spark: it has no _SUCCESS. Choose another `target`."
            )


@contextmanager
def _whole(spark: "SparkSession", target: str, *, overwrite: bool) -> Iterator[str]:
    """Another name to write under, which becomes `target` when the block ends well; else `target` is as it was."""
    target = full_path(spark, target)
    check_target(spark, target, overwrite=overwrite)
    folder, _, name = target.rpartition("/")
    unfinished, replaced = (
        f"{folder}/.{name}.{kind}-{uuid4().hex[:8]}" for kind in ("unfinished", "replaced")
    )
    files, new = file_system(spark, unfinished)
    _, old = file_system(spark, replaced)
    _, whole = file_system(spark, target)
    try:
        yield unfinished
        check_target(spark, target, overwrite=overwrite)  # somebody else may have made it meanwhile
        with _set_aside(files, whole, old):
            _rename(files, new, whole)
    finally:
        files.delete(new, True)


@contextmanager
def _set_aside(files: Any, whole: Any, old: Any) -> Iterator[None]:
    """Call what is there by another name until the block ends: then it is deleted, or, after a failure, put back."""
    if not files.exists(whole):
        yield
        return
    _rename(files, whole, old)
    try:
        yield
    except BaseException:
        _rename(files, old, whole)
        raise
    files.delete(old, True)


def _rename(files: Any, old: Any, new: Any) -> None:
    if not files.rename(old, new):
        raise OSError(f"{old.toString()} cannot be renamed to {new.toString()}.")
