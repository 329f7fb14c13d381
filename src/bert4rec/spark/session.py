"""The Spark session to work in: the caller's own, or a new one.

What can be found out in a moment is refused before Spark starts, which would try for minutes and answer in pages:
pyspark or Java that is missing, and a master that nobody can reach.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from bert4rec.errors import NotFoundError, UsageError
from bert4rec.extras import require_spark
from bert4rec.machine import usable_cores

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
INSTALL_JAVA = "On Debian or Ubuntu: apt-get install openjdk-17-jre-headless."
MASTERS = "local[2], spark://HOST:7077, yarn or k8s://https://HOST:443"
SECONDS_TO_REACH = 5.0
"""How long a master may take to accept a connection."""
PANDAS_WARNING = "PySpark does not yet fully support pandas"
"""How a warning begins that tells nothing to us: Arrow carries all our tables, pandas none."""


def open_session(master: str | None = None) -> "SparkSession":
    """The caller's Spark session if there is one, otherwise a new one.

    A new session computes in UTC, exchanges tables by Arrow and keeps its logs from the terminal. What the user has
    configured (`spark-defaults.conf`, `PYSPARK_SUBMIT_ARGS`) is kept.

    Parameters
    ----------
    master
        Where to compute, such as "local[2]", "spark://HOST:7077" or "yarn". None: as configured, otherwise on this
        machine with all its cores.
    """
    require_spark()
    with without_pandas_warning():
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        context = SparkContext._active_spark_context
        if context is not None:
            if master not in (None, context.master):
                raise UsageError(
                    f"`master={master!r}`: Spark is already running here, with the master {context.master!r}. "
                    "Stop that session first, or leave out `master`."
                )
            return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        if master is not None:
            _check_master(master)
        _require_java()
        conf = _configuration(master)
        if master is None:
            _check_master(conf.get("spark.master") or "")
        return _new_session(conf)


@contextmanager
def without_pandas_warning() -> Iterator[None]:
    """Keep the warning of pyspark from the user that it may not support this version of pandas."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", PANDAS_WARNING, FutureWarning)
        yield


@contextmanager
def job_settings(spark: "SparkSession", more: Mapping[str, str] | None = None) -> Iterator[None]:
    """Settings of the session that we rely on where files are read, and `more`; in the end they are as they were."""
    wanted = {
        # Without this, files are split by how many executors there happen to be, so not twice in the same way.
        "spark.sql.files.minPartitionNum": str(spark.sparkContext.defaultParallelism),
        "spark.sql.caseSensitive": "true",
        "spark.sql.legacy.parquet.nanosAsLong": "true",  # Spark reads no such times; we do.
        **(more or {}),
    }
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def _configuration(master: str | None) -> "SparkConf":
    """What the user has configured, and our choices for what was left open. Starts Java, which reads it."""
    from pyspark import SparkConf

    _start_java()
    conf = SparkConf()
    if master is not None:
        conf.setMaster(master)
    elif (
        conf.get("spark.master", "local[*]") == "local[*]"
    ):  # also what Spark itself takes: all cores, whatever the quota
        conf.setMaster(f"local[{usable_cores()}]")
    if (conf.get("spark.master") or "").startswith("local"):
        conf.setIfMissing("spark.driver.host", "localhost")  # no machine needs to find this one
        conf.setIfMissing("spark.pyspark.python", os.environ.get("PYSPARK_PYTHON", sys.executable))
    ignored = f"ignore:{PANDAS_WARNING}:FutureWarning"
    for name, value in {
        "spark.app.name": "bert4rec",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.executorEnv.PYTHONWARNINGS": ",".join(
            filter(None, [os.environ.get("PYTHONWARNINGS"), ignored])
        ),
    }.items():
        conf.setIfMissing(name, value)
    return conf


def _start_java() -> None:
    """Start Spark's Java, unless it runs. What it writes to the terminal, in pages, is shown if it fails to start."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    with TemporaryFile() as told:
        try:
            gateway = launch_gateway(popen_kwargs={"stderr": told})
        except PySparkRuntimeError as error:
            told.seek(0)
            why = told.read().decode(errors="replace").strip().rpartition("\n")[2] or str(error)
            raise UsageError(f"Spark cannot be started: {why}") from error
    SparkContext._ensure_initialized(gateway=gateway)


def _new_session(conf: "SparkConf") -> "SparkSession":
    from pyspark.sql import SparkSession

    # pyspark asks the environment alone for the Python of its workers, and only while it starts.
    before = os.environ.get("PYSPARK_PYTHON")
    if python := conf.get("spark.pyspark.python"):
        os.environ["PYSPARK_PYTHON"] = python
    try:
        return SparkSession.builder.config(conf=conf).getOrCreate()
    finally:
        if before is not None:
            os.environ["PYSPARK_PYTHON"] = before
        else:
            os.environ.pop("PYSPARK_PYTHON", None)


def _check_master(master: str) -> None:
    """Refuse a master that Spark does not understand, or that does not answer."""
    if re.fullmatch(r"local(\[.+\])?|local-cluster\[.+\]|yarn|k8s://.+", master):
        return
    if not master.startswith("spark://"):
        raise UsageError(f"`master={master!r}` is no master of Spark. Expected something like {MASTERS}.")
    addresses = [address.rpartition(":") for address in master.removeprefix("spark://").split(",")]
    if not all(host and port.isdigit() for host, _, port in addresses):
        raise UsageError(f"`master={master!r}` needs a host and a port, as in spark://HOST:7077.")
    # One of several is at work, the others wait.
    problems = [why for host, _, port in addresses if (why := _why_unreachable(host, int(port)))]
    if len(problems) == len(addresses):
        raise NotFoundError(
            f"The Spark master {master} cannot be reached: {problems[0]}. Is it running, and is the address right?"
        )


def _why_unreachable(host: str, port: int) -> str | None:
    try:
        with socket.create_connection((host.strip("[]"), port), SECONDS_TO_REACH):
            return None
    except (OSError, OverflowError) as error:
        return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _require_java() -> None:
    """Refuse to go on without a Java that Spark runs on."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise UsageError(f"Spark needs Java {OLDEST_JAVA} or newer, and there is none. {INSTALL_JAVA}")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
    except OSError as error:
        raise UsageError(
            f"JAVA_HOME is {home}, where no Java can be started ({error.strerror}). {INSTALL_JAVA}"
        ) from error
    version = re.search(r'version "(?:1\.)?(\d+)', told)
    if version and int(version[1]) < OLDEST_JAVA:
        raise UsageError(
            f"Spark needs Java {OLDEST_JAVA} or newer; {java} is Java {version[1]}. {INSTALL_JAVA}"
        )
