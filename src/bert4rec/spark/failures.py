"""What Spark says when something fails, in one sentence of ours."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from bert4rec.errors import DataError, NotFoundError


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of Spark into ours."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise _explain(str(error)) from error


def _explain(text: str) -> DataError | NotFoundError:
    if found := re.search(r"PATH_NOT_FOUND\] Path does not exist: (\S+?)\.? SQLSTATE", text):
        return NotFoundError(f"{found[1]} does not exist.")
    if found := re.search(
        r"MALFORMED_CSV_RECORD\] Malformed CSV record: (.*?)( SQLSTATE|$)", text, re.MULTILINE
    ):
        return DataError(
            f"{_file(text)} has a row with too few or too many fields: {found[1][:80]!r}. If quoted fields hold line "
            "ends, write the log as Parquet, or use `engine='polars'`."
        )
    if found := re.search(r"CSV header does not conform to the schema\.\s*Header: (.*)\s*Schema: (.*)", text):
        return DataError(
            f"{_file(text)} has the columns {found[1]}; expected those of the first file, {found[2]}."
        )
    if found := re.search(r"MALFORMED_RECORD_IN_PARSING\S* .*?: (.*)", text):
        return DataError(f"{_file(text)} has a line that is not a JSON object: {found[1][:80]}")
    # The innermost cause says most.
    causes = re.findall(r"^(?:Caused by: |: )?[\w.$]+(?:Exception|Error): (.+)$", text, re.MULTILINE)
    reason = causes[-1] if causes else text.strip().splitlines()[0]
    return DataError(f"Spark failed: {re.sub(r' SQLSTATE: .*', '', reason)[:300]}")


def _file(text: str) -> str:
    found = re.search(r"reading file (?:file://)?(\S+?)\.?\s+SQLSTATE", text)
    return found[1] if found else "The log"
