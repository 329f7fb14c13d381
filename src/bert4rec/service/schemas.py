"""The shapes of requests and answers, and their limits. The OpenAPI document is made from these."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, TypeGuard

from annotated_types import Len
from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    Tag,
)
from pydantic_core import CoreSchema, core_schema

from bert4rec.logs.times import EPOCH_RANGES, read_epoch
from bert4rec.service.problems import BY_HISTORY, BY_USER

MAX_K = 500
MAX_HISTORY = 1000
MAX_CANDIDATES = 10_000
MAX_RANKED = 1000
MAX_EVENTS = 1000
MAX_BATCH = 256
MAX_ID = 256
LARGEST_NUMBER = 10**20
"""As an id: holds all of 64 bits, and is the same number to those who read the document with floats."""
MAX_BODY = 2**20
"""Bytes."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, eq=False)
class OrNumber:
    """Takes a number in place of a text. Texts are looked at first, so they take hardly longer than without this."""

    read: Callable[[Any], object]
    """Makes of a number what would be made of the text; raises ValueError for anything else."""
    schemas: tuple[dict[str, Any], ...]
    """Those numbers, in JSON Schema."""
    expected: str

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.union_schema(
            [handler(source), core_schema.no_info_plain_validator_function(self.read)],
            mode="left_to_right",
            custom_error_type="text_or_number",
            custom_error_message=f"must be {self.expected}",
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(schema["choices"][0]), *self.schemas]}


def _number_as_id(value: object) -> str:
    if _is_number(value) and abs(value) <= LARGEST_NUMBER and value == int(value):
        return str(int(value))
    raise ValueError


def _number_as_moment(value: object) -> datetime:
    micros = read_epoch(value) if _is_number(value) else None
    if micros is None:
        raise ValueError
    return EPOCH + timedelta(microseconds=micros)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


# No control characters: PostgreSQL cannot store NUL, and a path with a line end finds no route.
Id = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID, pattern=r"^[^\x00-\x1f\x7f]+$")]
AnyId = Annotated[
    Id,
    OrNumber(
        _number_as_id,
        (
            {
                "type": "integer",
                "minimum": -LARGEST_NUMBER,
                "maximum": LARGEST_NUMBER,
                "description": "As its text.",
            },
        ),
        f"a text of 1 to {MAX_ID} characters, none of them a control character, or a whole number",
    ),
]
"""In a body: many logs have whole numbers for ids, which some tools write as 6.0."""
Moment = Annotated[
    AwareDatetime,
    OrNumber(
        _number_as_moment,
        tuple(
            {
                "type": "number",
                "minimum": smallest,
                "maximum": largest,
                "description": f"{unit.capitalize()} since 1970.",
            }
            for unit, (smallest, largest) in EPOCH_RANGES.items()
        ),
        "a time as in 2026-01-31T12:00:00Z, with its time zone, or a number since 1970: seconds, milliseconds, "
        "microseconds or nanoseconds, told apart by their size",
    ),
]
History = Annotated[
    list[AnyId],
    Len(max_length=MAX_HISTORY),
    Field(description="Item ids, oldest first. The model looks at the newest."),
]


def _whole(value: object) -> object:
    """To JSON Schema, 10.0 is an integer, and 10 with blanks around it is not."""
    if isinstance(value, str) and value != value.strip():
        raise ValueError("there are blanks around the number")
    return int(value) if isinstance(value, float) and value.is_integer() else value


K = Annotated[int, Field(ge=1, le=MAX_K, description="How many items to recommend."), BeforeValidator(_whole)]
SearchLimit = Annotated[int, Field(ge=1, le=100), BeforeValidator(_whole)]
HistoryLimit = Annotated[int, Field(ge=1, le=MAX_HISTORY), BeforeValidator(_whole)]


