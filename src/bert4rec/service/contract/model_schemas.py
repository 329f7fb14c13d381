"""The models of responses about models: which one serves, and what it was trained on."""

from typing import Literal

from pydantic import BaseModel, Field

from bert4rec.service.contract.schemas import ModelName


class Training(BaseModel):
    """What a model has seen, and how good it was on what it had not."""

    model: str = Field(description="Its kind, such as bert4rec+.")
    stage: str = Field(
        description='"selection", "refit" (all but the test items) or "production" (everything).'
    )
    actions: int = Field(description="How many actions it has seen,")
    users: int = Field(description="of how many users,")
    items: int = Field(description="on how many items.")
    metrics: dict[str, float] = Field(
        description="Protocol → NDCG@10 on the test items, by the last stage that had not seen them."
    )


class ModelState(ModelName):
    state: Literal["current", "previous"]
    num_items: int
    max_history: int
    exclude_seen: bool = Field(description="The default of `exclude_seen` in requests.")
    loaded_at: str
    share: int | None = Field(None, description="Of users, beside those of the others; absent as `arm` is.")
    serving_since: str | None = Field(description="When it took over; null if it does not answer now.")
    trained_until: str | None = Field(
        description="When the newest action was made that it has seen; null if that is not known."
    )
    trained: Training | None = Field(description="null for models of earlier versions.")


class ModelStates(BaseModel):
    models: list[ModelState]
