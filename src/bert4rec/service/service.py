"""What each request does: from a checked request to the content of its answer. Knows nothing of HTTP."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from bert4rec import __version__
from bert4rec.recommend.recommender import POPULAR, Question
from bert4rec.service import schemas as api
from bert4rec.service.batcher import Batcher, TooLateError
from bert4rec.service.counters import Metrics
from bert4rec.service.problems import ProblemError, internal_error, invalid_body, problem_of, request_id
from bert4rec.service.schemas import EPOCH
from bert4rec.service.served_models import Found, Models, Served
from bert4rec.service.store import Event, HistoryStore, StoreError

Result = TypeVar("Result")
Content = dict[str, Any]
TIMEOUT = 5.0
MAX_WAITING_EVENTS = 16_000
"""Events, not requests: one of these may hold a thousand. About 100 MB at the very most."""
MICROSECOND = timedelta(microseconds=1)
FIRST_MOMENT, LAST_MOMENT = (
    (each.replace(tzinfo=UTC) - EPOCH) // MICROSECOND for each in (datetime.min, datetime.max)
)
"""A date at the edge of the calendar, in another time zone, may lie beyond it here."""
log = logging.getLogger("bert4rec.service")
check_request: TypeAdapter[api.ByHistory | api.ByUser] = TypeAdapter(api.RecommendRequest)


class Service:
    """Models, store and metrics, joined. To be used from one event loop."""

    def __init__(self, models: Models, store: HistoryStore, metrics: Metrics) -> None:
        self.models, self.store, self.metrics = models, store, metrics
        self.is_ready = False
        self._store_works = True
        self._commits: Batcher[list[Event], list[bool]] = Batcher(
            self._add,
            name="store-write",
            max_batch=256,
            max_waiting=MAX_WAITING_EVENTS,
            timeout=TIMEOUT,
            size=len,
        )
        # Reads are many and short; explanations and searches are few and longer. Neither shall wait for the other.
        self._reads = _lane("store-read", max_waiting=1024)
        self._side = _lane("side", max_waiting=64)

    async def start(self) -> None:
        """Look at the store once, so that a wrong address is in the log at once; it may come back later."""
        with suppress(StoreError, TooLateError):
            await self._newest("", 1)
        self.is_ready = True

    async def stop(self) -> None:
        """Finish what was accepted, unless the store hangs, then let go of everything."""
        self.is_ready = False
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._stop_lanes()
        except TimeoutError:
            log.error("The history store does not answer; what waits for it is given up.")
            self.store.interrupt()
            await self._stop_lanes()
        await self.models.stop()
        self.store.close()

    async def _stop_lanes(self) -> None:
        for batcher in (self._reads, self._commits, self._side):
            await batcher.stop()

    @property
    def is_overloaded(self) -> bool:
        return self.models.current.batcher.is_full

    async def recommend(self, request: api.RecommendRequest) -> Content:
        """Items that should come next, by a history that is sent or by a user's stored events."""
        began = time.perf_counter()
        if isinstance(request, api.ByHistory):
            source, history = "request", request.history
        else:
            source, history = "store", [event.item_id for event in await self._newest(request.user_id)]
        answer = await self._answer(
            history,
            request.k,
            exclude_seen=request.exclude_seen,
            deny=request.exclude_items,
            allow=request.candidates,
        )
        answer["context"]["source"] = source
        if answer["fallback"]:
            self.metrics.fallbacks.labels("unknown_items" if history else "empty_history").inc()
        return {**answer, "took_ms": _milliseconds_since(began)}

    async def rank(self, request: api.RankRequest) -> Content:
        """The named items, best first."""
        began = time.perf_counter()
        answer = await self._answer(
            request.history, len(request.items), exclude_seen=False, deny=[], allow=request.items
        )
        return {**answer, "took_ms": _milliseconds_since(began)}

    async def _answer(
        self,
        history: list[str],
        k: int,
        *,
        exclude_seen: bool | None,
        deny: list[str],
        allow: list[str] | None,
    ) -> Content:
        # Nothing is awaited before the question is asked: numbers belong to this model, which may be replaced.
        served = self.models.current
        numbers = served.recommender.catalogue.numbers
        known, unknown = numbers(history)
        denied, unknown_denied = numbers(deny)
        allowed, unknown_allowed = (None, []) if allow is None else numbers(allow)
        if exclude_seen is None:
            exclude_seen = served.recommender.exclude_seen
        exclude = np.concatenate([known, denied]) if exclude_seen else denied
        found = await served.batcher.ask(Question(known, k, exclude, allowed))
        unknown = list(dict.fromkeys([*unknown, *unknown_denied, *unknown_allowed]))
        self.metrics.unknown_items.inc(len(unknown))
        return {
            "recommendation_id": new_id(),
            "model": _name(served),
            "items": _items(served, found),
            "context": {
                "source": "request",
                "used": min(len(known), served.recommender.max_history),
                "unknown_items": unknown,
            },
            "fallback": None if len(known) else POPULAR,
        }

    async def recommend_batch(self, request: api.BatchRequest) -> Content:
        """Many requests at once; each gets its own answer or its own error."""
        answers = await asyncio.gather(
            *(self._recommend_entry(entry) for entry in request.requests), return_exceptions=True
        )
        return {"results": [_entry(answer) for answer in answers]}

    async def _recommend_entry(self, entry: object) -> Content:
        try:
            request = check_request.validate_python(entry)
        except ValidationError as error:
            raise invalid_body(error) from error
        return await self.recommend(request)

    async def similar(self, item_id: str, k: int) -> Content:
        began = time.perf_counter()
        served = self._knowing(item_id)
        found = await self._side.ask(partial(served.recommender.similar, item_id, k))
        items = [asdict(item) for item in found.items]
        return {"model": _name(served), "items": items, "took_ms": _milliseconds_since(began)}

    async def explain(self, request: api.ExplainRequest) -> Content:
        """Which actions carried a recommendation, and where the model looked."""
        began = time.perf_counter()
        served = self._knowing(request.item_id)
        found = await self._side.ask(partial(served.recommender.explain, request.history, request.item_id))
        return {
            "model": _name(served),
            "item": asdict(found.item),
            "contributions": [asdict(each) for each in found.contributions],
            "attention": None if found.attention is None else found.attention.tolist(),
            "unknown_items": found.unknown_items,
            "fallback": found.fallback,
            "took_ms": _milliseconds_since(began),
        }

    def _knowing(self, item_id: str) -> Served:
        served = self.models.current
        if served.recommender.catalogue.number_of(item_id) is None:
            raise ProblemError(404, "unknown_item", "The model knows no item with this id.")
        return served

    async def search(self, text: str, limit: int) -> Content:
        catalogue = self.models.current.recommender.catalogue
        numbers = await self._side.ask(partial(catalogue.search, text, limit))
        items = [{"item_id": catalogue.id_of(each), "title": catalogue.title_of(each)} for each in numbers]
        return {"items": items}

    def samples(self) -> Content:
        served = self.models.current
        catalogue = served.recommender.catalogue
        return {
            "samples": [
                {
                    "user_id": sample.user_id,
                    "history": [
                        {"item_id": catalogue.id_of(each), "title": catalogue.title_of(each)}
                        for each in catalogue.numbers(sample.history)[0].tolist()
                    ],
                }
                for sample in served.samples
            ]
        }

    async def add_events(self, request: api.EventsRequest) -> Content:
        """Keep what users did. Acknowledged events are on disk; a repeated event id counts once."""
        catalogue = self.models.current.recommender.catalogue
        events, rejected = [], []
        for index, event in enumerate(request.events):
            number = catalogue.number_of(event.item_id)
            if number is None:
                rejected.append({"index": index, "code": "unknown_item"})
            else:
                events.append(_to_store(event, str(catalogue.id_of(number))))
        new = await self._ask_store(self._commits, events) if events else []
        counts = {"accepted": sum(new), "duplicates": len(new) - sum(new)}
        for result, count in (*counts.items(), ("rejected", len(rejected))):
            self.metrics.events.labels(result).inc(count)
        return {**counts, "rejected": rejected}

    def _add(self, batches: list[list[Event]]) -> list[list[bool]]:
        """Events of many requests in one commit."""
        new = iter(self._with_store(self.store.add, [event for batch in batches for event in batch]))
        return [[next(new) for _ in batch] for batch in batches]

    async def history(self, user_id: str, limit: int) -> Content:
        return {"events": [_from_store(event) for event in await self._newest(user_id, limit)]}

    async def forget(self, user_id: str) -> Content:
        call = partial(self._with_store, self.store.forget, user_id)
        return {"deleted": await self._ask_store(self._reads, call)}

    async def _newest(self, user_id: str, limit: int = api.MAX_HISTORY) -> list[Event]:
        call = partial(self._with_store, self.store.newest, user_id, limit)
        events: list[Event] = await self._ask_store(self._reads, call)
        return events

    async def _ask_store(self, lane: Batcher[Any, Any], question: object) -> Any:
        try:
            return await lane.ask(question)
        except TooLateError:
            self._note_failure("the history store does not answer in time")
            raise

    def _with_store(self, call: Callable[..., Result], *arguments: object) -> Result:
        """Call the store; the log says when it fails and when it works again, not once for every request."""
        try:
            result = call(*arguments)
        except StoreError as error:
            self._note_failure(error)
            raise
        if not self._store_works:
            self._store_works = True
            log.info("The history store works again.")
        return result

    def _note_failure(self, reason: object) -> None:
        if self._store_works:
            self._store_works = False
            log.error("Requests that need stored events fail: %s.", reason)

    def describe_models(self) -> Content:
        both = {"current": self.models.current, "previous": self.models.previous}
        return {
            "models": [
                {
                    **_name(served),
                    "state": state,
                    "num_items": len(served.recommender.catalogue),
                    "max_history": served.recommender.max_history,
                    "exclude_seen": served.recommender.exclude_seen,
                    "loaded_at": served.loaded_at.isoformat(timespec="seconds"),
                }
                for state, served in both.items()
                if served
            ]
        }

    def info(self) -> Content:
        return {
            "service": "bert4rec",
            "version": __version__,
            "model": _name(self.models.current),
            "store": self.store.description.split()[0],
            "limits": api.Limits().model_dump(),
        }


