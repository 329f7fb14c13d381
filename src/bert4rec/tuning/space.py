"""What a search may change, and between which bounds: one table for all models.

A range is fitted to the default of the model at hand, which it always contains, and to the limits on the setting's own
field. A setting that the table does not name stays as it is, unless it has a few named values, as losses do: these are
all tried.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from bert4rec.settings.config import make_config
from bert4rec.settings.objectives import RunConfig
from bert4rec.settings.presets import list_presets, load_preset
from bert4rec.settings.sections import SECTIONS
from bert4rec.training.plan import flat

Ranges = dict[str, BaseDistribution]
"""Setting → its range, as Optuna takes it."""
Limits = tuple[float, float]


class Range(Protocol):
    """Where a setting is searched."""

    def around(self, default: Any, limits: Limits) -> BaseDistribution | None:
        """The range for a model with this default; None if there is nothing to choose."""
        ...


@dataclass(frozen=True)
class Between:
    """Any number between two; whole ones where the default is one. `log`: as many small ones as large ones."""

    low: float
    high: float
    log: bool = False

    def around(self, default: Any, limits: Limits) -> BaseDistribution | None:
        low, high = max(limits[0], min(self.low, default)), min(limits[1], max(self.high, default))
        if self.log and low <= 0:
            return None
        if isinstance(default, int):
            return IntDistribution(int(low), int(high), log=self.log)
        return FloatDistribution(low, high, log=self.log)


@dataclass(frozen=True)
class Near:
    """Up to so many times more or less than the default."""

    factor: float

    def around(self, default: Any, limits: Limits) -> BaseDistribution | None:
        return Between(default / self.factor, default * self.factor, log=True).around(default, limits)


@dataclass(frozen=True)
class OneOf:
    """Some values, and the default."""

    values: tuple[Any, ...]

    def around(self, default: Any, limits: Limits) -> BaseDistribution | None:  # noqa: ARG002
        choices = dict.fromkeys((default, *self.values))
        return CategoricalDistribution(tuple(choices)) if len(choices) > 1 else None


@dataclass(frozen=True)
class Times:
    """Multiples of the default, which is one of them."""

    factors: tuple[float, ...]

    def around(self, default: Any, limits: Limits) -> BaseDistribution | None:
        multiples = [type(default)(default * factor) for factor in self.factors]
        return OneOf(tuple(each for each in multiples if limits[0] <= each <= limits[1])).around(
            default, limits
        )


RANGES: dict[str, Range] = {
    "model.dim": Times((0.5, 2, 4)),
    "model.layers": Between(1, 4),
    "model.max_length": Times((0.25, 0.5, 2)),
    "model.embedding_dropout": Between(0, 0.6),
    "model.hidden_dropout": Between(0, 0.6),
    "model.attention_dropout": OneOf((0.0, 0.1, 0.2)),  # A CPU is much faster with none at all.
    "model.horizontal": Times((0.5, 2)),
    "model.vertical": Times((0.5, 2)),
    "objective.mask_probability": Between(0.1, 0.7),
    "objective.last_item_share": Between(0, 0.2),
    "objective.prefix_share": Between(0, 0.8),
    "objective.next_item_weight": Near(4),
    "objective.window_step": OneOf((0.1, 0.25, 0.5, 1.0)),
    "objective.negatives": Times((0.5, 2, 4)),
    "objective.exponent": Between(0, 1),
    "objective.penalty": Between(0, 2),
    "objective.targets": Between(1, 4),
    "training.batch_size": Times((0.5, 2)),
    "training.learning_rate": Near(5),
    "training.weight_decay": Between(0.001, 1, log=True),
    "training.steps": Times((0.5, 2)),
}
"""What is searched where a model has such a setting. `model.heads` follows `model.dim`."""
LATE = (
    "model.embedding_dropout",
    "model.hidden_dropout",
    "model.attention_dropout",
    "training.weight_decay",
)
"""What keeps a long training from learning by heart. A short one is better without, which says nothing about a whole
one: where trials are much shorter, these stay as they are."""
ENOUGH = 0.2
"""Share of a whole training from which on a trial tells what `LATE` settings do, and much about the others."""


@dataclass(frozen=True)
class Space:
    """The settings of one search."""

    model: str
    default: RunConfig
    """What `train` would use."""
    longest: int
    """Actions of the longest history: a model that could see more would see no more."""
    share: float
    """How much of a whole training a trial is."""
    fixed: tuple[str, ...] = ()
    """Settings that stay as they are."""

    @cached_property
    def usual(self) -> dict[str, Any]:
        """The default, setting by setting."""
        return flat(self.default.as_dict())

    @cached_property
    def ranges(self) -> Ranges:
        """The settings to search. How long to train is among them where trials are whole trainings."""
        left_out = {*self.fixed, *(LATE if self.share < ENOUGH else ())}
        left_out |= {
            key for key, value in self.usual.items() if value == "auto"
        }  # Every training finds it out.
        if self.share < 1:
            left_out.add("training.steps")
        found: Ranges = {}
        for section, cls in SECTIONS[self.model].classes().items():
            for name, kind in get_type_hints(cls, include_extras=True).items():
                key = f"{section}.{name}"
                searched = OneOf(get_args(kind)) if get_origin(kind) is Literal else RANGES.get(key)
                if key == "model.max_length" and isinstance(searched, Times):
                    searched = self._lengths_that_matter(searched)
                if key == "objective.window_step" and not self._cuts_windows(found):
                    continue
                if searched and key in self.usual and key not in left_out:
                    fitted = searched.around(self.usual[key], _limits(kind))
                    found |= {key: fitted} if fitted else {}
        return found

    def _lengths_that_matter(self, searched: Times) -> Times:
        """Without those that show as much of every history as the default does."""
        default = self.usual["model.max_length"]
        return Times(tuple(each for each in searched.factors if min(each, 1) * default < self.longest))

    def _cuts_windows(self, ranges: Iterable[str]) -> bool:
        """Whether some history may be longer than what a model sees."""
        return "model.max_length" in ranges or self.usual.get("model.max_length", 0) < self.longest

    def nearest(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """These settings as far as they are searched, each moved into its range if it lies outside."""
        found: dict[str, Any] = {}
        for key, searched in self.ranges.items():
            found[key] = value = settings[key]
            if isinstance(searched, FloatDistribution | IntDistribution):
                found[key] = min(max(value, searched.low), searched.high)
            elif isinstance(searched, CategoricalDistribution) and not isinstance(value, str):
                found[key] = min(searched.choices, key=lambda choice: abs(choice - value))
        return found

    def presets(self) -> list[dict[str, Any]]:
        """What the model's presets have of the settings that are searched, the narrowest first: they are the fastest.

        The paper's own are left out: they need hours to show what they can do.
        """
        tried = [self.nearest(self.usual)]
        for preset in list_presets(self.model):
            settings = {**self.usual, **flat(load_preset(self.model, preset))}
            params = self.nearest({**settings, "training.steps": self.usual["training.steps"]})
            if not preset.endswith("-paper") and params not in tried:
                tried.append(params)
        return sorted(tried[1:], key=lambda params: params.get("model.dim", 0))

    def config_of(self, params: Mapping[str, Any]) -> RunConfig:
        """The complete settings of the whole training that a trial stands for.

        Numbers are rounded to three digits. Heads keep their width, warm-up and validations their share of the steps.
        """
        settings = {
            key: float(f"{value:.3g}") if isinstance(value, float) and value != self.usual[key] else value
            for key, value in params.items()
        }
        wider = settings["model.dim"] / self.usual["model.dim"] if "model.dim" in settings else 1
        longer = settings.get("training.steps", self.usual["training.steps"]) / self.usual["training.steps"]
        followers = {
            "model.heads": wider,
            "training.warmup_steps": longer,
            "training.validate_every": longer,
        }
        for key, factor in followers.items():
            if key in self.usual and key not in self.fixed and factor != 1:
                settings[key] = max(1, int(self.usual[key] * factor))
        return make_config(self.model, self.default.as_dict(), settings)

    def changes(self, config: RunConfig) -> dict[str, Any]:
        """What differs from the default."""
        return {key: value for key, value in flat(config.as_dict()).items() if value != self.usual[key]}


def shortened(config: RunConfig, share: float, validations: int) -> RunConfig:
    """The same training with a share of the steps, and at most so many validations on the way."""
    training = config.training
    assert training
    steps = max(1, round(training.steps * share))
    return replace(
        config,
        training=replace(
            training,
            steps=steps,
            warmup_steps=round(training.warmup_steps * steps / training.steps),
            validate_every=math.ceil(steps / validations),
        ),
    )


def _limits(kind: Any) -> Limits:
    """What the field of a setting allows. A bound that is not allowed itself is taken as if it were: no range comes so
    near."""
    low, high = -math.inf, math.inf
    for limit in get_args(kind)[1:]:
        if isinstance(limit, Ge | Gt):
            low = float(limit.ge if isinstance(limit, Ge) else limit.gt)  # type: ignore[arg-type]
        elif isinstance(limit, Le | Lt):
            high = float(limit.le if isinstance(limit, Le) else limit.lt)  # type: ignore[arg-type]
    return low, high
