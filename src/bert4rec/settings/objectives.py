"""What each way to learn can be told, and how the weights are found: sections `objective` and `training`.

Limits stand on the fields; see `settings.networks`. Needs no torch.
"""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from bert4rec.errors import UsageError
from bert4rec.settings.networks import (
    AboveZero,
    Count,
    ModelSettings,
    PlusConfig,
    Share,
    ShareAboveZero,
    ZeroOrMore,
)


@dataclass(frozen=True)
class TrainingConfig:
    """How the weights are found."""

    batch_size: Count = 256
    """Samples a step."""
    steps: Count = 10_000
    """Steps at most. The learning rate falls to zero here."""
    learning_rate: AboveZero = 1e-3
    """Highest learning rate, reached at the end of the warm-up."""
    warmup_steps: Annotated[int, Ge(0)] = 200
    """Steps over which the learning rate rises from zero."""
    weight_decay: ZeroOrMore = 0.01
    """Of AdamW; on matrices and tables, not on biases and norms."""
    clip_norm: AboveZero = 5.0
    """Gradients whose norm is larger are scaled down to it."""
    validate_every: Count = 500
    """Steps from one validation to the next."""
    patience: Count = 10
    """Validations without improvement after which training stops."""


@dataclass(frozen=True)
class ObjectiveSettings:
    """The settings of a way to learn, and what they mean for a training without a preset."""

    samples_are: ClassVar[Literal["users", "actions"]] = "users"
    """What a training sample is made from, and so what counts as the size of the data."""

    @staticmethod
    def usual_learning_rate(width: int) -> float:  # noqa: ARG004
        """Without a preset, for a model of this width."""
        return TrainingConfig.learning_rate

    def check_network(self, network: ModelSettings) -> None:
        """Refuse a network that does not go with this way to learn."""


@dataclass(frozen=True)
class RunConfig:
    """The complete settings of a run. Which classes the sections have depends on the model."""

    model: ModelSettings
    objective: ObjectiveSettings | None
    training: TrainingConfig | None
    """None, as the objective is, where there is nothing to train."""

    def __post_init__(self) -> None:
        if self.objective:
            self.objective.check_network(self.model)

    def as_dict(self) -> dict[str, Any]:
        """Section → setting → value, ready for JSON."""
        return {section: values for section, values in asdict(self).items() if values is not None}

    def as_recorded(self) -> dict[str, Any]:
        """The same as results and checkpoints know it: without what all runs had before there was a choice.

        So those of earlier versions are found.
        """
        recorded = self.as_dict()
        if recorded.get("objective", {}).get("negatives") == 0:
            del recorded["objective"]["negatives"]
        return recorded


@dataclass(frozen=True)
class Cloze(ObjectiveSettings):
    """Which items of a sample are masked. A masked item is always replaced by [mask] (authors' code)."""

    mask_probability: ShareAboveZero = 0.2
    """Share of a sample's items that is masked, rounded, but at least one item. rho in the paper."""
    last_item_share: Share = 0.1
    """Share of the samples in which only the last item is masked, as at test time."""
    prefix_share: Share = 0.5
    """Share of the samples that are cut at a random place, and then only their last item is masked. Small logs and
    short histories gain much by it; long ones lose almost nothing."""
    window_step: ShareAboveZero = 0.5
    """Histories longer than the model sees are cut into windows this share of the length apart."""
    negatives: Annotated[int, Ge(0)] = 0
    """Items drawn for each batch, which targets are compared with (sampled softmax); 0 compares with all items (exact
    softmax). Without a preset: 0 up to a million items, 65536 above."""

    @staticmethod
    def usual_learning_rate(width: int) -> float:
        """A few masked items a sample teach slowly, so twice the usual rate; wider models may fail to learn at it."""
        return (2 if width <= 64 else 1) * TrainingConfig.learning_rate

    def __post_init__(self) -> None:
        if self.last_item_share + self.prefix_share > 1:
            raise UsageError(
                f"objective.last_item_share = {self.last_item_share} and objective.prefix_share = {self.prefix_share} "
                "must not sum to more than 1."
            )


