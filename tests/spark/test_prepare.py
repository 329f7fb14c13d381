"""`prepare` on Spark makes the dataset that polars makes of the same log, byte for byte."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

import bert4rec
from bert4rec.cli import app
from bert4rec.data import blocks
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.spark import complete_log, deliver, spark_prepare
from bert4rec.spark.complete_log import stream
from bert4rec.spark.failures import explained
from bert4rec.spark.session import job_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.cluster import Cluster

UNORDERED = "The order of the rows is that of Spark's partitions."
DAY = 86_400


def messy_log(users: int = 60, actions: int = 1500, seed: int = 1) -> pl.DataFrame:
    """Users who tie, repeat and act twice at once; whole numbers as ids, seconds as times, in no order."""
    random = np.random.default_rng(seed)
    log = pl.DataFrame(
        {
            "user": random.zipf(1.3, actions) % users,
            "item": random.zipf(1.2, actions) % 90 + 1000,
            "time": 1_400_000_000 + random.integers(0, 40, actions) * DAY,
        }
    )
    twice = log.sample(fraction=0.1, seed=seed)
    return pl.concat([log, twice]).sample(fraction=1, shuffle=True, seed=seed)


def as_text(log: pl.DataFrame) -> pl.DataFrame:
    """Ids that are names."""
    return log.with_columns(pl.format("u{}", "user").alias("user"), pl.format("Ü {}", "item").alias("item"))


def write_csv(folder: Path) -> list[Path]:
    """Numbers as text, some as 6.0 and with blanks, some missing, times that are none, and rows of nothing."""
    place = pl.int_range(pl.len())
    log = messy_log().with_columns(pl.all().cast(pl.String))
    log = log.with_columns(
        user=pl.when(place % 7 == 0).then(pl.format(" {}.0", "user")).otherwise("user"),
        item=pl.when(place % 11 == 0).then(pl.format("{} ", "item")).otherwise("item"),
        time=pl.when(place % 200 == 3).then(pl.lit("soon")).otherwise("time"),
    )
    log = log.with_columns(
        user=pl.when(place % 50 == 1).then(pl.lit(" ")).otherwise("user"),
        item=pl.when(place % 70 == 1).then(None).otherwise("item"),
        time=pl.when(place % 90 == 1).then(None).otherwise("time"),
        note=pl.when(place % 3 == 0).then(pl.lit('a "quoted", text')),
    )
    text = log.write_csv().splitlines()
    (folder / "log.csv").write_text("\n".join([*text[:50], "", ",,,", *text[50:]]))
    return [folder / "log.csv"]


def write_parquet(folder: Path) -> list[Path]:
    """Names and dates in several files, the largest last, which Spark reads first."""
    log = as_text(messy_log()).with_columns(pl.from_epoch("time", time_unit="s"))
    parts = {"a": log[:100], "b b": log[100:300], "c": log[300:]}
    for name, part in parts.items():
        part.write_parquet(folder / f"{name}.parquet", row_group_size=64)
    return [folder]


def write_json(folder: Path) -> list[Path]:
    """Milliseconds, and titles that change."""
    log = messy_log().with_columns(
        pl.col("time") * 1000, title=pl.format("Title of {}", pl.col("item") + pl.int_range(pl.len()) % 2)
    )
    log[:900].write_ndjson(folder / "log-2.jsonl")
    log[900:].write_ndjson(folder / "log-1.jsonl")
    return [folder / "log-2.jsonl", folder / "log-1.jsonl"]


def write_floats(folder: Path) -> list[Path]:
    """Whole numbers stored as floats, some missing, and nanoseconds."""
    log = messy_log().with_columns(
        user=pl.when(pl.int_range(pl.len()) % 40 == 0)
        .then(float("nan"))
        .otherwise(pl.col("user").cast(pl.Float64)),
        time=pl.col("time") * 1_000_000_000 + pl.int_range(pl.len()) * 997,
    )
    log.write_parquet(folder / "log.parquet")
    return [folder / "log.parquet"]


def write_written_dates(folder: Path) -> list[Path]:
    """Dates in several ISO forms."""
    day = pl.from_epoch("time", time_unit="s")
    forms = [day.dt.strftime(form) for form in ("%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S+02:00")]
    place = pl.int_range(pl.len()) % 3
    log = messy_log().with_columns(
        time=pl.when(place == 0).then(forms[0]).when(place == 1).then(forms[1]).otherwise(forms[2])
    )
    log.write_csv(folder / "log.tsv", separator="\t")
    return [folder / "log.tsv"]


def write_formatted(folder: Path) -> list[Path]:
    log = messy_log().with_columns(pl.from_epoch("time", time_unit="s").dt.strftime("%d/%m/%Y"))
    log.write_csv(folder / "log.txt", separator="|", include_header=False)
    return [folder / "log.txt"]


def write_nanoseconds(folder: Path) -> list[Path]:
    """As pandas writes them, some before 1970; and small numbers in one file, large ones in the next."""
    log = messy_log().with_columns(
        (pl.from_epoch("time", time_unit="s").dt.cast_time_unit("ns") - pl.duration(days=365 * 45)).alias(
            "the day"
        )
    )
    log = log.with_columns(pl.col("the day") + pl.duration(nanoseconds=pl.int_range(pl.len()) * 7)).drop(
        "time"
    )
    log[:90].with_columns(pl.col("user", "item").cast(pl.Int32)).write_parquet(folder / "a.parquet")
    log[90:].write_parquet(folder / "b.parquet")
    return [folder]


def write_dates_out_of_range(folder: Path) -> list[Path]:
    log = messy_log().with_columns(day=pl.from_epoch("time", time_unit="s").cast(pl.Date)).drop("time")
    log = log.with_columns(
        day=pl.when(pl.int_range(pl.len()) % 300 == 9).then(pl.date(1890, 1, 1)).otherwise("day")
    )
    log.write_parquet(folder / "log.parquet")
    return [folder / "log.parquet"]


def write_numbers_out_of_range(folder: Path) -> list[Path]:
    """And columns that differ only in their case."""
    place = pl.int_range(pl.len())
    log = messy_log().with_columns(
        time=pl.when(place % 300 == 9).then(10**15).otherwise("time"), USER=pl.lit(1)
    )
    log.write_parquet(folder / "log.parquet")
    return [folder / "log.parquet"]


CASES: dict[str, tuple[Callable[[Path], list[Path]], dict[str, Any]]] = {
    "dirt": (write_csv, {"drop_bad_rows": True}),
    "several files, dates, moments": (
        write_parquet,
        {"after": "2014-05-20", "drop_duplicates": True, "min_user_actions": 2},
    ),
    "titles and a catalogue": (
        write_json,
        {"items": "catalogue.csv", "before": "2014-06-15", "drop_repeats": True},
    ),
    "floats and candidates of both kinds": (
        write_floats,
        {"negatives": "both", "seed": 3, "repeats": "exclude"},
    ),
    "a split by time": (write_written_dates, {"split": "time", "test_from": 0.8, "repeats": "keep"}),
    "a format of times": (write_formatted, {"user": 1, "item": 2, "time": 3, "time_format": "%d/%m/%Y"}),
    "nanoseconds, and numbers of several sizes": (write_nanoseconds, {}),
    "dates out of range": (write_dates_out_of_range, {"drop_bad_rows": True}),
    "numbers out of range": (write_numbers_out_of_range, {"drop_bad_rows": True}),
    "cores without times": (write_parquet, {"time": "none", "min_item_actions": 3, "k_core": 6}),
}


@pytest.mark.parametrize("case", CASES)
def test_spark_makes_the_dataset_that_polars_makes(case: str, tmp_path: Path, spark: "SparkSession") -> None:
    write, parameters = CASES[case]
    (tmp_path / "log").mkdir()
    log = write(tmp_path / "log")
    if "items" in parameters:
        known = [f"{item},Other title of {item},{item / 2}" for item in range(1000, 1050)]
        (tmp_path / parameters["items"]).write_text("\n".join(["item_id,title,price", *known]))
        parameters = {**parameters, "items": tmp_path / parameters["items"]}
    assert_same_dataset(log, tmp_path, **parameters)


def test_parts_of_any_size_make_the_same_dataset(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some users fill several parts, so that others have nobody; some ids are negative, huge, or between blanks.

    Tables of users and items, which are sent to all executors elsewhere in these tests, are joined by a shuffle.
    """
    monkeypatch.setattr(deliver, "ROWS_AT_ONCE", 64)
    monkeypatch.setattr(complete_log, "MOST_SENT", 0)
    place = pl.int_range(pl.len())
    log = messy_log().with_columns(
        user=pl.when(pl.col("user") % 2 == 0).then(-(2**63) + pl.col("user")).otherwise("user"),
        item=pl.when(place % 9 == 0)
        .then(pl.format("\u2003Ü{}\xa0", "item"))
        .otherwise(pl.format("Ü{}", "item")),
    )
    log.write_parquet(tmp_path / "log.parquet")
    made = assert_same_dataset(tmp_path / "log.parquet", tmp_path, min_user_actions=1)
    assert np.diff(made.offsets).max() > 4 * deliver.ROWS_AT_ONCE


