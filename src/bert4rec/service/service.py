"""What each request does: from a checked request to the content of its response. Independent of HTTP.

The docstrings of the operations are their descriptions in the OpenAPI document.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from pydantic import TypeAdapter

from bert4rec import __version__
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.service import event_schemas
from bert4rec.service import schemas as api
from bert4rec.service.batcher import Batcher, OverloadedError, TooLateError, lane, outcome_of
from bert4rec.service.event_reading import event_as_sent, read_events
from bert4rec.service.http.messages import NO_STORE, Response
from bert4rec.service.problems import ProblemError
from bert4rec.service.recommending import (
    Asked,
    Content,
    Plan,
    Room,
    batch_parts,
    milliseconds_since,
    name_of,
    results_of,
    scored,
)
from bert4rec.service.served_models import MAX_WAIT, MAX_WAITING, ModelVersions, ServedModel
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
TIMEOUT = 5.0
MAX_WAITING_EVENTS = 16_000
"""Events, not requests: one of these may hold a thousand. About 100 MB at the very most."""
MAX_ITEMS_IN_BATCHES = 2**20
"""Recommended by batches whose answers have not been read yet: 30 MB at most."""
STEADY = 1.0
"""Seconds without a failure after which the store works again: where every second request fails, it does not."""
log = logging.getLogger("bert4rec.service")
check_request: TypeAdapter[api.ByHistory | api.ByUser] = TypeAdapter(api.RecommendRequest)


class Service:
    """Models, store and metrics, joined. To be used from one event loop."""

    def __init__(self, versions: ModelVersions, store: HistoryStore, metrics: Metrics) -> None:
        self.versions, self.store, self.metrics = versions, store, metrics
        self.is_ready = False
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
        # Reads are many and short; explanations and searches are few and longer. Neither must wait for the other.
        self._reads = lane("store-read", max_waiting=MAX_WAITING, max_wait=MAX_WAIT, timeout=TIMEOUT)
        self._deletions = lane("store-delete", max_waiting=64, timeout=TIMEOUT)
        self._side = lane("side", max_waiting=64, timeout=TIMEOUT)
        self._room = Room(MAX_ITEMS_IN_BATCHES)
        metrics.follow(metrics.queue_depth, lambda: versions.current.batcher.waiting)
        metrics.follow(metrics.queue_oldest_seconds, lambda: versions.current.batcher.oldest)
        metrics.follow(metrics.store_writes_waiting, lambda: self._commits.waiting)
        if store.path:
            metrics.follow_store_file(store.path)

    async def start(self) -> None:
        """Ask the store once, so that a wrong address is in the log at once; it may come back later."""
        with suppress(StoreError, TooLateError, OverloadedError):
            await self._newest("", 1)
        self.is_ready = True

    async def keep_metrics_fresh(self) -> None:
        """Forever: with several workers, a page shows what each of them wrote last."""
        while True:
            self.metrics.refresh()
            await asyncio.sleep(1.0)

    async def stop(self) -> None:
        """Finish what was accepted, unless the store hangs, then let go of everything."""
        self.is_ready = False
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._stop_lanes()
        except TimeoutError:
            log.error("The history store does not respond; requests that wait for it are abandoned.")
            self.store.interrupt()
            with suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUT):
                    await self._stop_lanes()
        await self.versions.stop()
        self.store.close()

    async def _stop_lanes(self) -> None:
        for batcher in (self._reads, self._commits, self._deletions, self._side):
            await batcher.stop()

    @property
    def is_overloaded(self) -> bool:
        return self.versions.current.batcher.is_full

    # Recommendations

    async def recommend(self, request: api.RecommendRequest) -> Content:
        """Items that should come next, by a history that is sent or by a user's stored events."""
        began = time.monotonic()
        history: Sequence[str | int]
        if isinstance(request, api.ByHistory):
            history = request.history
        else:
            history = await self._ask_store(self._reads, self._items_of(request), "read", since=began)
        plan = self._plan(self.versions.current, request, history)
        return plan.content(await plan.model.batcher.ask(plan.question, since=began), began)

    async def rank(self, request: api.RankRequest) -> Content:
        """The given items, best first."""
        began = time.monotonic()
        asked = api.ByHistory.model_construct(
            history=request.history, k=len(request.items), exclude_seen=False, candidates=request.items
        )
        plan = Plan.of(self.versions.current, asked, request.history)
        self.metrics.unknown_items.inc(len(plan.unknown))
        return plan.content(await plan.model.batcher.ask(plan.question, since=began), began)

    async def recommend_batch(self, request: api.BatchRequest) -> Response:
        """Many requests at once; each gets its own response or its own error. All are taken up, or none."""
        began = time.monotonic()
        entries: list[Asked | Exception] = []
        for entry in request.requests:
            entries.append(outcome_of(partial(check_request.validate_python, entry)))
            await _let_others_go_on(len(entries))
        with ExitStack() as holding:
            holding.enter_context(self._room.take(sum(each.k for each in entries if isinstance(each, Asked))))
            model = self.versions.current
            plans = await self._plan_all(model, entries)
            questions = [each.question for each in plans if isinstance(each, Plan)]
            results = results_of(plans, await model.batcher.ask_all(questions))
            parts = batch_parts(results, began, holding.pop_all())
        # Begun, so that what it holds is let go even if nobody reads it.
        return Response(chain([next(parts)], parts), headers=NO_STORE)

    async def _plan_all(
        self, model: ServedModel, entries: Sequence[Asked | Exception]
    ) -> list[Plan | Exception]:
        reads = [self._items_of(each) for each in entries if isinstance(each, api.ByUser)]
        found = iter(await self._reads.ask_all(reads))
        plans: list[Plan | Exception] = []
        for entry in entries:
            if isinstance(entry, Exception):
                plans.append(entry)
                continue
            history = next(found) if isinstance(entry, api.ByUser) else entry.history
            if isinstance(history, Exception):
                plans.append(history)
            else:
                plans.append(outcome_of(partial(self._plan, model, entry, history)))
            await _let_others_go_on(len(plans))
        return plans

    def _plan(self, model: ServedModel, request: Asked, history: Sequence[str | int]) -> Plan:
        plan = Plan.of(model, request, history)
        self.metrics.unknown_items.inc(len(plan.unknown))
        if plan.fallback:
            self.metrics.fallbacks.labels(plan.fallback).inc()
        return plan

    async def explain(self, request: api.ExplainRequest) -> Content:
        """Which actions a recommendation rests on, and where the model looked."""
        began = time.monotonic()
        model = self._model_with(request.item_id)
        found = await self._side.ask(partial(model.recommender.explain, request.history, request.item_id))
        return {
            "model": name_of(model),
            "item": scored(found.item),
            "contributions": found.contributions,
            "attention": None if found.attention is None else found.attention.tolist(),
            "unknown_items": found.unknown_items,
            "fallback": found.fallback,
            "took_ms": milliseconds_since(began),
        }

    # Items

    async def similar(self, request: api.SimilarRequest) -> Content:
        """Items that the model considers similar; the score is the cosine of their vectors."""
        began = time.monotonic()
        model = self._model_with(request.item_id)
        found = await self._side.ask(partial(model.recommender.similar, request.item_id, request.k))
        return {
            "model": name_of(model),
            "items": [scored(item) for item in found.items],
            "took_ms": milliseconds_since(began),
        }

    def _model_with(self, item_id: str | int) -> ServedModel:
        """The model, if it knows the item. The recommender would first look for what may have been meant, which
        takes up to half a second for a million items."""
        model = self.versions.current
        if model.recommender.catalogue.number_of(item_id) is None:
            raise ProblemError(404, "unknown_item", "The model does not know an item with this id.")
        return model

    async def search(self, request: api.SearchRequest) -> Content:
        """Items by the words of their title, or by id; popular ones first."""
        catalogue = self.versions.current.recommender.catalogue
        numbers = await self._side.ask(partial(catalogue.search, request.query, request.limit))
        return {"items": [_item(catalogue, number) for number in numbers]}

    async def samples(self) -> Content:
        """Histories to try, if the model was exported with some."""
        model = self.versions.current
        catalogue = model.recommender.catalogue
        return {
            "samples": [
                {
                    "user_id": user.user_id,
                    "history": [
                        _item(catalogue, each) for each in catalogue.numbers(user.history)[0].tolist()
                    ],
                }
                for user in model.samples
            ]
        }

    # Events

    async def add_events(self, request: event_schemas.EventsRequest) -> Content:
        """Store what users did. Acknowledged events are on disk. The same event again counts once; another event with
        an id that was used is refused (409), and nothing of the request is stored."""
        read = read_events(request, self.versions.current.recommender.catalogue)
        try:
            new = await self._ask_store(self._commits, read.events, "write") if read.events else []
        except EventConflictError as conflict:
            raise read.problem_of(conflict) from conflict
        counts = {"accepted": sum(new), "duplicates": len(new) - sum(new)}
        for result, count in (*counts.items(), ("rejected", len(read.rejected))):
            self.metrics.events.labels(result).inc(count)
        return {**counts, "rejected": read.rejected, "unknown_items": read.unknown_items}

    def _add(self, requests: list[list[Event]]) -> Sequence[list[bool] | Exception]:
        """Events of many requests in one commit, unless one of them is to be refused."""
        together = [event for events in requests for event in events]
        try:
            new = iter(self._with_store("write", self.store.add, together))
        except EventConflictError:
            return [
                outcome_of(partial(self._with_store, "write", self.store.add, events)) for events in requests
            ]
        return [[next(new) for _ in events] for events in requests]

    async def remove_event(self, request: event_schemas.EventRequest) -> Content:
        """Delete one stored event."""
        return await self._delete(self.store.remove, request.event_id)

    async def history(self, request: api.HistoryRequest) -> Content:
        """A user's newest events, oldest first. A user without events has an empty history."""
        events = await self._newest(request.user_id, request.limit)
        catalogue = self.versions.current.recommender.catalogue
        return {"events": [event_as_sent(event, catalogue) for event in events]}

    async def forget(self, request: api.UserRequest) -> Content:
        """Delete all stored events of a user."""
        return await self._delete(self.store.forget, request.user_id)

    async def _delete(self, delete: Callable[[str], Forgotten], of: str) -> Content:
        call = partial(self._with_store, "delete", delete, of)
        forgotten: Forgotten = await self._ask_store(self._deletions, call, "delete")
        return forgotten._asdict()

    async def _newest(self, user_id: str, limit: int) -> list[Event]:
        call = partial(self._with_store, "read", self.store.newest, user_id, limit)
        events: list[Event] = await self._ask_store(self._reads, call, "read")
        return events

    def _items_of(self, request: api.ByUser) -> Callable[[], list[str]]:
        """A read of as many of the newest as a model looks at; before them all others, if these are not recommended
        again."""
        recommender = self.versions.current.recommender
        limit = max(api.MAX_HISTORY, recommender.max_history)
        leaves_out = recommender.exclude_seen if request.exclude_seen is None else request.exclude_seen

        def newest() -> list[str]:
            return [event.item_id for event in self.store.newest(request.user_id, limit)]

        read = partial(self.store.items_of, request.user_id, limit) if leaves_out else newest
        return partial(self._with_store, "read", read)

    async def _ask_store(
        self, lane: Batcher[Any, Any], question: object, what: StoreOperation, *, since: float | None = None
    ) -> Any:
        try:
            return await lane.ask(question, since=since)
        except TooLateError:
            self.metrics.count_store(what, "late", TIMEOUT)
            self._note_failure(what, "the history store does not respond in time")
            raise

    def _with_store(self, what: StoreOperation, call: Callable[..., Result], *arguments: object) -> Result:
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
            self.metrics.count_store(what, outcome, time.monotonic() - began)
        if what in self._last_failures and time.monotonic() - self._last_failures[what] > STEADY:
            del self._last_failures[what]
            log.info("The history store works again: requests that %s events are answered.", what)
        return result

    def _note_failure(self, what: str, reason: object) -> None:
        if what not in self._last_failures:
            log.error("Requests that %s stored events fail: %s.", what, reason)
        self._last_failures[what] = time.monotonic()

    # The service itself

    async def models(self) -> Content:
        """The current model and the previous one."""
        both = {"current": self.versions.current, "previous": self.versions.previous}
        return {
            "models": [
                {
                    **name_of(model),
                    "state": state,
                    "num_items": len(model.recommender.catalogue.known_numbers),
                    "max_history": model.recommender.max_history,
                    "exclude_seen": model.recommender.exclude_seen,
                    "loaded_at": model.loaded_at.isoformat(timespec="seconds"),
                }
                for state, model in both.items()
                if model
            ]
        }

    async def info(self) -> Content:
        """Version and limits."""
        return {
            "service": "bert4rec",
            "version": __version__,
            "model": name_of(self.versions.current),
            "store": self.store.description.split()[0],
            "limits": api.Limits().model_dump(),
        }

    async def live(self) -> Content:
        """Whether the process runs."""
        return {"status": "live"}

    async def ready(self) -> Content:
        """Whether a model is loaded and warm."""
        if not self.is_ready:
            raise ProblemError(503, "not_ready", "The service is starting or stopping.")
        return {"status": "ready"}


async def _let_others_go_on(done: int) -> None:
    """Between the entries of a batch: a long one must not hold up all others."""
    if done % 32 == 0:
        await asyncio.sleep(0)


def _item(catalogue: Catalogue, number: int) -> Content:
    return {"item_id": catalogue.id_of(number), "title": catalogue.title_of(number)}
