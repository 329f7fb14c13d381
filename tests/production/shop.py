"""A shop in production, small enough to train in seconds: its log, its store, and what its customers do next."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

import bert4rec
from bert4rec.data.dataset import Dataset
from bert4rec.store.events import Event
from bert4rec.store.transfer import import_into, opened

SHORT = {
    "training.steps": 60,
    "training.validate_every": 30,
    "training.batch_size": 64,
    "model.dim": 32,
    "model.layers": 1,
    "model.heads": 2,
}
"""Enough to learn what everybody does."""
SET = [f"--set={key}={value}" for key, value in SHORT.items()]
USERS = 200


def open_shop(folder: Path) -> Dataset:
    """A part of the built-in world, as a dataset of its own."""
    log = bert4rec.prepare("synthetic").to_polars()
    users = log["user"].unique(maintain_order=True).head(USERS)
    return bert4rec.prepare(log.filter(pl.col("user").is_in(users.implode())), folder)


def store_of(dataset: Dataset, path: Path) -> str:
    """The address of a store that knows the users of a dataset."""
    address = f"sqlite:///{path}"
    import_into(address, dataset)
    return address


def moments(count: int, day: int) -> list[datetime]:
    """Each later than the one before, on one of the last days."""
    begin = datetime.now(UTC).replace(microsecond=0) - timedelta(days=30 - day)
    return [begin + timedelta(seconds=second) for second in range(count)]


def fashion(dataset: Dataset, old: str, new: str, day: int) -> list[dict[str, str]]:
    """As requests send them: on this day, most users choose an item that was there, and then one that was not."""
    users = dataset.users()["id"].head(120).to_list()
    return [
        {
            "event_id": f"{new}-{user}-{item}",
            "user_id": user,
            "item_id": item,
            "timestamp": moment.isoformat(),
        }
        for item, when in ((old, moments(len(users), day)), (new, moments(2 * len(users), day)[len(users) :]))
        for user, moment in zip(users, when, strict=True)
    ]


def add(address: str, events: Sequence[dict[str, str]]) -> None:
    """Into the store, without a service."""
    with opened(address) as store:
        store.add(
            [
                Event(
                    each["event_id"],
                    each["user_id"],
                    each["item_id"],
                    round(datetime.fromisoformat(each["timestamp"]).timestamp() * 1_000_000),
                )
                for each in events
            ]
        )