def test_spark_makes_the_same_dataset_of_movielens(
    real_data: Path, tmp_path: Path, spark: "SparkSession"
) -> None:
    assert_same_dataset(real_data / "ml-100k" / "u.data", tmp_path, user=1, item=2, time=4)


def test_spark_makes_the_same_dataset_of_steam(
    real_data: Path, tmp_path: Path, spark: "SparkSession"
) -> None:
    steam = real_data / "steam-australian" / "reviews.tsv.gz"
    dataset = assert_same_dataset(steam, tmp_path, min_user_actions=2, min_item_actions=2)
    assert any("min_user_actions" in note for note in dataset.notes)


@pytest.mark.parametrize("ids", ["numbers", "text"])
def test_the_driver_takes_users_in_pieces_and_never_all_of_them(
    ids: str, tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a few actions and users were all that fits; the files are those of a log that fits."""
    log = messy_log(users=400)
    (log if ids == "numbers" else as_text(log)).write_parquet(tmp_path / "log.parquet")
    expected = bert4rec.prepare(tmp_path / "log.parquet", tmp_path / "polars", min_user_actions=1)
    monkeypatch.setattr(deliver, "ROWS_AT_ONCE", 60)
    monkeypatch.setattr(blocks, "ACTIONS_AT_ONCE", 200)
    pieces = list[int]()

    def counted(table: "DataFrame") -> Iterator[pl.DataFrame]:
        for piece in stream(table):
            if "user" in piece.columns:
                pieces.append(len(piece))
            yield piece

    def refused(_: object) -> pl.DataFrame:
        raise AssertionError("the whole table of users")

    monkeypatch.setattr(deliver, "stream", counted)
    monkeypatch.setattr(bert4rec.Dataset, "users", refused)
    monkeypatch.setattr(bert4rec.Dataset, "lengths", property(refused))
    made = bert4rec.prepare(tmp_path / "log.parquet", tmp_path / "spark", engine="spark", min_user_actions=1)
    assert_same_files(tmp_path / "polars", tmp_path / "spark")
    assert sum(pieces) == made.num_users and max(pieces) < made.num_users / 2
    assert (made.statistics(), made.warnings()) == (expected.statistics(), expected.warnings())


def test_a_dataframe_is_prepared_in_its_own_session(tmp_path: Path, spark: "SparkSession") -> None:
    log = messy_log()
    frame = frame_of(spark, log)
    made, expected = bert4rec.prepare(frame, tmp_path / "spark"), bert4rec.prepare(log, tmp_path / "polars")
    assert_same_files(tmp_path / "polars", tmp_path / "spark")
    assert made.notes == [expected.notes[0], UNORDERED, *expected.notes[1:]]
    assert made.manifest["source"] == {"frame": "pyspark.DataFrame"}


def test_a_dataframe_that_was_joined_keeps_the_order_that_it_has(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    """Its plan is the user's. Without times, histories are in the order of the rows."""
    log = messy_log().select("user", "item")
    known = frame_of(spark, log.select("item").unique())
    joined = frame_of(spark, log).join(known, "item").select("user", "item")
    bert4rec.prepare(joined, tmp_path / "spark")
    bert4rec.prepare(log, tmp_path / "polars")
    assert_same_files(tmp_path / "polars", tmp_path / "spark")


@pytest.mark.parametrize(
    "said",
    [
        "Not enough memory to build and broadcast the table to all worker nodes.",
        "Job aborted due to stage failure: TaskResultLost (result lost from block manager)",
    ],
)
def test_java_that_runs_out_of_memory_is_told_how_to_get_more(said: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(UsageError, match="SPARK_DRIVER_MEMORY"), explained():
        raise PySparkException(said)


def test_the_command_prepares_a_table_by_its_name(tmp_path: Path, spark: "SparkSession") -> None:
    log = as_text(messy_log())
    frame_of(spark, log).createOrReplaceTempView("what_users_did")
    with pytest.raises(SystemExit) as end:
        app(["prepare", "what_users_did", "-o", str(tmp_path / "spark"), "--engine", "spark"])
    assert not end.value.code
    bert4rec.prepare(log, tmp_path / "polars")
    assert_same_files(tmp_path / "polars", tmp_path / "spark")


def test_an_address_is_read_as_a_folder_is(tmp_path: Path, spark: "SparkSession") -> None:
    folder = tmp_path / "a log"
    folder.mkdir()
    log = messy_log().with_columns(pl.all().cast(pl.String))
    log[:20].write_csv(folder / "1.csv")
    log[20:].write_csv(folder / "2.csv")
    bert4rec.prepare(f"file://{folder}", tmp_path / "spark", engine="spark")
    bert4rec.prepare(folder, tmp_path / "polars")
    assert_same_files(tmp_path / "polars", tmp_path / "spark")


def test_a_worker_that_dies_in_the_middle_changes_nothing(
    tmp_path: Path, spark: "SparkSession", cluster: "Cluster", monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").mkdir()
    log = write_parquet(tmp_path / "log")
    pack = deliver._packed

    def lose_a_worker(*arguments: Any) -> "DataFrame":
        """What it had read and counted is lost."""
        cluster.workers[0].kill()
        return pack(*arguments)

    monkeypatch.setattr(deliver, "_packed", lose_a_worker)
    try:
        assert_same_dataset(log, tmp_path)
    finally:
        cluster.workers[0] = cluster.start_worker()
        cluster.workers.pop()


@pytest.mark.parametrize(
    ("source", "parameters", "expected", "message"),
    [
        ("missing.parquet", {}, NotFoundError, "missing.parquet does not exist"),
        ("file:///missing/log.parquet", {}, NotFoundError, "file:/missing/log.parquet does not exist."),
        ("good.csv", {"user": "buyer"}, DataError, "`user`: column 'buyer' not found in"),
        ("good.csv", {"encoding": "latin-1"}, UsageError, "`encoding`: Spark reads UTF-8"),
        ("short.csv", {}, DataError, "short.csv has a row with too few or too many fields: '2,7'"),
        ("broken.jsonl", {}, DataError, "broken.jsonl"),
        ("_a.csv", {}, UsageError, "_a.csv: Spark reads no files whose names begin with _"),
        ("ends", {}, DataError, "ends/b.tsv is separated by something else than the first file"),
        ("units", {}, DataError, "60 of 80 times in column 'time' cannot be read: '1400000000000'"),
        ("names", {}, DataError, "names/user_id.parquet has no column 'user', which the first file has"),
        ("keys", {}, DataError, "keys/user_id.jsonl has no column 'user', which the first file has"),
        (
            "types",
            {},
            DataError,
            "types/b.parquet: column user is stored as DOUBLE, and in the first file as",
        ),
        ("late.csv", {}, DataError, "1 of 3 times in column 'time' cannot be read: 'soon' ("),
        (
            "words.txt",
            {},
            UsageError,
            'words.txt is a file of "user item item …" lines, which Spark does not read.',
        ),
        (
            "moments",
            {},
            DataError,
            "moments/us.parquet does not store times in nanoseconds, as the first file",
        ),
        ("lists.parquet", {}, UsageError, "column 'items' holds lists"),
        ("fractions.parquet", {}, DataError, "the user column holds fractions such as 1.5"),
        ("good.csv", {"k_core": 9}, DataError, "`k_core=9` leaves none of 3 actions"),
        ("good.csv", {"split": "time", "test_from": "2030"}, DataError, "2030"),
        ("ml-1m", {}, UsageError, 'ml-1m is a named data set, which `engine="embedded"` prepares.'),
    ],
)
def test_a_mistake_is_told_in_a_sentence_and_leaves_nothing(
    source: str,
    parameters: dict[str, Any],
    expected: type[Exception],
    message: str,
    tmp_path: Path,
    spark: "SparkSession",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ends", "moments", "units", "names", "keys", "types"):
        Path(name).mkdir()
    seconds = [f"{user},5,{1400000000 + user}" for user in range(20)]
    Path("units/a.csv").write_text("\n".join(["user,item,time", *seconds]))
    Path("units/b.csv").write_text("\n".join(["user,item,time", *(f"{line}000" for line in seconds * 3)]))
    for name, users in (("user", [1, 1]), ("user_id", [2, 2, 2])):
        frame = pl.DataFrame({name: users, "item": list(range(len(users)))})
        frame.write_parquet(f"names/{name}.parquet")
        frame.write_ndjson(f"keys/{name}.jsonl")
    pl.DataFrame({"user": [1, 2], "item": [1, 2]}).write_parquet("types/a.parquet")
    pl.DataFrame({"user": [1.0, 2.0], "item": [1, 2]}).write_parquet("types/b.parquet")
    for unit in ("ns", "us"):
        days = pl.Series([0, 1]).cast(pl.Datetime("ns" if unit == "ns" else "us"))
        pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": days}).write_parquet(f"moments/{unit}.parquet")
    Path("ends/a.csv").write_text("user,item,time\n1,5,1400000000\n")
    Path("ends/b.tsv").write_text("user\titem\ttime\n1\t5\t1400000000\n")
    Path("_a.csv").write_text("user,item\n1,5\n")
    Path("good.csv").write_text("user,item,time\n1,5,1400000000\n2,7,1400000001\n2,8,1400000002\n")
    Path("short.csv").write_text("user,item,time\n1,5,1400000000\n2,7\n")
    Path("late.csv").write_text("user,item,time\n1,5,1400000000\n2,7,soon\n2,8,1400000002\n")
    Path("broken.jsonl").write_text('{"user": 1, "item": 2}\n{"user": 1,\n')
    Path("words.txt").write_text("1 5 6 7\n2 7\n")
    pl.DataFrame({"user": [1, 2], "items": [[1, 2], [3]]}).write_parquet("lists.parquet")
    pl.DataFrame({"user": [1.0, 1.5], "item": [1, 2]}).write_parquet("fractions.parquet")
    with pytest.raises(expected) as error:
        bert4rec.prepare(source, "dataset", engine="spark", **{"min_user_actions": 1, **parameters})
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("*dataset*"))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"engine": "flink"}, "`engine` must be one of 'embedded', 'spark'; found 'flink'."),
        ({"master": "local[2]"}, 'Leave out `master`: it requires `engine="spark"`.'),
        ({"engine": "spark"}, '`engine="spark"` requires `folder`'),
        ({"engine": "spark", "folder": "dataset"}, "reads files, tables by name and Spark DataFrames"),
    ],
)
def test_what_contradicts_the_engine_is_refused_without_spark(
    parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        bert4rec.prepare(messy_log(), **parameters)
    assert message in str(error.value)


def test_the_session_keeps_its_settings(spark: "SparkSession") -> None:
    names = (*spark_prepare.SETTINGS, "spark.sql.files.minPartitionNum", "spark.sql.caseSensitive")
    before = [spark.conf.get(name, None) for name in names]
    with job_settings(spark, spark_prepare.SETTINGS):
        assert [spark.conf.get(name, None) for name in names] != before
    assert [spark.conf.get(name, None) for name in names] == before


def frame_of(spark: "SparkSession", log: pl.DataFrame) -> "DataFrame":
    """One partition, so that its order is known."""
    return spark.createDataFrame(log.to_arrow(compat_level=pl.CompatLevel.oldest())).coalesce(1)


def assert_same_dataset(source: Any, folder: Path, **parameters: Any) -> bert4rec.Dataset:
    """Prepare with both engines and compare everything; what Spark made."""
    bert4rec.prepare(source, folder / "polars", **parameters)
    made = bert4rec.prepare(source, folder / "spark", engine="spark", **parameters)
    assert_same_files(folder / "polars", folder / "spark")
    ours, theirs = (
        json.loads((folder / engine / "dataset.json").read_text()) for engine in ("polars", "spark")
    )
    for manifest in (ours, theirs):
        del manifest["sha256"]
        # Spark knows rows of a file, and not its lines.
        manifest["notes"] = [note.partition(" (/")[0] for note in manifest["notes"]]
    assert ours == theirs
    return made


def assert_same_files(one: Path, other: Path) -> None:
    """All but the manifest."""
    names, others = (sorted(path.name for path in folder.iterdir()) for folder in (one, other))
    assert names == others
    different = [
        name
        for name in names
        if name != "dataset.json" and (one / name).read_bytes() != (other / name).read_bytes()
    ]
    assert not different


def test_the_driver_lets_go_of_each_partition(spark: "SparkSession") -> None:
    """However many there are, its Java holds a few of them at most."""
    from pyspark.sql import functions as F

    partitions, mib = 20, 4
    large = spark.range(0, partitions, 1, partitions).select(
        F.repeat(F.rpad(F.col("id").cast("string"), 1024, "x"), 1024 * mib).alias("text")
    )
    assert spark._jvm
    java = spark._jvm.java.lang
    runtime, used = java.Runtime.getRuntime(), list[int]()
    for number, row in enumerate(complete_log.one_by_one(large)):
        assert len(row.text) == mib << 20
        if number in (0, partitions - 1):
            java.System.gc()
            used.append((runtime.totalMemory() - runtime.freeMemory()) >> 20)
    first, last = used
    assert last - first < partitions * mib / 2
