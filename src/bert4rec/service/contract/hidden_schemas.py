"""The models of requests and responses about hidden items."""

from pydantic import BaseModel, Field

from bert4rec.service.contract.event_schemas import Moment
from bert4rec.service.contract.schemas import (
    CatalogueItem,
    HistoryLimit,
    ParametersModel,
    RequestModel,
    StoredTextId,
    TextId,
)


class Period(RequestModel):
    """How long an item is hidden; without anything said, from now on and for good."""

    begin: Moment | None = Field(default=None, alias="from", description="RFC 3339; now where it is missing.")
    end: Moment | None = Field(
        default=None,
        alias="until",
        description="The moment from which on it may be recommended again; later than `from`.",
    )


class HideRequest(ParametersModel):
    item_id: StoredTextId
    body: Period = Period()


class UnhideRequest(ParametersModel):
    item_id: TextId


class HiddenRequest(ParametersModel):
    limit: HistoryLimit | None = Field(
        None, description="How many to list, the latest to begin first; all of them where it is missing."
    )


class HiddenItem(CatalogueItem):
    begin: str = Field(alias="from")
    until: str | None
    hidden_now: bool = Field(description="Whether this moment lies between the two.")


class HiddenItems(BaseModel):
    items: list[HiddenItem]
    total: int


class ShownItem(CatalogueItem):
    was_listed: bool = Field(
        description="Whether it was hidden, or was to be, or had been until its time was over."
    )