class Shape(BaseModel):
    """Nothing is guessed: an unknown field or a number in quotes is a mistake worth hearing about."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Options(Shape):
    """What may be recommended."""

    k: K = 10
    exclude_seen: bool | None = Field(
        None, description="Leave out the items of the history. Without it, as the model's data has it."
    )
    exclude_items: list[AnyId] = Field(
        default=[], max_length=MAX_CANDIDATES, description="Never recommend these."
    )
    candidates: list[AnyId] | None = Field(
        None, max_length=MAX_CANDIDATES, description="Recommend nothing but these."
    )


class ByHistory(Options):
    """Recommend by a history that the request carries. Nothing is stored."""

    history: History


class ByUser(Options):
    """Recommend by the events that were stored for a user."""

    user_id: AnyId


def _kind(value: Any) -> str:
    by_user = "user_id" in value if isinstance(value, dict) else isinstance(value, ByUser)
    return BY_USER if by_user else BY_HISTORY


RecommendRequest = Annotated[
    Annotated[ByHistory, Tag(BY_HISTORY)] | Annotated[ByUser, Tag(BY_USER)], Discriminator(_kind)
]


class BatchRequest(Shape):
    """Up to 256 requests at once. Each is judged by itself: a wrong one does not spoil the others."""

    requests: list[Any] = Field(max_length=MAX_BATCH, description="Each as the body of /v1/recommend.")


class RankRequest(Shape):
    """Put the named items in order, items of the history included."""

    history: History
    items: list[AnyId] = Field(min_length=1, max_length=MAX_RANKED)


class ExplainRequest(Shape):
    history: History
    item_id: AnyId


class EventIn(Shape):
    """One action of a user."""

    event_id: AnyId = Field(
        description="Chosen by the sender. A repeated id counts once, so requests can be repeated."
    )
    user_id: AnyId
    item_id: AnyId
    timestamp: Moment = Field(
        description="RFC 3339, with its time zone; or a number since 1970, its unit told by its size."
    )
    event_type: AnyId | None = Field(None, description="Kept, not interpreted.")
    recommendation_id: AnyId | None = Field(None, description="Of the answer that led to this action.")


class EventsRequest(Shape):
    events: list[EventIn] = Field(max_length=MAX_EVENTS)


class ModelName(BaseModel):
    name: str
    version: str


class RecommendedItem(BaseModel):
    item_id: str
    title: str | None
    score: float = Field(description="To be compared within one answer only.")


class Context(BaseModel):
    source: Literal["request", "store"]
    used: int = Field(description="How many items of the history the model looked at.")
    unknown_items: list[str] = Field(description="Ids the model does not know; they were skipped.")


class Recommendations(BaseModel):
    recommendation_id: str
    model: ModelName
    items: list[RecommendedItem]
    context: Context
    fallback: Literal["popular"] | None = Field(
        description='"popular" where the history held nothing known; scores are counts then.'
    )
    took_ms: float


class Similar(BaseModel):
    model: ModelName
    items: list[RecommendedItem]
    took_ms: float


class FieldError(BaseModel):
    field: str
    message: str


class Problem(BaseModel):
    """RFC 9457. `code` is stable, `detail` is for people."""

    title: str
    status: int
    code: str
    detail: str
    request_id: str
    errors: list[FieldError] | None = None


class BatchError(BaseModel):
    error: Problem


class BatchResponse(BaseModel):
    results: list[Recommendations | BatchError]


class Contribution(BaseModel):
    item_id: str
    title: str | None
    effect: float = Field(description="How much the score falls when this action is left out.")


class Explained(BaseModel):
    model: ModelName
    item: RecommendedItem
    contributions: list[Contribution] = Field(
        description="One for each action the model looked at, oldest first."
    )
    attention: list[list[list[float]]] | None = Field(
        description="[layer][head][action]: how much the asked place looks at each action and, last, at itself."
    )
    unknown_items: list[str] = Field(description="Ids the model does not know; they were skipped.")
    fallback: Literal["popular"] | None = Field(
        description='"popular" where the history held nothing known; the score is a count then.'
    )
    took_ms: float


class Rejected(BaseModel):
    index: int
    code: Literal["unknown_item"]


class EventsResponse(BaseModel):
    accepted: int
    duplicates: int
    rejected: list[Rejected]


class EventOut(BaseModel):
    event_id: str
    user_id: str
    item_id: str
    timestamp: str
    event_type: str | None
    recommendation_id: str | None


class UserHistory(BaseModel):
    events: list[EventOut] = Field(description="The newest, oldest first.")


class Forgotten(BaseModel):
    deleted: int


class CatalogueItem(BaseModel):
    item_id: str
    title: str | None


class CatalogueItems(BaseModel):
    items: list[CatalogueItem]


class Sample(BaseModel):
    user_id: str
    history: list[CatalogueItem]


class Samples(BaseModel):
    samples: list[Sample]


class ModelState(ModelName):
    state: Literal["current", "previous"]
    num_items: int
    max_history: int
    exclude_seen: bool = Field(
        description="Whether items of a history are left out where a request does not say."
    )
    loaded_at: str


class ModelStates(BaseModel):
    models: list[ModelState]


class Limits(BaseModel):
    k: int = MAX_K
    history: int = MAX_HISTORY
    id_length: int = MAX_ID
    events: int = MAX_EVENTS
    batch: int = MAX_BATCH
    body_bytes: int = MAX_BODY


class Info(BaseModel):
    service: Literal["bert4rec"]
    version: str
    model: ModelName
    store: str
    limits: Limits


class Health(BaseModel):
    status: str
