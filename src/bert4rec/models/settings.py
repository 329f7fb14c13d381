"""The settings of each network: the section `model` of a configuration. Needs no torch, so a slip is told at once."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PopConfig:
    """What is counted."""

    actions: Literal["training", "all"] = "training"
    """`all` counts the targets too. It peeks, but is what the authors' evaluator does."""


@dataclass(frozen=True)
class BPRMFConfig:
    """The size of the factors."""

    dim: int = 64
    """Width of the vectors of users and items."""


@dataclass(frozen=True)
class NCFConfig:
    """The size of the two towers."""

    dim: int = 64
    """Width of the vectors of both towers."""
    layers: int = 3
    """Layers of the network; each is half as wide as the one before, the first as wide as `dim`."""
    hidden_dropout: float = 0.0
    """Share dropped of the network's layers."""

    def __post_init__(self) -> None:
        assert self.dim >> (self.layers - 1) > 0, f"dim {self.dim} cannot be halved for {self.layers} layers"


@dataclass(frozen=True)
class FPMCConfig:
    """The size of the factors."""

    dim: int = 64
    """Width of the vectors of users and items."""


@dataclass(frozen=True)
class GRUConfig:
    """The size of the network and how much of it is dropped out in training."""

    dim: int = 64
    """Width of the embeddings and of the recurrent state."""
    layers: int = 1
    """Number of recurrent layers."""
    max_length: int = 200
    """Longest history the model sees; older items are dropped."""
    embedding_dropout: float = 0.2
    """Share dropped of the embedded input."""
    hidden_dropout: float = 0.2
    """Share dropped of the output of each recurrent layer."""


@dataclass(frozen=True)
class CaserConfig:
    """The size of the network and how much of it is dropped out in training."""

    dim: int = 64
    """Width of the vectors of users and items."""
    max_length: int = 5
    """Last items that are looked at. L in the Caser paper."""
    horizontal: int = 16
    """Horizontal filters of each height."""
    vertical: int = 4
    """Vertical filters."""
    hidden_dropout: float = 0.5
    """Share dropped of what the filters found."""


@dataclass(frozen=True)
class ModelConfig:
    """The size of the network and how much of it is dropped out in training."""

    dim: int = 64
    """Width of the hidden states. d in the paper."""
    layers: int = 2
    """Number of Transformer layers. L in the paper."""
    heads: int = 2
    """Attention heads; the paper takes one for each 32 of `dim`. h in the paper."""
    feed_forward: int = 4
    """Width of the feed-forward network, in multiples of `dim`."""
    max_length: int = 200
    """Longest history the model sees, [mask] included; older items are dropped. N in the paper."""
    embedding_dropout: float = 0.2
    """Share dropped of the embedded input."""
    hidden_dropout: float = 0.2
    """Share dropped of each sub-layer's output, before it is added to its input."""
    attention_dropout: float = 0.2
    """Share of the attention weights dropped."""

    def __post_init__(self) -> None:
        assert self.dim % self.heads == 0, f"dim {self.dim} is no multiple of the {self.heads} heads"
