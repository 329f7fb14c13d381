"""Bulk answers on Spark: those of one machine, row by row and to the last bit, whatever is lost on the way."""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

import bert4rec
from bert4rec.artefact import read_manifest, write_manifest
from bert4rec.cli import app
from bert4rec.errors import Bert4RecError, DataError, NotFoundError, UsageError
from bert4rec.logs.columns import ColumnRequest
from bert4rec.recommend.onnx_engine import MANIFEST
from bert4rec.recommend.recommender import Recommender
from bert4rec.recommend.rules.rules import Rules
from bert4rec.spark.answering import Answering, ModelPlace
from bert4rec.spark.bulk_answers import _Job, write_answers
from bert4rec.spark.failures import explained
from bert4rec.spark.tables import lists_of
from tests.recommend.rules.goods import attributes_of_goods
from tests.service.servers import LARGE_ID, variant
from tests.spark.cluster import Gate

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.cluster import Cluster

USERS = 700


def histories(prefix: str = "i") -> list[list[str] | None]:
    """Of any length, beyond what the model looks at; with repeats, items that nobody knows, and nothing at all."""
    rng = np.random.default_rng(1)
    made: list[list[str] | None] = [
        [f"{prefix}{number}" for number in rng.integers(1, 66, length)]
        for length in rng.integers(0, 30, USERS)
    ]
    made[3], made[5], made[8] = None, [f"{prefix}99", f"{prefix}98"], [f"{prefix}{n}" for n in range(1, 61)]
    return made


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a list of items for each user."""
    path = tmp_path_factory.mktemp("lists") / "users.parquet"
    frame = pl.DataFrame({"user": [f"u{place}" for place in range(USERS)], "items": histories()})
    frame.write_parquet(path, row_group_size=100)
    return path


@pytest.fixture(scope="module")
def numbered_model(exported_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its ids are whole numbers, and its items have attributes."""
    scratch = tmp_path_factory.mktemp("numbered")
    model = variant(exported_model, scratch / "model", "numbered", whole_numbers=True)
    attributes_of_goods(scratch).write(model / "attributes.npz")
    manifest = read_manifest(model, MANIFEST, kind="model", schema=1)
    write_manifest(model, MANIFEST, manifest)
    return model


def rows_of(table: pl.DataFrame) -> list[tuple[Any, ...]]:
    return table.sort("user", "rank").rows()


def on_spark(answers: "DataFrame") -> pl.DataFrame:
    return pl.DataFrame(answers.toArrow())


def on_one_machine(model: Path, source: Path, target: Path, k: int, **rules: Any) -> pl.DataFrame:
    Recommender.load(model).recommend_file(source, target, k, **rules)
    return pl.read_parquet(target)


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"exclude_seen": False, "deny": ["i1", "i2", "nobody"]},
        {"allow": [f"i{number}" for number in range(1, 8)]},
        {"diversity": 0.5},
    ],
)
def test_answers_to_lists_are_those_of_one_machine(
    spark: "SparkSession", exported_model: Path, lists: Path, tmp_path: Path, rules: dict[str, Any]
) -> None:
    df = spark.read.parquet(str(lists)).repartition(5)
    found = on_spark(bert4rec.spark.recommend(df, exported_model, 7, **rules))
    expected = on_one_machine(exported_model, lists, tmp_path / "out.parquet", 7, **rules)
    assert found.schema == expected.schema
    assert rows_of(found) == rows_of(expected)
    assert expected["fallback"].n_unique() == 2


def test_whole_numbers_stay_numbers_and_items_are_chosen_by_attributes(
    spark: "SparkSession", numbered_model: Path, tmp_path: Path
) -> None:
    source = tmp_path / "in.parquet"
    items = [None if each is None else list(map(int, each)) for each in histories("")]
    items[0] = [LARGE_ID, 1]
    pl.DataFrame({"user_id": np.arange(USERS, dtype=np.int32), "item_ids": items}).write_parquet(source)
    for where in ({"category": ["tea", "coffee"]}, {"stock": {"<": 1}, "vegan": True}):
        found = on_spark(
            bert4rec.spark.recommend(spark.read.parquet(str(source)), numbered_model, where=where)
        )
        expected = on_one_machine(
            numbered_model, source, tmp_path / "out.parquet", 10, where=where, overwrite=True
        )
        assert found.schema == expected.schema
        assert rows_of(found) == rows_of(expected)


