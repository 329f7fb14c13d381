"""Apache Spark as an engine, for logs and users that live in a lake: the same answers as on one machine.

    answers = bert4rec.spark.recommend(df, "model", k=10)     # a Spark DataFrame in, another one out

pyspark is imported when it is first needed.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert4rec.spark.bulk_answers import recommend

__all__ = ["recommend"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bert4rec.spark import bulk_answers

    return getattr(bulk_answers, name)