def _lane(name: str, *, max_waiting: int) -> Batcher[Callable[[], Any], Any]:
    """A thread that makes calls one after the other, with a bounded queue and a deadline."""

    def work(calls: list[Callable[[], Result]]) -> Sequence[Result | Exception]:
        return [_outcome(call) for call in calls]

    # Small batches: whoever has given up is noticed between two of them.
    return Batcher(work, name=name, max_batch=8, max_waiting=max_waiting, timeout=TIMEOUT)


def _outcome(call: Callable[[], Result]) -> Result | Exception:
    try:
        return call()
    except Exception as error:
        return error


def _entry(answer: Content | BaseException) -> Content:
    if isinstance(answer, dict):
        return answer
    if not isinstance(answer, Exception):
        raise answer
    problem = problem_of(answer)
    if problem is None:
        log.error("An entry of request %s failed.", request_id.get(), exc_info=answer)
        problem = internal_error()
    return {"error": problem.document()}


def new_id() -> str:
    """32 hexadecimal digits; ids of later milliseconds are greater, so logs sort by them."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def _name(served: Served) -> dict[str, str]:
    return {"name": served.recommender.name, "version": served.recommender.version}


def _items(served: Served, found: Found) -> list[Content]:
    catalogue = served.recommender.catalogue
    return [
        {"item_id": catalogue.id_of(number), "title": catalogue.title_of(number), "score": score}
        for number, score in zip(found[0].tolist(), found[1].tolist(), strict=True)
    ]


def _milliseconds_since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 3)


def _to_store(event: api.EventIn, item_id: str) -> Event:
    moment = min(max((event.timestamp - EPOCH) // MICROSECOND, FIRST_MOMENT), LAST_MOMENT)
    return Event(event.event_id, event.user_id, item_id, moment, event.event_type, event.recommendation_id)


def _from_store(event: Event) -> Content:
    moment = EPOCH + event.timestamp * MICROSECOND
    return {**event._asdict(), "timestamp": moment.isoformat().replace("+00:00", "Z")}
