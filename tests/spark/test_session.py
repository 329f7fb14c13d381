"""A Spark session: the caller's own, or a new one; what cannot work is refused in a moment."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bert4rec import extras
from bert4rec.errors import Bert4RecError, NotFoundError, UsageError
from bert4rec.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.cluster import Cluster


def test_a_session_works_on_the_cluster_in_utc_and_is_used_again(
    spark: "SparkSession", cluster: "Cluster"
) -> None:
    assert open_session() is spark
    assert open_session(cluster.master) is spark
    assert spark.sparkContext.master == cluster.master
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.range(10).count() == 10


def test_another_master_than_that_of_the_running_session_is_refused(spark: "SparkSession") -> None:
    with pytest.raises(UsageError, match=r"`master='local\[1\]'`: Spark is already running here"):
        open_session("local[1]")


@pytest.fixture
def nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)


@pytest.mark.parametrize(
    ("master", "error", "words"),
    [
        ("spark://127.0.0.1:1", NotFoundError, "cannot be reached: Connection refused"),
        ("spark://127.0.0.1", UsageError, "needs a host and a port"),
        ("spark://127.0.0.1:99999999", NotFoundError, "cannot be reached"),
        ("http://127.0.0.1:80", UsageError, "is no master of Spark"),
    ],
)
@pytest.mark.usefixtures("java", "nothing_running")
def test_a_master_that_cannot_be_used_is_refused_before_spark_starts(
    master: str, error: type[Bert4RecError], words: str
) -> None:
    with pytest.raises(error, match=words):
        open_session(master)


@pytest.mark.usefixtures("nothing_running")
def test_missing_java_is_named_with_the_way_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UsageError, match=r"Spark needs Java 17 .* apt-get install openjdk-17-jre-headless"):
        open_session("local[1]")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"JAVA_HOME is .* where no Java can be started"):
        open_session("local[1]")


@pytest.mark.usefixtures("nothing_running")
def test_a_java_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UsageError, match=r"Java 17 or newer; .* is Java 11"):
        open_session("local[1]")


def test_missing_pyspark_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'bert4rec\[spark\]'"):
        open_session()
