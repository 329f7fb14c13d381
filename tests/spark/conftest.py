"""A real cluster for the tests of Spark, and a session that works there. Without Java they are skipped."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bert4rec.spark.session import INSTALL_JAVA, PANDAS_WARNING, open_session
from tests.spoken import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.cluster import Cluster

NO_JAVA = f"Spark's tests need Java, which is not installed. {INSTALL_JAVA}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What tests themselves ask of pyspark may warn of pandas."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(f"ignore:{PANDAS_WARNING}:FutureWarning"))


@pytest.fixture(scope="session")
def java() -> None:
    if shutil.which("java") is None:
        pytest.skip(NO_JAVA)


@pytest.fixture(scope="session")
def cluster(java: None, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Cluster]":
    """A master and two workers with one core each; a test that kills one starts another."""
    from tests.spark.cluster import running_cluster

    with running_cluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark(cluster: "Cluster") -> "Iterator[SparkSession]":
    """A session on the cluster, as `open_session` makes it; whatever asks for one in these tests gets this one."""
    settings = {
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "4",
        "spark.default.parallelism": "4",
    }
    options = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    _stop_spark()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_SUBMIT_ARGS", f"{options} pyspark-shell")
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = open_session(cluster.master)
    yield session
    _stop_spark()


def _stop_spark() -> None:
    """Also the Java that other tests have started, by other settings."""
    from pyspark import SparkContext

    if SparkContext._active_spark_context:
        SparkContext._active_spark_context.stop()
    if gateway := SparkContext._gateway:
        SparkContext._gateway = SparkContext._jvm = None
        gateway.shutdown()
        gateway.proc.stdin.close()  # which ends Java
        gateway.proc.wait(PATIENCE)
