"""The models of requests and responses about feedback: what recommendations led to."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from bert4rec.service.contract.event_schemas import Moment
from bert4rec.service.contract.schemas import MAX_EVENTS, Id, RequestModel, StoredItemId
from bert4rec.store.feedback import CLICK

Kind = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$")]


class FeedbackIn(RequestModel):
    """What somebody did with a recommended item. The same recommendation, item and kind counts once."""

    recommendation_id: Id = Field(description="Of the answer that recommended the item.")
    item_id: StoredItemId
    kind: Kind = Field(
        CLICK, description="Any word of yours: purchase, for example. Each kind is compared by itself."
    )
    timestamp: Moment | None = Field(
        None, description="RFC 3339, with its time zone; by default, the moment of arrival."
    )


class FeedbackRequest(RequestModel):
    feedback: list[FeedbackIn] = Field(max_length=MAX_EVENTS)


class RejectedFeedback(BaseModel):
    index: int
    code: Literal["malformed_recommendation_id", "future_recommendation_id", "future_timestamp"] = Field(
        description="Not an id of ours; or more than a day ahead of the server's clock."
    )


class FeedbackResponse(BaseModel):
    accepted: int
    duplicates: int = Field(description="What was received before.")
    rejected: list[RejectedFeedback]