def log_of(lists: Sequence[list[str] | None], times: str, *, ties: bool = True) -> pl.DataFrame:
    """In no order but that of time; with ties, every third action happens at the time of the one before."""
    rows = [
        (user, item, place - (ties and place % 3 == 2))
        for user, history in enumerate(lists)
        for place, item in enumerate(history or [])
    ]
    log = pl.DataFrame(rows, schema=["user", "item", "when"], orient="row")
    shuffled = log.with_columns(turn=pl.struct("user", "when").hash(1)).sort("turn", maintain_order=True)
    moment = pl.datetime(2024, 1, 1) + pl.duration(hours=pl.col("when"))
    forms = {
        "timestamp": moment,
        "number": 10**9 + pl.col("when"),
        "iso": moment.dt.to_string("%Y-%m-%dT%H:%M:%S"),
    }
    return shuffled.select("user", "item", timestamp=forms[times])


@pytest.mark.parametrize("times", ["timestamp", "number", "iso"])
def test_answers_to_a_log_are_those_of_one_machine(
    spark: "SparkSession", exported_model: Path, tmp_path: Path, times: str
) -> None:
    source = tmp_path / "log.parquet"
    log_of(histories(), times).write_parquet(source)
    found = on_spark(bert4rec.spark.recommend(spark.read.parquet(str(source)), exported_model, 5))
    expected = on_one_machine(exported_model, source, tmp_path / "out.parquet", 5)
    assert found.schema == expected.schema
    assert rows_of(found) == rows_of(expected)


def test_titles_come_if_asked_for_and_nothing_is_computed_before(
    spark: "SparkSession", exported_model: Path, lists: Path
) -> None:
    first = spark.read.parquet(str(lists)).limit(3)
    answers = bert4rec.spark.recommend(first, exported_model, 2, titles=True)
    assert answers.columns == ["user", "rank", "item", "title", "score", "fallback"]
    for row in answers.collect():
        assert row.title == f"Film {int(row.item[1:]):03}"