@dataclass(frozen=True)
class Joint(ObjectiveSettings):
    """Masked items and next items, learned in the same step."""

    mask_probability: ShareAboveZero = 0.4
    """Share of a sample's items that is masked, rounded, but at least one item. rho in the paper."""
    last_item_share: Share = 0.1
    """Share of the samples in which only the last item is masked, as at test time."""
    next_item_weight: ZeroOrMore = 1.0
    """Weight of next-item prediction, where that of masked items is 1. With 0 only masked items are learned; ask by
    `mask` then."""
    window_step: ShareAboveZero = 0.5
    """Histories longer than the model sees are cut into windows this share of the length apart."""
    negatives: Annotated[int, Ge(0)] = 0
    """Items drawn for each batch, which targets are compared with (sampled softmax); 0 compares with all items (exact
    softmax). Without a preset: 0 up to a million items, 65536 above."""

    def check_network(self, network: ModelSettings) -> None:
        """Refuse to ask in a way that is not learned."""
        if not self.next_item_weight and isinstance(network, PlusConfig) and network.ask != "mask":
            raise UsageError(
                f"objective.next_item_weight = 0 teaches masked items only, so model.ask = {network.ask} could ask "
                "what was not learned. Set model.ask to mask."
            )

    @property
    def cloze(self) -> Cloze:
        """The half that masks items. Prefixes of histories are what the other half learns from."""
        return Cloze(self.mask_probability, self.last_item_share, 0.0, self.window_step)


class NextItemSettings(ObjectiveSettings):
    """What all losses of next-item prediction have. Those that are not settings of a class keep the values here."""

    loss: str
    window_step: float
    negatives, exponent, penalty = 0, 0.0, 0.0

    @property
    def softmax_negatives(self) -> int:
        """Of a sampled softmax; 0 where the loss is another, or the exact one."""
        return 0


@dataclass(frozen=True)
class NextItem(NextItemSettings):
    """The losses of SASRec."""

    loss: Literal["cross-entropy", "binary"] = "cross-entropy"
    """`binary` is the original: each target against one item drawn at random, right or wrong.
    `cross-entropy` is the softmax over all items."""
    window_step: ShareAboveZero = 0.5
    """Histories longer than the model sees are cut into windows this share of the length apart."""
    negatives: Annotated[int, Ge(0)] = 0
    """With `cross-entropy`: items drawn for each batch, which targets are compared with (sampled softmax); 0 compares
    with all items (exact softmax). Without a preset: 0 up to a million items, 65536 above."""

    @property
    def softmax_negatives(self) -> int:
        return self.negatives if self.loss == "cross-entropy" else 0


@dataclass(frozen=True)
class BatchRanking(NextItemSettings):
    """The losses of GRU4Rec (2016): each target against targets of the other samples of the batch."""

    loss: Literal["top1", "bpr"] = "top1"
    """TOP1 or the pairwise loss of BPR."""
    window_step: ShareAboveZero = 0.5
    """Histories longer than the model sees are cut into windows this share of the length apart."""


@dataclass(frozen=True)
class SampledRanking(NextItemSettings):
    """The losses of GRU4Rec+ (2018): as before, with more items drawn to compare with, the hardest counting most."""

    loss: Literal["bpr-max", "top1-max", "cross-entropy"] = "bpr-max"
    """`cross-entropy` is the exact softmax over all items; it draws none."""
    negatives: Count = 2048
    """Items drawn for each batch, besides the targets of its samples."""
    exponent: ZeroOrMore = 0.5
    """They are drawn by popularity to this power: 0 is evenly, 1 as often as they are chosen."""
    penalty: ZeroOrMore = 1.0
    """Weight of BPR-max's penalty on high scores of what was drawn."""
    window_step: ShareAboveZero = 0.5
    """Histories longer than the model sees are cut into windows this share of the length apart."""


class PairSettings(ObjectiveSettings):
    """What all losses that compare a chosen item with items that were not chosen have."""

    samples_are = "actions"
    loss: ClassVar[Literal["pairwise", "pointwise"]]
    negatives: int
    exponent: float
    targets = 1


@dataclass(frozen=True)
class Pairwise(PairSettings):
    """The chosen item should score higher than one that was not chosen (BPR)."""

    loss = "pairwise"
    negatives: Count = 1
    """Items drawn for each chosen one."""
    exponent: ZeroOrMore = 0.0
    """They are drawn by popularity to this power: 0 is evenly, 1 as often as they are chosen."""


@dataclass(frozen=True)
class Pointwise(PairSettings):
    """Each item is judged on its own: was it chosen or not?"""

    loss = "pointwise"
    negatives: Count = 4
    """Items drawn for each chosen one."""
    exponent: ZeroOrMore = 0.0
    """They are drawn by popularity to this power: 0 is evenly, 1 as often as they are chosen."""


@dataclass(frozen=True)
class SkippingPointwise(PairSettings):
    """As `Pointwise`, but items a little further on are targets too."""

    loss = "pointwise"
    negatives: Count = 3
    """Items drawn for each chosen one."""
    exponent: ZeroOrMore = 0.0
    """They are drawn by popularity to this power: 0 is evenly, 1 as often as they are chosen."""
    targets: Count = 3
    """How many of the following items are targets. T in the Caser paper."""
