"""The models of requests and responses about events: what users did, and when."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, Tag
from pydantic_core import CoreSchema, core_schema

from bert4rec.service.contract.schemas import (
    MAX_EVENTS,
    Id,
    ParametersModel,
    RequestModel,
    StoredItemId,
    TextId,
    TextOrNumber,
    is_number,
)
from bert4rec.service.problems import BY_DATE, BY_UNIT

_DATE_TIME = {"type": "string", "format": "date-time"}
TimeUnit = Literal["seconds", "milliseconds", "microseconds", "nanoseconds"]


def _number(value: object) -> float:
    if is_number(value):
        return value
    raise ValueError


@dataclass(frozen=True)
class DatedText:
    """A time as text. Text of digits is none: pydantic would take it for a number since 1970, of a unit it guesses."""

    expected: str

    def __get_pydantic_core_schema__(self, _: object, __: GetCoreSchemaHandler) -> CoreSchema:
        begins_with_a_date = core_schema.str_schema(pattern=r"^\d{4}-\d\d-\d\d")
        moment = core_schema.datetime_schema(strict=False, tz_constraint="aware")
        return core_schema.custom_error_schema(
            core_schema.chain_schema([begins_with_a_date, moment]),
            custom_error_type="moment",
            custom_error_message=f"must be {self.expected}",
        )

    def __get_pydantic_json_schema__(self, _: object, __: GetJsonSchemaHandler) -> dict[str, Any]:
        return _DATE_TIME


_EXPECTED_MOMENT = "a time with its time zone, as in 2026-01-31T12:00:00Z"
Moment = Annotated[datetime, DatedText(_EXPECTED_MOMENT)]
MomentOrNumber = Annotated[
    datetime | float,
    TextOrNumber(
        Moment,
        _number,
        ({"type": "number", "description": "Since 1970, in the unit that `time_unit` names."},),
        f"{_EXPECTED_MOMENT}, or a number since 1970",
        text_schema=_DATE_TIME,
    ),
]


class EventIn(RequestModel):
    """One action of a user."""

    event_id: Id = Field(
        description="Chosen by the sender. A repeated id counts once, so requests can be repeated."
    )
    user_id: Id
    item_id: StoredItemId
    timestamp: Moment = Field(
        description="RFC 3339, with its time zone; at most a day ahead of the server's clock. A number since 1970 "
        "requires `time_unit`."
    )
    event_type: Id | None = Field(None, description="Kept, not interpreted.")
    recommendation_id: Id | None = Field(None, description="Of the answer that led to this action.")


class TimedEventIn(EventIn):
    timestamp: MomentOrNumber  # type: ignore[assignment]


class DatedEvents(RequestModel):
    events: list[EventIn] = Field(max_length=MAX_EVENTS)


class TimedEvents(RequestModel):
    """Events whose times may be numbers since 1970."""

    time_unit: TimeUnit
    events: list[TimedEventIn] = Field(max_length=MAX_EVENTS)


def _timing(value: Any) -> str:
    has_unit = "time_unit" in value if isinstance(value, dict) else isinstance(value, TimedEvents)
    return BY_UNIT if has_unit else BY_DATE


EventsRequest = Annotated[
    Annotated[DatedEvents, Tag(BY_DATE)] | Annotated[TimedEvents, Tag(BY_UNIT)], Discriminator(_timing)
]


class EventRequest(ParametersModel):
    event_id: TextId


class RejectedEvent(BaseModel):
    index: int
    code: Literal["future_timestamp", "invalid_timestamp"] = Field(
        description="More than a day ahead of the server's clock; or a number that is no time in that unit."
    )


class EventsResponse(BaseModel):
    accepted: int
    duplicates: int = Field(description="Events that were stored before, exactly as they were sent.")
    rejected: list[RejectedEvent]
    unknown_items: list[str | int] = Field(
        description="Ids that this model does not know. The events are stored, and count once a model knows them."
    )


class EventOut(BaseModel):
    event_id: str
    user_id: str
    item_id: str | int = Field(description="An integer where the ids of the model's data are integers.")
    timestamp: str
    event_type: str | None
    recommendation_id: str | None


class UserHistory(BaseModel):
    events: list[EventOut] = Field(description="The newest, oldest first.")


class DeletedEvents(BaseModel):
    deleted: int
    traces: str | None = Field(
        description="Where something of them is left and until when; null if no file of the store has anything of them."
    )