def test_an_executor_loads_a_model_once_and_never_torch(
    spark: "SparkSession", exported_model: Path, lists: Path, cluster: "Cluster"
) -> None:
    version = Recommender.load(exported_model).version
    place = ModelPlace(str(exported_model), is_shipped=False, version=version)
    answering = Answering(place, Rules(), titles=False, has_tally=False)

    def look(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import os

        import pyarrow as pa

        from bert4rec.spark.answering import _loaded

        before = _loaded.cache_info().misses
        answers = sum(len(batch) for batch in answering(batches))
        loads = _loaded.cache_info().misses - before
        loaded = [name for name in ("torch", "onnxruntime") if name in sys.modules]
        facts = [[os.getpid()], [answers], [loads], [loaded]]
        yield pa.RecordBatch.from_arrays(list(map(pa.array, facts)), ["worker", "answers", "loads", "loaded"])

    df = spark.read.parquet(str(lists)).selectExpr("user", "items as item").repartition(6)
    seen = df.mapInArrow(look, "worker long, answers long, loads long, loaded array<string>").collect()
    assert sum(row.answers for row in seen) > USERS
    assert [row.loaded for row in seen] == [["onnxruntime"]] * 6
    workers = {row.worker for row in seen}
    assert sum(row.loads for row in seen) == len(workers) < 6


def test_what_executors_lack_is_named(spark: "SparkSession") -> None:
    def lacking(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import no_such_library  # type: ignore[import-not-found]

        yield no_such_library

    with pytest.raises(UsageError, match="executors lack no_such_library: install"), explained():
        spark.range(1).mapInArrow(lacking, "id long").collect()


def gated(df: "DataFrame", gate: Gate) -> "DataFrame":
    """The same rows, which nobody gets before the gate is open."""
    address = gate.address

    def wait(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import socket

        with socket.create_connection(address) as connection:
            connection.recv(1)
        yield from batches

    return df.mapInArrow(wait, df.schema)


@pytest.mark.parametrize("kind", ["lists", "log"])
def test_a_worker_that_is_killed_in_the_middle_changes_nothing(
    spark: "SparkSession", cluster: "Cluster", exported_model: Path, lists: Path, tmp_path: Path, kind: str
) -> None:
    source = lists
    if kind == "log":
        source = tmp_path / "log.parquet"
        # Without ties: it is dealt out among many tasks before it is read as a log, and then has no order of rows.
        log_of(histories(), "number", ties=False).write_parquet(source)
    recommender = Recommender.load(exported_model)
    single = recommender.recommend_file(source, tmp_path / "single.parquet", 4)
    with Gate() as gate:
        df = gated(spark.read.parquet(str(source)).coalesce(1).repartition(6), gate)
        job = _Job(lists_of(df, ColumnRequest(), where="users"), exported_model, recommender, Rules(4))
        gate.when_reached(2, cluster.workers[-1].kill)
        tally = write_answers(
            job.answers(has_tally=True), str(tmp_path / "out"), source="users", overwrite=False
        )
        assert gate.is_open
    cluster.start_worker()
    assert tally == single
    expected = rows_of(pl.read_parquet(tmp_path / "single.parquet"))
    assert rows_of(pl.read_parquet(tmp_path / "out" / "*.parquet")) == expected


def call(*arguments: str | Path) -> None:
    app(["recommend", *map(str, arguments)], result_action="return_value")


@pytest.mark.parametrize("ending", ["", ".csv", ".jsonl"])
def test_the_command_writes_a_folder_and_tells_what_one_machine_tells(
    spark: "SparkSession",
    exported_model: Path,
    lists: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    ending: str,
) -> None:
    single, target = tmp_path / "single.parquet", tmp_path / f"answers{ending}"
    request = (exported_model, "--input", lists, "-k", "3", "--deny", "i1,i2,nobody")
    call(*request, "-o", single)
    told = capsys.readouterr().err
    assert "Skipped" in told
    assert "nobody" in told
    call(*request, "-o", target, "--engine", "spark")
    assert capsys.readouterr().err == told.replace(str(single), str(target))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([single.name, target.name])
    readers: dict[str, Callable[[Path], pl.DataFrame]] = {
        ".csv": pl.read_csv,
        ".jsonl": partial(pl.read_ndjson, infer_schema_length=None),
    }
    parts = [path for path in target.iterdir() if path.name.startswith("part-")]
    found = pl.concat([readers.get(ending, pl.read_parquet)(part) for part in parts], how="vertical_relaxed")
    expected = pl.read_parquet(single)
    columns = pl.col("user"), pl.col("rank").cast(pl.Int32), pl.col("item"), pl.col("score").cast(pl.Float32)
    assert rows_of(found.select(columns)) == rows_of(expected.select(columns))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            {"model": "run"},
            NotFoundError,
            r"run is a run; expected an exported model, which `run\.export\(\)` writes",
        ),
        ({"model": "nothing"}, NotFoundError, "nothing does not exist; expected an exported model"),
        ({"--input": "nowhere"}, NotFoundError, "nowhere does not exist, and no file matches it"),
        ({"--input": "nowhere.orc"}, NotFoundError, "nowhere.orc does not exist"),
        ({"--input": "short.csv"}, DataError, "short.csv has a row with too few or too many fields: '2,i7'"),
        ({"--input": "strange.parquet"}, DataError, "No column of .* looks like the user. Columns: a, b"),
        ({"--input": "nobody.parquet"}, DataError, "No users found in"),
        (
            {"--input": "when.parquet"},
            DataError,
            "1 of 2 times in column 'time' cannot be read: 'soon'",
        ),
        ({"--item-col": "what"}, DataError, "column 'what' not found"),
        ({"-o": "taken"}, UsageError, "taken already exists"),
        ({"-o": "s3a://nowhere/out"}, UsageError, "Spark has no library for addresses of S3A"),
        ({"-o": "taken", "--overwrite": ""}, UsageError, "taken was not written by Spark"),
        ({"--threads": "2"}, UsageError, "--threads is for one machine"),
        ({"--separator": ";"}, UsageError, "--separator is for one machine"),
        ({"--where": "colour=red"}, UsageError, "colour"),
        ({"-k": "0"}, UsageError, "`k`"),
    ],
)
def test_what_cannot_be_answered_is_refused_and_nothing_is_written(
    spark: "SparkSession",
    exported_model: Path,
    lists: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    error: type[Bert4RecError],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    (tmp_path / "taken").mkdir()
    pl.DataFrame({"a": [1], "b": [2]}).write_parquet("strange.parquet")
    pl.read_parquet(lists).clear().write_parquet("nobody.parquet")
    pl.DataFrame({"user": [1, 2], "item": ["i1", "i2"], "time": ["1", "soon"]}).write_parquet("when.parquet")
    Path("short.csv").write_text("user,item,time\n1,i5,1400000000\n2,i7\n")
    before = sorted(path.name for path in tmp_path.iterdir())
    options = {"--input": str(lists), "-o": str(tmp_path / "out"), **change}
    model = Path(options.pop("model", exported_model)).absolute()
    given = [word for name, value in options.items() for word in (name, value) if word]
    given = [str(tmp_path / word) if word.startswith("no") or word == "taken" else word for word in given]
    with pytest.raises(error, match=words):
        call(model, *given, "--engine", "spark")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--history", "i1", "--engine", "spark"), "--engine spark requires --input"),
        (("--history", "i1", "--master", "yarn"), "--master requires --engine spark"),
    ],
)
def test_options_of_spark_go_together(exported_model: Path, options: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call(exported_model, *options)


def test_only_a_dataframe_of_spark_is_taken(exported_model: Path) -> None:
    with pytest.raises(UsageError, match="`df` must be a DataFrame of Spark; found list"):
        bert4rec.spark.recommend([["i1"]], exported_model)
