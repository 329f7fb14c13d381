"""What each way to learn can be told: the section `objective` of a configuration. Needs no torch."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Cloze:
    """Which items of a sample are hidden. What is hidden is always replaced by [mask] (authors' code)."""

    mask_probability: float = 0.2
    """Share of a sample's items that is hidden, rounded, but at least one item. rho in the paper."""
    last_item_share: float = 0.1
    """Share of the samples in which only the last item is hidden, as at test time."""
    prefix_share: float = 0.0
    """Share of the samples that are cut at a random place, and then only their last item is hidden."""
    window_step: float = 0.5
    """Histories longer than the model sees are cut into windows this share of the length apart."""

    def __post_init__(self) -> None:
        assert 0 < self.mask_probability <= 1
        assert self.last_item_share >= 0
        assert self.prefix_share >= 0
        assert self.last_item_share + self.prefix_share <= 1


@dataclass(frozen=True)
class NextItem:
    """The losses of SASRec."""

    loss: Literal["cross-entropy", "binary"] = "cross-entropy"
    """`binary` is the original: each answer against one item drawn at random, right or wrong.
    `cross-entropy` is the exact softmax over all items."""
    window_step: float = 0.5
    """Histories longer than the model sees are cut into windows this share of the length apart."""


@dataclass(frozen=True)
class BatchRanking:
    """The losses of GRU4Rec (2016): each answer against answers of the other samples of the batch."""

    loss: Literal["top1", "bpr"] = "top1"
    """TOP1 or the pairwise loss of BPR."""
    window_step: float = 0.5
    """Histories longer than the model sees are cut into windows this share of the length apart."""


@dataclass(frozen=True)
class SampledRanking:
    """The losses of GRU4Rec+ (2018): as before, with more items drawn to compare with, the hardest counting most."""

    loss: Literal["bpr-max", "top1-max", "cross-entropy"] = "bpr-max"
    """`cross-entropy` is the exact softmax over all items; it draws none."""
    negatives: int = 2048
    """Items drawn for each batch, besides the answers of its samples."""
    exponent: float = 0.5
    """They are drawn by popularity to this power: 0 is evenly, 1 as often as they are chosen."""
    penalty: float = 1.0
    """Weight of BPR-max's penalty on high scores of what was drawn."""
    window_step: float = 0.5
    """Histories longer than the model sees are cut into windows this share of the length apart."""


@dataclass(frozen=True)
class Pairwise:
    """The chosen item should score higher than one that was not chosen (BPR)."""

    negatives: int = 1
    """Items drawn for each chosen one."""
    exponent: float = 0.0
    """They are drawn by popularity to this power: 0 is evenly, 1 as often as they are chosen."""
    targets = 1


@dataclass(frozen=True)
class Pointwise:
    """Each item is judged on its own: was it chosen or not?"""

    negatives: int = 4
    """Items drawn for each chosen one."""
    exponent: float = 0.0
    """They are drawn by popularity to this power: 0 is evenly, 1 as often as they are chosen."""
    targets = 1


@dataclass(frozen=True)
class SkippingPointwise:
    """As `Pointwise`, but items a little further on are right answers too."""

    negatives: int = 3
    """Items drawn for each chosen one."""
    exponent: float = 0.0
    """They are drawn by popularity to this power: 0 is evenly, 1 as often as they are chosen."""
    targets: int = 3
    """How many of the following items are right answers. T in the Caser paper."""
