"""What users did, as requests meet it: events in and out of the store, each kind of call in a lane of its own.

The docstrings of the operations are their descriptions in the OpenAPI document.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from bert4rec.service.batcher import Batcher, OverloadedError, TooLateError, lane, outcome_of
from bert4rec.service.contract import event_schemas
from bert4rec.service.contract import schemas as api
from bert4rec.service.contract.event_reading import event_as_sent, read_events
from bert4rec.service.recommending import Content
from bert4rec.service.served_models import MAX_WAIT, MAX_WAITING, TIMEOUT, ModelVersions, ServedModel
from bert4rec.service.telemetry.counters import Metrics, StoreOperation, StoreResult
from bert4rec.store.events import (
    Event,
    EventConflictError,
    Forgotten,
    HistoryStore,
    StoreError,
    StoreFullError,
)

Result = TypeVar("Result")
MAX_WAITING_EVENTS = 16_000
"""Events, not requests: one of these may hold a thousand. About 100 MB at the very most."""
STEADY = 1.0
"""Seconds without a failure after which the store works again: where every second request fails, it does not."""
log = logging.getLogger("bert4rec.service")


class StoredEvents:
    """The store, asked by many requests at once. To be used from one event loop."""

    def __init__(self, store: HistoryStore, versions: ModelVersions, metrics: Metrics) -> None:
        self.store, self._versions, self._metrics = store, versions, metrics
        self._last_failures: dict[str, float] = {}
        """When reads, writes and deletions failed last, if they do not work now."""
        self._commits: Batcher[list[Event], list[bool]] = Batcher(
            self._add,
            name="store-write",
            max_batch=256,
            max_waiting=MAX_WAITING_EVENTS,
            timeout=TIMEOUT,
            size=len,
        )
        self._reads = lane("store-read", max_waiting=MAX_WAITING, max_wait=MAX_WAIT, timeout=TIMEOUT)
        self._changes = lane("store-change", max_waiting=64, timeout=TIMEOUT)
        self._looks = lane("store-look", max_waiting=64, timeout=TIMEOUT)
        metrics.follow(metrics.store_writes_waiting, lambda: self._commits.waiting)
        if store.path:
            metrics.follow_store_file(store.path)

    async def start(self) -> None:
        """Ask the store once, so that a wrong address is in the log at once; it may come back later."""
        with suppress(StoreError, TooLateError, OverloadedError):
            await self._newest("", 1)

    async def stop(self) -> None:
        """Finish what was accepted, unless the store hangs, then let go of it."""
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._stop_lanes()
        except TimeoutError:
            log.error("The history store does not respond; requests that wait for it are abandoned.")
            self.store.interrupt()
            with suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUT):
                    await self._stop_lanes()

    async def _stop_lanes(self) -> None:
        for batcher in (self._reads, self._commits, self._changes, self._looks):
            await batcher.stop()

    async def add_events(self, request: event_schemas.EventsRequest) -> Content:
        """Store what users did. Acknowledged events are on disk. The same event again counts once; another event with
        an id that was used is refused (409), and nothing of the request is stored."""
        read = read_events(request, self._versions.current.recommender.catalogue)
        try:
            new = await self.ask_store(self._commits, read.events, "write") if read.events else []
        except EventConflictError as conflict:
            raise read.problem_of(conflict) from conflict
        counts = {"accepted": sum(new), "duplicates": len(new) - sum(new)}
        for result, count in (*counts.items(), ("rejected", len(read.rejected))):
            self._metrics.events.labels(result).inc(count)
        return {**counts, "rejected": read.rejected, "unknown_items": read.unknown_items}

    def _add(self, requests: list[list[Event]]) -> Sequence[list[bool] | Exception]:
        """Events of many requests in one commit, unless one of them is to be refused."""
        together = [event for events in requests for event in events]
        try:
            new = iter(self.with_store("write", self.store.add, together))
        except EventConflictError:
            return [
                outcome_of(partial(self.with_store, "write", self.store.add, events)) for events in requests
            ]
        return [[next(new) for _ in events] for events in requests]

    async def remove_event(self, request: event_schemas.EventRequest) -> Content:
        """Delete one stored event."""
        return await self._delete(self.store.remove, request.event_id)

    async def history(self, request: api.HistoryRequest) -> Content:
        """A user's newest events, oldest first. A user without events has an empty history."""
        events = await self._newest(request.user_id, request.limit)
        catalogue = self._versions.current.recommender.catalogue
        return {"events": [event_as_sent(event, catalogue) for event in events]}

    async def forget(self, request: api.UserRequest) -> Content:
        """Delete all that is stored of a user."""
        return await self._delete(self.store.forget, request.user_id)

    async def _delete(self, delete: Callable[[str], Forgotten], of: str) -> Content:
        return (await self.change("delete", partial(delete, of)))._asdict()

    async def _newest(self, user_id: str, limit: int) -> list[Event]:
        return await self.read(partial(self.store.newest, user_id, limit))

    async def items_of(self, request: api.ByUser, model: ServedModel, *, since: float) -> list[str]:
        """A user's history, as a model is asked by it; `since` is when the request began."""
        return await self.read(self._history_of(request, model), since=since)

    async def items_of_all(
        self, requests: Sequence[tuple[api.ByUser, ServedModel]]
    ) -> list[list[str] | Exception]:
        """The history of each user, or why there is none. All are read, or none."""
        reads = [partial(self.with_store, "read", self._history_of(*each)) for each in requests]
        return await self._reads.ask_all(reads)

    def _history_of(self, request: api.ByUser, model: ServedModel) -> Callable[[], list[str]]:
        """A read of as many of the newest as a model looks at; before them all others, if these are not recommended
        again."""
        recommender = model.recommender
        limit = max(api.MAX_HISTORY, recommender.max_history)
        leaves_out = recommender.exclude_seen if request.exclude_seen is None else request.exclude_seen

        def newest() -> list[str]:
            return [event.item_id for event in self.store.newest(request.user_id, limit)]

        return partial(self.store.items_of, request.user_id, limit) if leaves_out else newest

    async def read(self, call: Callable[[], Result], *, since: float | None = None) -> Result:
        """What a call that reads the store gives; it is made in the thread of reads."""
        found: Result = await self.ask_store(
            self._reads, partial(self.with_store, "read", call), "read", since=since
        )
        return found

    async def change(self, what: StoreOperation, call: Callable[[], Result]) -> Result:
        """What a call gives that changes the store other than by events; these are few."""
        found: Result = await self.ask_store(self._changes, partial(self.with_store, what, call), what)
        return found

    async def look(self, call: Callable[[], Result]) -> Result:
        """What a call that reads the store gives, on behalf of no request: it waits for none of them, and is not
        counted."""
        found: Result = await self._looks.ask(call)
        return found

    async def ask_store(
        self, lane: Batcher[Any, Any], question: object, what: StoreOperation, *, since: float | None = None
    ) -> Any:
        try:
            return await lane.ask(question, since=since)
        except TooLateError:
            self._metrics.count_store(what, "late", TIMEOUT)
            self._note_failure(what, "the history store does not respond in time")
            raise

    def with_store(self, what: StoreOperation, call: Callable[..., Result], *arguments: object) -> Result:
        """Call the store; the log says when it fails and when it works again, not once for every request."""
        began = time.monotonic()
        outcome: StoreResult = "ok"
        try:
            result = call(*arguments)
        except EventConflictError:
            outcome = "conflict"
            raise
        except StoreError as error:
            outcome = "full" if isinstance(error, StoreFullError) else "unavailable"
            self._note_failure(what, error)
            raise
        finally:
            self._metrics.count_store(what, outcome, time.monotonic() - began)
        if what in self._last_failures and time.monotonic() - self._last_failures[what] > STEADY:
            del self._last_failures[what]
            log.info("The history store works again: requests that %s events are answered.", what)
        return result

    def _note_failure(self, what: str, reason: object) -> None:
        if what not in self._last_failures:
            log.error("Requests that %s stored events fail: %s.", what, reason)
        self._last_failures[what] = time.monotonic()
