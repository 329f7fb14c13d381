"""Actions on the executors, which are filtered as those in memory are."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from bert4rec.spark.complete_log import Shelf, sent, shuffled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class SparkActions:
    """Actions of which only counts come to the driver."""

    rows: "DataFrame"
    """`row`, `user`, `item` and, if `has_times`, `time`."""
    has_times: bool
    users: "DataFrame"
    """`user`, `count`, and `first`: the row in which the user first appears, whatever was filtered out since."""
    items: "DataFrame"
    """Likewise of items."""
    shelf: Shelf

    @classmethod
    def of(cls, rows: "DataFrame", shelf: Shelf) -> "SparkActions":
        """All actions of a log, counted when that is asked for."""
        from pyspark.sql import functions as F

        users, items = (
            shelf.keep(rows.groupBy(role).agg(F.count("*").alias("count"), F.min("row").alias("first")))
            for role in ("user", "item")
        )
        return cls(rows, "time" in rows.columns, users, items, shelf)

    def __len__(self) -> int:
        return self._size[0]

    def count_users(self) -> int:
        """How many users have an action."""
        return self._size[1]

    def since(self, moment: int) -> "SparkActions":
        """Only actions at or after a moment."""
        from pyspark.sql import functions as F

        return self._keep(self.rows.filter(F.col("time") >= moment))

    def until(self, moment: int) -> "SparkActions":
        """Only actions before a moment."""
        from pyspark.sql import functions as F

        return self._keep(self.rows.filter(F.col("time") < moment))

    def without_duplicates(self) -> "SparkActions":
        """Only the first of several actions that agree in user, item and time."""
        from pyspark.sql import functions as F

        return self._keep(self.rows.groupBy("user", "item", "time").agg(F.min("row").alias("row")))

    def without_repeats(self) -> "SparkActions":
        """Only a user's first action on an item."""
        from pyspark.sql import functions as F

        order = ["time", "row"] if self.has_times else ["row"]
        first = F.min(F.struct(*order)).alias("first")
        return self._keep(self.rows.groupBy("user", "item").agg(first).select("user", "item", "first.*"))

    def with_items_of(self, least: int) -> "SparkActions":
        """Only items with at least so many actions."""
        return self._frequent("item", self.items, least)

    def with_users_of(self, least: int) -> "SparkActions":
        """Only users with at least so many actions."""
        return self._frequent("user", self.users, least)

    @cached_property
    def _size(self) -> tuple[int, int]:
        from pyspark.sql import functions as F

        found = self.users.agg(F.sum("count").alias("actions"), F.count("*").alias("users")).first()
        assert found is not None
        return found.actions or 0, found.users

    def _frequent(self, role: str, counted: "DataFrame", least: int) -> "SparkActions":
        from pyspark.sql import functions as F

        is_frequent = F.col("count") >= least
        found = counted.agg(F.count_if(~is_frequent).alias("rare")).first()
        assert found is not None
        if not found.rare:
            return self
        frequent = counted.filter(is_frequent)
        kept = self._keep(self.rows.join(sent(frequent.select(role)), role, "left_semi"))
        return replace(kept, users=frequent) if role == "user" else replace(kept, items=frequent)

    def _keep(self, rows: "DataFrame") -> "SparkActions":
        """Some of the actions, counted anew."""
        rows = self.shelf.keep_apart(rows)
        users, items = (
            self.shelf.keep(rows.groupBy(role).count().join(shuffled(known.select(role, "first")), role))
            for role, known in (("user", self.users), ("item", self.items))
        )
        return SparkActions(rows, self.has_times, users, items, self.shelf)
