"""What runs on Spark's executors: an exported model answers the users of one partition. Neither torch nor pandas.

A Python worker of Spark lives on from task to task, and so does the model that it has loaded.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from bert4rec.recommend.rules.rules import Rules

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from bert4rec.recommend.bulk import Tally
    from bert4rec.recommend.recommender import Recommender

TALLY = "tally"
"""The column of counts: users, unknown actions, fallbacks. One row for each batch of users has it, and nothing else."""


@dataclass(frozen=True)
class ModelPlace:
    """Where executors find a model."""

    folder: str
    """On this machine; if it was shipped, its name among the files of the Spark application."""
    is_shipped: bool
    version: str
    quantised: bool = True

    def load(self) -> "Recommender":
        """The model, which is read once by each Python worker and version."""
        return _loaded(self)


@lru_cache(maxsize=2)
def _loaded(place: ModelPlace) -> "Recommender":
    from bert4rec.recommend.recommender import Recommender

    folder = place.folder
    if place.is_shipped:
        from pyspark import SparkFiles

        folder = SparkFiles.get(folder)
    # One thread for each task. The driver has made sure that it is no degenerate model.
    return Recommender.load(Path(folder), threads=1, quantised=place.quantised, force=True)


@dataclass(frozen=True)
class Answering:
    """From Arrow batches with the columns `user` and `item`, a list, to batches of answers."""

    place: ModelPlace
    rules: Rules
    titles: bool
    has_tally: bool
    """Whether rows with counts come among the answers, in a column of their own."""

    def __call__(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        os.environ.setdefault("POLARS_MAX_THREADS", "1")  # before polars is imported
        import polars as pl

        from bert4rec.recommend.bulk import answer_lists, most_users

        recommender = self.place.load()
        question, _ = recommender.question((), self.rules)
        leaves_out_seen = self.rules.leave_out_seen(by_default=recommender.exclude_seen)
        at_once = most_users(recommender, self.rules.k)
        for batch in batches:
            lists = pl.DataFrame(batch)
            for first in range(0, lists.height, at_once):
                answers, tally = answer_lists(
                    recommender,
                    lists[first : first + at_once],
                    question,
                    leaves_out_seen=leaves_out_seen,
                    titles=self.titles,
                )
                if self.has_tally:
                    answers = _with_tally(answers, tally)
                yield from _as_batches(answers, batch.schema.field("user").type)


def _with_tally(answers: "pl.DataFrame", tally: "Tally") -> "pl.DataFrame":
    import polars as pl

    counts = pl.Series(TALLY, [[tally.users, tally.unknown, tally.fallbacks]], dtype=pl.List(pl.Int64))
    return pl.concat([answers, counts.to_frame()], how="diagonal")


def _as_batches(answers: "pl.DataFrame", user: "pa.DataType") -> "list[pa.RecordBatch]":
    """With the types that Spark expects: text as it knows it, users as they came."""
    import polars as pl
    import pyarrow as pa

    table = answers.to_arrow(compat_level=pl.CompatLevel.oldest())
    types = {"user": user, TALLY: pa.list_(pa.int64())}
    fields = [pa.field(field.name, types.get(field.name) or _plain(field.type)) for field in table.schema]
    batches: list[pa.RecordBatch] = table.cast(pa.schema(fields)).to_batches()
    return batches


def _plain(kind: "pa.DataType") -> "pa.DataType":
    import pyarrow as pa

    return pa.string() if pa.types.is_large_string(kind) else kind
