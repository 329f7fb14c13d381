"""The models of requests and responses, and their limits; of events, see `event_schemas`.

The OpenAPI document is made from these.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeGuard

from annotated_types import Len
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from bert4rec.recommend.rules.rules import Rules
from bert4rec.service.contract.filter_schema import Where
from bert4rec.service.problems import BY_HISTORY, BY_USER

MAX_K = 500
MAX_HISTORY = 1000
MAX_LISTED = 10_000
MAX_RANKED = 1000
MAX_EVENTS = 1000
MAX_BATCH = 256
MAX_ID = 256
LARGEST_NUMBER = 10**20
"""As an id: holds all of 64 bits, and is the same number to those who read the document with floats."""
MAX_BODY = 2**20
"""Bytes."""


@dataclass(frozen=True, eq=False)
class TextOrNumber:
    """Takes a text or a number. Texts are looked at first, so they take hardly longer than without this."""

    text: Any
    """The type of the text."""
    read: Callable[[Any], object]
    """Reads a number; raises ValueError for anything else."""
    numbers: tuple[dict[str, Any], ...]
    """Those numbers, in JSON Schema."""
    expected: str
    text_schema: dict[str, Any] | None = None
    """The texts in JSON Schema, where their type does not tell."""

    def __get_pydantic_core_schema__(self, _: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.union_schema(
            [handler.generate_schema(self.text), core_schema.no_info_plain_validator_function(self.read)],
            mode="left_to_right",
            custom_error_type="text_or_number",
            custom_error_message=f"must be {self.expected}",
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [self.text_schema or handler(schema["choices"][0]), *self.numbers]}


def _integer(value: object) -> int:
    if is_number(value) and abs(value) <= LARGEST_NUMBER and value == int(value):
        return int(value)
    raise ValueError


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _not_blank(item_id: str) -> str:
    """Blanks around an id are not part of it: nothing would be left to store."""
    if not item_id.strip():
        raise PydanticCustomError("blank", "must not be blank")
    return item_id


# No control characters: PostgreSQL cannot store NUL, and paths with them do not exist.
TextId = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID, pattern=r"^[^\x00-\x1f\x7f]+$")]
StoredTextId = Annotated[TextId, AfterValidator(_not_blank)]
_INTEGER = {"type": "integer", "minimum": -LARGEST_NUMBER, "maximum": LARGEST_NUMBER}
_EXPECTED_ID = f"a string of 1 to {MAX_ID} characters without control characters, or an integer"
# Many logs have integers for ids, which some tools write as 6.0.
ItemId = Annotated[str | int, TextOrNumber(TextId, _integer, (_INTEGER,), _EXPECTED_ID)]
"""Of an item, in a body: comes back as it was sent where the model does not know it."""
StoredItemId = Annotated[
    str | int, TextOrNumber(StoredTextId, _integer, (_INTEGER,), f"{_EXPECTED_ID}; not blank")
]
"""Of an item, in a body that is kept."""
Id = Annotated[
    str,
    TextOrNumber(
        TextId,
        lambda value: str(_integer(value)),
        ({**_INTEGER, "description": "As its text."},),
        _EXPECTED_ID,
    ),
]
"""Of anything else, in a body: kept as text."""
History = Annotated[
    list[ItemId],
    Len(max_length=MAX_HISTORY),
    Field(description="Item ids, oldest first. The model looks at the newest."),
]

Subject = Annotated[
    Id | None,
    Field(description="Who asks, such as a user or a session: decides which of several models answers."),
]


def _whole(value: object) -> object:
    """In JSON Schema, 10.0 is an integer, and 10 with blanks around it is not."""
    if isinstance(value, str) and value != value.strip():
        raise PydanticCustomError("blanks", "must be an integer without blanks around it")
    return int(value) if isinstance(value, float) and value.is_integer() else value


K = Annotated[int, Field(ge=1, le=MAX_K, description="How many items to recommend."), BeforeValidator(_whole)]
SearchLimit = Annotated[int, Field(ge=1, le=100), BeforeValidator(_whole)]
HistoryLimit = Annotated[int, Field(ge=1, le=MAX_HISTORY), BeforeValidator(_whole)]


class RequestModel(BaseModel):
    """A JSON body. Nothing is guessed: an unknown field or a number in quotes is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


OLD_NAMES = {"allow": "candidates", "deny": "exclude_items"}
_BOTH: list[JsonValue] = [{"required": [new, old]} for new, old in OLD_NAMES.items()]


