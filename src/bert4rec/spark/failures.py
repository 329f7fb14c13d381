"""What Spark says in pages when something fails, in one sentence of ours."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from bert4rec.errors import Bert4RecError, DataError, NotFoundError, UsageError

OUT_OF_MEMORY = "Not enough memory to build and broadcast", "Java heap space", "TaskResultLost"
"""The last: an executor was done, and what it had found did not arrive here."""


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of Spark, and of what runs on its executors, into ours."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise _explain(str(error)) from error


def _explain(text: str) -> Bert4RecError:
    if explanation := _about_input(text) or _about_unlike_files(text) or _about_cluster(text):
        return explanation
    # The innermost cause says most.
    causes = re.findall(r"^(?:Caused by: |: )?[\w.$]+(?:Exception|Error): (\S.*)$", text, re.MULTILINE)
    reason = causes[-1] if causes else text.strip().splitlines()[0]
    return DataError(f"Spark failed: {re.sub(r' SQLSTATE: .*', '', reason)[:300]}")


def _about_input(text: str) -> Bert4RecError | None:
    if found := re.search(r"PATH_NOT_FOUND\] Path does not exist: (\S+?)\.? SQLSTATE", text):
        return NotFoundError(f"{found[1]} does not exist.")
    if found := re.search(
        r"MALFORMED_CSV_RECORD\] Malformed CSV record: (.*?)( SQLSTATE|$)", text, re.MULTILINE
    ):
        return DataError(
            f"{_file(text)} has a row with too few or too many fields: {found[1][:80]!r}. If quoted fields hold line "
            "ends, write the log as Parquet, or use `engine='embedded'`."
        )
    if found := re.search(r"MALFORMED_RECORD_IN_PARSING\S* .*?: (.*)", text):
        return DataError(f"{_file(text)} has a line that is not a JSON object: {found[1][:80]}")
    return None


def _about_unlike_files(text: str) -> Bert4RecError | None:
    """Of the files of a folder, the first one decides how all are written."""
    alike = "Write all files alike, or use `engine='embedded'`."
    if found := re.search(r"CSV header does not conform to the schema\.\s*Header: (.*)\s*Schema: (.*)", text):
        return DataError(
            f"{_file(text)} has the columns {found[1]}; expected those of the first file, {found[2]}. {alike}"
        )
    if found := re.search(r"Header length: (\d+), schema size: (\d+)", text):
        return DataError(
            f"{_file(text)} is separated by something else than the first file, or has another number of columns: "
            f"found {found[1]}, expected {found[2]}. {alike}"
        )
    if found := re.search(
        r"Parquet column \[(.+?)\]\. Expected Spark type (\S+), actual Parquet type (\w+)", text
    ):
        return DataError(
            f"{_file(text)}: column {found[1]} is stored as {found[3]}, and in the first file as {found[2]}. {alike}"
        )
    return None


def _about_cluster(text: str) -> Bert4RecError | None:
    if lacking := re.search(r"No FileSystem for scheme \"(\w+)\"|Class \S+\.(\w+)FileSystem not found", text):
        return UsageError(
            f"Spark has no library for addresses of {lacking[1] or lacking[2]}. Name it with spark.jars.packages, such "
            "as org.apache.hadoop:hadoop-aws for s3a://."
        )
    if missing := re.search(r"ModuleNotFoundError: No module named '(\w+)", text):
        return UsageError(
            f"Spark's executors lack {missing[1]}: install bert4rec[spark,serve] in their Python, which PYSPARK_PYTHON "
            "names."
        )
    if any(sign in text for sign in OUT_OF_MEMORY):
        return UsageError(
            "Java ran out of memory. Give this machine's more with SPARK_DRIVER_MEMORY, such as 4g, and that of "
            "executors with the setting spark.executor.memory."
        )
    if ours := re.search(r"bert4rec\.errors\.\w+: (.+)", text):
        return DataError(ours[1])
    if raised := re.search(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", text, re.MULTILINE):
        return DataError(raised[1])
    return None


def _file(text: str) -> str:
    found = re.search(r"reading file (?:file://)?(\S+?)\.?\s+(?:SQLSTATE|Data type)", text)
    return found[1] if found else "The log"
