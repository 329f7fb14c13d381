"""A small catalogue with attributes of every kind, and what each condition should find in it, item by item."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl

from bert4rec.recommend.rules.attributes import Attributes

NUM_GOODS = 60
GOODS = pl.DataFrame(
    {
        "number": range(1, NUM_GOODS + 1),
        "id": [f"i{number}" for number in range(1, NUM_GOODS + 1)],
        "count": range(NUM_GOODS, 0, -1),
        "title": [f"Film {number:03}" for number in range(1, NUM_GOODS + 1)],
        "category": [("tea", "coffee", "Zoë's", None)[number % 4] for number in range(NUM_GOODS)],
        "price": [None if number % 7 == 0 else number / 4 for number in range(NUM_GOODS)],
        "stock": [number % 5 for number in range(NUM_GOODS)],
        "vegan": [(True, False, None)[number % 3] for number in range(NUM_GOODS)],
        "tags": [(["hot", "old"], ["cold"], [], None)[number % 4] for number in range(NUM_GOODS)],
        "sizes": [list(range(number % 4)) for number in range(NUM_GOODS)],
        "released": [date(2020 + number % 5, 1, 31) for number in range(NUM_GOODS)],
        "seen": [datetime(2024, 1, 1, number % 24, tzinfo=UTC) for number in range(NUM_GOODS)],
        "parts": [{"a": number} for number in range(NUM_GOODS)],
    }
)
ROWS = GOODS.to_dicts()


def attributes_of_goods(folder: Path) -> Attributes:
    GOODS.write_parquet(folder / "items.parquet")
    return Attributes.of_table(folder / "items.parquet")


def numbers_where(fulfils: Callable[[dict[str, Any]], bool]) -> list[int]:
    return [row["number"] for row in ROWS if fulfils(row)]