class Options(RequestModel):
    """What may be recommended: as in Python and on the command line."""

    model_config = ConfigDict(json_schema_extra={"not": {"anyOf": _BOTH}})

    k: K = 10
    exclude_seen: bool | None = Field(
        None, description="Leave out the items of the history. By default as the model was evaluated."
    )
    allow: list[ItemId] | None = Field(
        None, max_length=MAX_LISTED, description="Recommend nothing but these items."
    )
    deny: list[ItemId] | None = Field(None, max_length=MAX_LISTED, description="Never recommend these items.")
    where: Where | None = Field(None, description="Recommend nothing but items with these attributes.")
    diversity: float = Field(
        0.0, ge=0, le=1, description="From 0, the best by score, to 1, items that differ from each other."
    )
    candidates: list[ItemId] | None = Field(
        None,
        max_length=MAX_LISTED,
        description="The old name of `allow`.",
        json_schema_extra={"deprecated": True},
    )
    exclude_items: list[ItemId] | None = Field(
        None,
        max_length=MAX_LISTED,
        description="The old name of `deny`.",
        json_schema_extra={"deprecated": True},
    )

    @model_validator(mode="after")
    def _one_name_each(self) -> Self:
        given = self.model_fields_set
        for new, old in OLD_NAMES.items():
            if old in given and new in given:
                raise PydanticCustomError("two_names", f"send {new} alone; {old} is its old name")
        return self

    @property
    def rules(self) -> Rules:
        """What the recommender is asked."""
        allow = self.candidates if self.allow is None else self.allow
        deny = self.exclude_items if self.deny is None else self.deny
        return Rules(self.k, self.exclude_seen, allow, deny, self.where, self.diversity)


class ByHistory(Options):
    """Recommend by a history that the request carries. Nothing is stored."""

    history: History
    subject: Subject = None

    @property
    def asker(self) -> str | None:
        """Who asks, as tests of several models tell people apart."""
        return self.subject


class ByUser(Options):
    """Recommend by the events that were stored for a user."""

    user_id: Id

    @property
    def asker(self) -> str | None:
        return self.user_id


def _kind(value: Any) -> str:
    by_user = "user_id" in value if isinstance(value, dict) else isinstance(value, ByUser)
    return BY_USER if by_user else BY_HISTORY


RecommendRequest = Annotated[
    Annotated[ByHistory, Tag(BY_HISTORY)] | Annotated[ByUser, Tag(BY_USER)], Discriminator(_kind)
]


class BatchRequest(RequestModel):
    """Up to 256 requests at once. Each is checked by itself: a wrong one does not affect the others."""

    requests: list[Any] = Field(max_length=MAX_BATCH, description="Each as the body of /v1/recommend.")


class RankRequest(RequestModel):
    """Rank the given items, including those of the history."""

    history: History
    items: list[ItemId] = Field(min_length=1, max_length=MAX_RANKED)
    subject: Subject = None


class ExplainRequest(RequestModel):
    history: History
    item_id: ItemId


class ParametersModel(BaseModel):
    """Parameters in the path and the query. Everything is text there, and unknown names are ignored."""

    model_config = ConfigDict(frozen=True)


class SimilarRequest(ParametersModel):
    item_id: TextId
    k: K = 10


class SearchRequest(ParametersModel):
    query: Annotated[str, StringConstraints(max_length=MAX_ID)]
    limit: SearchLimit = 20


class UserRequest(ParametersModel):
    user_id: TextId


class RollbackRequest(ParametersModel):
    arm: Annotated[str, StringConstraints(max_length=MAX_ID)] | None = Field(
        None, description="Which of several models."
    )


class HistoryRequest(UserRequest):
    limit: HistoryLimit = MAX_HISTORY


class ModelName(BaseModel):
    name: str
    version: str
    arm: str = Field("", description="Its name among several models; absent where there is but one.")


class CatalogueItem(BaseModel):
    item_id: str | int = Field(description="An integer where the ids of the model's data are integers.")
    title: str | None


class RecommendedItem(CatalogueItem):
    score: float = Field(description="Comparable within one response only.")


UnknownItems = Annotated[
    list[str | int], Field(description="Ids the model does not know; they were skipped.")
]


class Context(BaseModel):
    source: Literal["request", "store"]
    used: int = Field(description="How many items of the history the model looked at.")
    unknown_items: UnknownItems


class Recommendations(BaseModel):
    recommendation_id: str
    model: ModelName
    items: list[RecommendedItem]
    context: Context
    fallback: Literal["popular"] | None = Field(
        description='"popular" if the model knows no item of the history; the scores are then counts.'
    )
    took_ms: float


class SimilarItems(BaseModel):
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


class Contribution(CatalogueItem):
    effect: float = Field(description="How much the score falls when this action is left out.")


class Explanation(BaseModel):
    model: ModelName
    item: RecommendedItem
    contributions: list[Contribution] = Field(
        description="One for each action the model looked at, oldest first."
    )
    attention: list[list[list[float]]] | None = Field(
        description="[layer][head][action]: attention to each action and, last, to the predicted position."
    )
    unknown_items: UnknownItems
    fallback: Literal["popular"] | None = Field(
        description='"popular" if the model knows no item of the history; the score is then a count.'
    )
    took_ms: float


class FoundItems(BaseModel):
    items: list[CatalogueItem]


class SampleUser(BaseModel):
    user_id: str | int = Field(description="An integer where the ids of users are integers.")
    history: list[CatalogueItem]


class SampleUsers(BaseModel):
    samples: list[SampleUser]


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
