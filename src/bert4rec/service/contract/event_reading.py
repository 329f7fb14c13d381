"""Events between requests and the store: their moments, the ids of their items, and what is refused."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.ids import as_given, spellings
from bert4rec.service.contract.event_schemas import EventsRequest, TimedEvents
from bert4rec.service.problems import ProblemError
from bert4rec.store.events import Event, EventConflictError
from bert4rec.store.feedback import A_DAY

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
MICROSECONDS_PER = {"seconds": 1_000_000, "milliseconds": 1000, "microseconds": 1, "nanoseconds": 0.001}
FIRST_MOMENT, LAST_MOMENT = (
    (each.replace(tzinfo=UTC) - EPOCH) // MICROSECOND for each in (datetime.min, datetime.max)
)
"""A date at the edge of the calendar, in another time zone, may lie beyond it here."""
MOST_NAMED = 20
"""How many events with the id of another one are named."""


@dataclass(frozen=True)
class ReadEvents:
    """What a request wants stored."""

    events: list[Event]
    places: list[int]
    """Where each of them stands in the request."""
    rejected: list[dict[str, Any]]
    unknown_items: list[str | int]
    """Items of the events that the model does not know."""

    def problem_of(self, conflict: EventConflictError) -> ProblemError:
        """What a client is told who uses the id of another event."""
        message = "another event with this id is stored"
        errors = [
            {"field": f"events.{self.places[each]}.event_id", "message": message}
            for each in conflict.places[:MOST_NAMED]
        ]
        detail = (
            f"Ids of other events: {len(conflict.places)}; nothing of the request was stored. "
            "Give every event an id of its own, and send an event again exactly as it was."
        )
        return ProblemError(409, "event_conflict", detail, errors=errors)


def read_events(request: EventsRequest, catalogue: Catalogue) -> ReadEvents:
    """The events of a request as they are stored, whether or not the model knows their items."""
    unit = request.time_unit if isinstance(request, TimedEvents) else "seconds"
    latest = latest_moment()
    events, places, rejected = [], [], []
    unknown: dict[str, str | int] = {}
    for place, event in enumerate(request.events):
        moment = _microseconds(event.timestamp, unit)
        if moment is None or moment > latest:
            code = "invalid_timestamp" if moment is None else "future_timestamp"
            rejected.append({"index": place, "code": code})
            continue
        item_id, is_known = stored_id(event.item_id, catalogue)
        if not is_known:
            unknown.setdefault(item_id, as_given(event.item_id))
        more = event.event_type, event.recommendation_id
        events.append(Event(event.event_id, event.user_id, item_id, moment, *more))
        places.append(place)
    return ReadEvents(events, places, rejected, list(unknown.values()))


def latest_moment() -> int:
    """Clocks differ, and time zones are mixed up; what lies further ahead than a day would stay the newest for long."""
    return time.time_ns() // 1000 + A_DAY


def stored_id(item_id: str | int, catalogue: Catalogue) -> tuple[str, bool]:
    """The id of an item as it is stored, and whether the model knows it."""
    number = catalogue.number_of(item_id)
    if number is None:
        # As a later model with ids of the same type will spell it.
        return spellings(str(item_id), whole_numbers=catalogue.whole_numbers)[-1], False
    return str(catalogue.id_of(number)), True


def microseconds(moment: datetime) -> int:
    """Since 1970."""
    return min(max((moment - EPOCH) // MICROSECOND, FIRST_MOMENT), LAST_MOMENT)


def moment_as_sent(micros: int) -> str:
    """RFC 3339, in UTC."""
    return (EPOCH + micros * MICROSECOND).isoformat().replace("+00:00", "Z")


def _microseconds(timestamp: datetime | float, unit: str) -> int | None:
    """Since 1970; None for a number that is no time in this unit."""
    if isinstance(timestamp, datetime):
        return microseconds(timestamp)
    if not FIRST_MOMENT <= timestamp * MICROSECONDS_PER[unit] <= LAST_MOMENT:  # which no infinite one is
        return None
    # Nanoseconds have more digits than a float.
    return int(timestamp) // 1000 if unit == "nanoseconds" else round(timestamp * MICROSECONDS_PER[unit])


def event_as_sent(event: Event, catalogue: Catalogue) -> dict[str, Any]:
    """The item's id as the model has it, which may be an integer; as it is stored where the model lacks the item."""
    number = catalogue.number_of(event.item_id)
    item_id = event.item_id if number is None else catalogue.id_of(number)
    return {**event._asdict(), "item_id": item_id, "timestamp": moment_as_sent(event.timestamp)}
