"""What Spark tells in pages, in one sentence."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from bert4rec.errors import Bert4RecError, DataError, UsageError


@contextmanager
def as_our_errors() -> Iterator[None]:
    """Errors of Spark become ours: what an executor could not do, or what Spark says first."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise _explained(str(error)) from error


def _explained(told: str) -> Bert4RecError:
    if missing := re.search(r"ModuleNotFoundError: No module named '(\w+)", told):
        return UsageError(
            f"Spark's executors lack {missing[1]}: install bert4rec[spark,serve] in their Python, which PYSPARK_PYTHON "
            "names."
        )
    if ours := re.search(r"bert4rec\.errors\.\w+: (.+)", told):
        return DataError(ours[1])
    if raised := re.search(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", told, re.MULTILINE):
        return DataError(raised[1])
    # The last cause is the first that went wrong.
    causes = re.findall(r"^(?:Caused by: )?[\w.$]+(?:Exception|Error): (\S.*)", told, re.MULTILINE)
    return DataError(
        f"Spark could not finish: {causes[-1] if causes else told.strip().partition(chr(10))[0]}"
    )
