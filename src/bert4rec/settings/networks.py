"""The settings of each network: the section `model` of a configuration.

Limits stand on the fields and are checked where a configuration is made (`settings.config`); rules between fields are
checked by the class. Needs no torch, so that a mistake is reported at once.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt, Predicate

from bert4rec.errors import UsageError

Count = Annotated[int, Ge(1)]
Dropout = Annotated[float, Ge(0), Lt(1)]
Share = Annotated[float, Ge(0), Le(1)]
ShareAboveZero = Annotated[float, Gt(0), Le(1)]
ZeroOrMore = Annotated[float, Predicate(math.isfinite), Ge(0)]
AboveZero = Annotated[float, Predicate(math.isfinite), Gt(0)]
Length = Annotated[int, Ge(2)]
"""Of a sequence: [mask] and something before it."""


@dataclass(frozen=True)
class ModelSettings:
    """The settings of a network. A model of your own extends it with fields that have a default and a docstring."""

    @property
    def width(self) -> int:
        """Width of the model's vectors, which the usual learning rate depends on; 0 if it has none."""
        return 0


@dataclass(frozen=True)
class VectorSettings(ModelSettings):
    """The settings of a network that gives every item a vector."""

    dim: Count = 64
    """Width of the vectors of users and items."""

    @property
    def width(self) -> int:
        return self.dim


@dataclass(frozen=True)
class PopConfig(ModelSettings):
    """What is counted."""

    actions: Literal["training", "all"] = "training"
    """`all` counts the targets too. That is leakage, but it is what the authors' evaluator does."""


@dataclass(frozen=True)
class BPRMFConfig(VectorSettings):
    """The size of the factors."""

    dim: Count = 64
    """Width of the vectors of users and items."""


@dataclass(frozen=True)
class NCFConfig(VectorSettings):
    """The size of the two towers."""

    dim: Count = 64
    """Width of the vectors of both towers."""
    layers: Count = 3
    """Layers of the network; each is half as wide as the one before, the first as wide as `dim`."""
    hidden_dropout: Dropout = 0.0
    """Share of the network's layers that is dropped."""

    def __post_init__(self) -> None:
        if not self.dim >> (self.layers - 1):
            raise UsageError(f"model.dim = {self.dim} cannot be halved for model.layers = {self.layers}.")


@dataclass(frozen=True)
class FPMCConfig(VectorSettings):
    """The size of the factors."""

    dim: Count = 64
    """Width of the vectors of users and items."""


@dataclass(frozen=True)
class GRUConfig(VectorSettings):
    """The size of the network, and its dropout in training."""

    dim: Count = 64
    """Width of the embeddings and of the recurrent state."""
    layers: Count = 1
    """Number of recurrent layers."""
    max_length: Length = 200
    """Longest history the model sees; older items are dropped."""
    embedding_dropout: Dropout = 0.2
    """Share of the embedded input that is dropped."""
    hidden_dropout: Dropout = 0.2
    """Share of the output of each recurrent layer that is dropped."""


@dataclass(frozen=True)
class CaserConfig(VectorSettings):
    """The size of the network, and its dropout in training."""

    dim: Count = 64
    """Width of the vectors of users and items."""
    max_length: Length = 5
    """Last items that are looked at. L in the Caser paper."""
    horizontal: Count = 16
    """Horizontal filters of each height."""
    vertical: Count = 4
    """Vertical filters."""
    hidden_dropout: Dropout = 0.5
    """Share of the output of the filters that is dropped."""


@dataclass(frozen=True)
class ModelConfig(VectorSettings):
    """The size of the network of BERT4Rec and SASRec, and its dropout in training."""

    dim: Count = 64
    """Width of the hidden states. d in the paper."""
    layers: Count = 2
    """Number of Transformer layers. L in the paper."""
    heads: Count = 2
    """Attention heads; the paper takes one for each 32 of `dim`. h in the paper."""
    feed_forward: Count = 4
    """Width of the feed-forward network, in multiples of `dim`."""
    max_length: Length = 200
    """Longest history the model sees, [mask] included; older items are dropped. N in the paper."""
    embedding_dropout: Dropout = 0.2
    """Share of the embedded input that is dropped."""
    hidden_dropout: Dropout = 0.2
    """Share of each sub-layer's output that is dropped, before it is added to its input."""
    attention_dropout: Dropout = 0.2
    """Share of the attention weights that is dropped."""

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            # Twice the heads, because BERT4Rec+ turns the channels of a head in pairs.
            step = 2 * self.heads
            below = self.dim // step * step
            near = " or ".join(str(width) for width in (below, below + step) if width)
            raise UsageError(
                f"model.dim = {self.dim} must be a multiple of model.heads = {self.heads}, such as {near}."
            )


Ask = Literal["mask", "last", "both"]


@dataclass(frozen=True)
class PlusConfig(ModelConfig):
    """The size of the network of BERT4Rec+, its dropout in training, and how it is asked what comes next."""

    dim: Count = 128
    """Width of the hidden states. d in the paper."""
    heads: Count = 4
    """Attention heads."""
    ask: Literal[Ask, "auto"] = "auto"
    """`mask` asks by [mask] behind the history, which looks in both directions; `last` asks by the newest item, which
    looks back; `both` takes the mean of the two queries. `auto` takes what the validation items prefer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim // self.heads % 2:
            raise UsageError(
                f"model.dim = {self.dim} and model.heads = {self.heads} give heads of {self.dim // self.heads} "
                "channels; it must be an even number, because positions turn them in pairs. The next larger model.dim "
                f"that works is {self.dim + self.heads}."
            )
