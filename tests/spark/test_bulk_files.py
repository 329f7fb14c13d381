"""Files that Spark answers for are read as one machine reads them, and what it writes is whole, absent or as it was."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

import bert4rec
from bert4rec.errors import Bert4RecError
from bert4rec.recommend.recommender import Recommender
from bert4rec.spark.bulk_answers import _whole
from bert4rec.spark.failures import explained
from tests.spark.test_bulk_answers import call, histories, log_of, on_one_machine, on_spark, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_numbers_in_a_csv_file_are_numbers_unless_one_of_them_is_a_name(
    spark: "SparkSession", exported_model: Path, tmp_path: Path
) -> None:
    log = log_of(histories()[:9], "iso")
    for users, kind in ((pl.col("user"), pl.Int64), ("00" + pl.col("user").cast(pl.String), pl.String)):
        source, target = tmp_path / "log.csv", tmp_path / "answers"
        log.with_columns(user=users).write_csv(source)
        call(exported_model, "--input", source, "-o", target, "--engine", "spark", "--overwrite")
        found = pl.read_parquet(target / "*.parquet")
        assert found.schema["user"] == kind
        expected = on_one_machine(exported_model, source, tmp_path / "out.parquet", 10, overwrite=True)
        assert rows_of(found) == rows_of(expected)


def write_without_header(folder: Path) -> Path:
    """With `;`, quotes in quotes, blanks of any kind, large numbers, and a name that could be a pattern."""
    rows = [
        "9007199254740993123;i1;1400000003",
        '7;"i2";1400000001',
        "7;\u00a0i3\t;1400000002",
        '7;"a ""x""";1400000000',
        "9007199254740993123; i4;1400000001",
    ]
    (folder / "g[1].CSV").write_text("\n".join(rows))
    return folder / "g[1].CSV"


def write_folder(folder: Path) -> Path:
    """Ties across files, of which Spark reads the larger one first."""
    log = log_of(histories()[:40], "number").with_columns(timestamp=pl.lit(10**9))
    log[:9].write_csv(folder / "a.csv")
    log[9:].write_csv(folder / "b.csv")
    return folder


def write_folders_in_folders(folder: Path) -> Path:
    """As Spark writes lists of many days; one machine reads the same by a pattern."""
    users = pl.Series([7, 8, 9], dtype=pl.Int32)
    log = pl.DataFrame({"user": users, "items": [["i1"], ["i2", "i3"], ["i4"]]})
    for day in (1, 2):
        (folder / f"day={day}").mkdir()
        log[day - 1 : 2 * day].write_parquet(folder / f"day={day}" / "part.parquet")
    return folder


@pytest.mark.parametrize(
    ("write", "options"),
    [
        (write_without_header, ("--user-col", "1", "--item-col", "2")),
        (write_folder, ()),
        (write_folders_in_folders, ()),
    ],
)
def test_files_are_read_by_the_rules_of_one_machine(
    spark: "SparkSession",
    exported_model: Path,
    tmp_path: Path,
    write: Callable[[Path], Path],
    options: tuple[str, ...],
) -> None:
    (tmp_path / "log").mkdir()
    source = write(tmp_path / "log")
    request: tuple[str | Path, ...] = (exported_model, "-k", "4", *options)
    call(*request, "--input", source, "-o", tmp_path / "answers", "--engine", "spark")
    if write is write_folders_in_folders:
        source = source / "**" / "*.parquet"
    call(*request, "--input", source, "-o", tmp_path / "single.parquet")
    found = pl.read_parquet(tmp_path / "answers" / "*.parquet")
    expected = pl.read_parquet(tmp_path / "single.parquet")
    assert found.schema == expected.schema
    assert rows_of(found) == rows_of(expected)


def test_what_is_not_a_number_is_missing(spark: "SparkSession", exported_model: Path) -> None:
    """So pandas has it, whose columns of numbers with gaps are floats."""
    nan = float("nan")
    log = [(1.0, "i1", 5.0), (nan, "i2", 6.0), (1.0, "i2", nan), (2.0, "i3", 1.0)]
    df = spark.createDataFrame(log, "user double, item string, time double")
    found = on_spark(bert4rec.spark.recommend(df, exported_model, 2, exclude_seen=False))
    single = pl.DataFrame(log, schema=df.columns, orient="row")
    expected = Recommender.load(exported_model).recommend_many(single, 2, exclude_seen=False).to_polars()
    assert rows_of(found.select("user", "rank", "item", "score")) == rows_of(
        expected.select("user", "rank", "item", "score")
    )


def test_answers_that_fail_to_take_their_place_leave_the_old_ones(
    spark: "SparkSession", tmp_path: Path
) -> None:
    target = tmp_path / "answers"
    spark.range(3).write.parquet(str(target))
    with (
        pytest.raises(Bert4RecError, match="does not exist"),
        explained(),
        _whole(spark, str(target), overwrite=True) as unfinished,
    ):
        assert not Path(unfinished).exists()  # nobody has written anything that could be renamed
    assert spark.read.parquet(str(target)).count() == 3
    assert [path.name for path in tmp_path.iterdir()] == ["answers"]
    with _whole(spark, str(target), overwrite=True) as unfinished:
        spark.range(5).write.parquet(unfinished)
    assert spark.read.parquet(str(target)).count() == 5
    assert [path.name for path in tmp_path.iterdir()] == ["answers"]


def test_answers_are_written_in_the_folder_that_python_works_in(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with _whole(spark, "answers", overwrite=False) as unfinished:
        spark.range(3).write.parquet(unfinished)
    assert (tmp_path / "answers" / "_SUCCESS").exists()
