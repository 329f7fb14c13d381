"""The databases of the service's tests, and stores in them."""

from collections.abc import Callable, Iterator

import pytest

from bert4rec.store.events import HistoryStore, open_store
from tests.service.conftest import postgres, store_url

__all__ = ["postgres", "store_url"]

Open = Callable[[], HistoryStore]


@pytest.fixture
def open_again(store_url: str) -> Iterator[Open]:
    """Opens one and the same store, as often as it is called."""
    opened: list[HistoryStore] = []

    def open_one() -> HistoryStore:
        opened.append(open_store(store_url))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_again: Open) -> HistoryStore:
    return open_again()
