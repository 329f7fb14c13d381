"""Items that are not to be recommended for now: the list in the store, as requests meet it.

Every worker has the list in memory. Before it answers, it looks at two numbers: whether another worker has changed the
list, and whether the moment has come at which an item is hidden or shown by its date. Only then it has something to do.
What other machines and `bert4rec store` change is looked for every second.

The docstrings of the operations are their descriptions in the OpenAPI document.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TypeVar
from weakref import WeakKeyDictionary

from pydantic_core import to_json

from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.ids import as_given
from bert4rec.recommend.rules.hidden import without
from bert4rec.service.batcher import OverloadedError, TooLateError
from bert4rec.service.change_mark import ChangeMark
from bert4rec.service.contract import hidden_schemas as api
from bert4rec.service.contract.event_reading import microseconds, moment_as_sent, stored_id
from bert4rec.service.hidden_table import HiddenTable, KnownNumbers
from bert4rec.service.http.messages import NO_STORE, Response
from bert4rec.service.problems import ProblemError
from bert4rec.service.recommending import Content
from bert4rec.service.served_models import ModelVersions, ServedModel
from bert4rec.service.stored_events import StoredEvents
from bert4rec.store.events import StoreError
from bert4rec.store.hiding import Hiding, now

Result = TypeVar("Result")
LOOK_EVERY = 1.0
"""Seconds between looks at the store."""
ITEMS_AT_ONCE = 1000
"""Of a list that is sent as it is read."""
log = logging.getLogger("bert4rec.service")


class HiddenItems:
    """What is hidden. To be used from one event loop."""

    def __init__(
        self,
        events: StoredEvents,
        versions: ModelVersions,
        mark: ChangeMark,
        clock: Callable[[], int] = now,
    ) -> None:
        self._events, self._versions, self._mark, self._clock = events, versions, mark, clock
        self._reading, self._applying = asyncio.Lock(), asyncio.Lock()
        self._seen: int | None = None
        """The mark when the list was read last."""
        self._has_failed = False
        self._table = HiddenTable()
        self._known: WeakKeyDictionary[ServedModel, KnownNumbers] = WeakKeyDictionary()
        self._take_stock()

    async def start(self) -> None:
        await self._read_again()

    async def watch(self, every: float = LOOK_EVERY) -> None:
        """Forever: look whether others have changed the list."""
        while True:
            await asyncio.sleep(every)
            await self._read_again()

    # What requests are answered by

    async def obeyed_by(self, model: ServedModel) -> ServedModel:
        """The model, once it recommends nothing that is hidden at this moment."""
        await self._catch_up()
        if model.hides is not self._in_force:
            async with self._applying:
                await self._apply(model)
        return model

    async def _apply(self, model: ServedModel) -> None:
        known = self._known_to(model)
        while model.hides is not self._in_force:
            in_force = self._in_force
            # Elsewhere: to look up a hundred thousand takes some hundredths of a second.
            numbers = await asyncio.to_thread(known.at, self._table.ids, in_force)
            model.visible = without(model.recommender, numbers)
            model.hides = in_force

    def _known_to(self, model: ServedModel) -> KnownNumbers:
        return self._known.setdefault(model, KnownNumbers(model.recommender.catalogue))

    async def _catch_up(self) -> None:
        if self._mark.value != self._seen:
            await self._read_again(is_awaited=True)
        if self._clock() >= self._holds_until:
            self._take_stock()

    async def _read_again(self, *, is_awaited: bool = False) -> None:
        """Read the list if it has changed. If it cannot be read, the known one stays in force, and nobody waits for it
        again: `watch` goes on trying."""
        async with self._reading:
            seen = self._mark.value
            if is_awaited and seen == self._seen:  # another request has done it meanwhile
                return
            try:
                found = await self._events.look(partial(self._events.store.hidden, self._table.version))
                if found is not None:
                    self._table.take(found)
                    self._take_stock()
            except Exception as error:  # of whatever kind: it may pass
                self._note_failure(error)
            else:
                self._note_success()
            self._seen = seen

    def _take_stock(self) -> None:
        """What is hidden at this moment, and until when that holds."""
        moment = self._clock()
        self._in_force, self._holds_until = self._table.in_force(moment), self._table.next_change(moment)

    def _note_failure(self, error: Exception) -> None:
        if not self._has_failed:
            reason = str(error) or "the history store does not respond in time"
            is_expected = isinstance(error, StoreError | TooLateError | OverloadedError)
            log.error(
                "What is hidden cannot be read; the known list stays in force: %s.",
                reason,
                exc_info=None if is_expected else error,
            )
        self._has_failed = True

    def _note_success(self) -> None:
        if self._has_failed:
            log.info("What is hidden can be read again.")
        self._has_failed = False

    # Operations

    async def hide(self, request: api.HideRequest) -> Content:
        """Never recommend an item: from now on, or from a moment on; for good, or until another. What was said of it
        before is replaced. When this is answered, it is on disk, and the next request obeys. Items are ranked and
        explained all the same, because these requests name them, and histories may hold them."""
        catalogue, moment = self._versions.current.recommender.catalogue, self._clock()
        period = request.body
        begin = moment if period.begin is None else microseconds(period.begin)
        end = None if period.end is None else microseconds(period.end)
        if end is not None and end <= begin:
            message = "must be later than from" if period.begin else "must lie ahead, as from is missing"
            wrong = [{"field": "until", "message": message}]
            raise ProblemError(422, "invalid_request", f"until: {message}", errors=wrong)
        item_id, *others = await self._ids_of(request.item_id)
        hiding = Hiding(item_id, begin, end)
        await self._change(partial(self._events.store.hide, [hiding], others))
        return _as_sent(hiding, catalogue, moment)

    async def unhide(self, request: api.UnhideRequest) -> Content:
        """Let an item be recommended again. The next request obeys."""
        catalogue = self._versions.current.recommender.catalogue
        ids = await self._ids_of(request.item_id)
        removed = await self._change(partial(self._events.store.unhide, ids))
        return {**_named(ids[0], catalogue), "was_listed": removed > 0}

    async def hidden(self, request: api.HiddenRequest) -> Response:
        """Hidden items, the latest to begin first: also those whose time is over or has not come yet."""
        await self._catch_up()
        listed = self._table.hidings(request.limit)
        catalogue = self._versions.current.recommender.catalogue
        return Response(_parts(len(self._table), listed, catalogue, self._clock()), headers=NO_STORE)

    async def _ids_of(self, item_id: str) -> list[str]:
        """The id by which an item is stored, and the others by which it may be in the list: as it was spelt here, or
        when another model was served, or by somebody who had no model to ask."""
        await self._catch_up()
        model = self._versions.current
        catalogue = model.recommender.catalogue
        number = catalogue.number_of(item_id)
        listed = (
            []
            if number is None
            else await asyncio.to_thread(self._known_to(model).ids_of, self._table.ids, number)
        )
        return list(dict.fromkeys([stored_id(item_id, catalogue)[0], item_id, *listed]))

    async def _change(self, call: Callable[[], Result]) -> Result:
        def change() -> Result:
            result = call()
            self._mark.change()  # even if the client has gone: it is done
            return result

        return await self._events.change("write", change)


def _parts(total: int, hidings: Iterator[Hiding], catalogue: Catalogue, moment: int) -> Iterator[bytes]:
    """A list that may be long, made as it is read."""
    yield b'{"total":%d,"items":[' % total
    comma = b""
    while some := [_as_sent(each, catalogue, moment) for each in islice(hidings, ITEMS_AT_ONCE)]:
        yield comma + to_json(some)[1:-1]
        comma = b","
    yield b"]}"


def _as_sent(hiding: Hiding, catalogue: Catalogue, moment: int) -> Content:
    return {
        **_named(hiding.item_id, catalogue),
        "from": moment_as_sent(hiding.begin),
        "until": None if hiding.end is None else moment_as_sent(hiding.end),
        "hidden_now": hiding.holds_at(moment),
    }


def _named(item_id: str, catalogue: Catalogue) -> Content:
    """The id as the model has it, which may be an integer; as it is stored where the model lacks the item."""
    number = catalogue.number_of(item_id)
    if number is None:
        return {"item_id": as_given(item_id), "title": None}
    return {"item_id": catalogue.id_of(number), "title": catalogue.title_of(number)}
