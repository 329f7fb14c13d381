"""What stands in for a preset where none is named: settings that follow from the data. Needs no torch."""

import math
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bert4rec.data.dataset import Dataset
from bert4rec.settings.objectives import Cloze, Joint, NextItem, TrainingConfig
from bert4rec.settings.presets import Values
from bert4rec.settings.sections import SECTIONS, Sections

MOST_ITEMS, NEGATIVES = 1_000_000, 65_536
"""Targets are compared with all items up to so many; above, with so many that are drawn. A GPU takes longer for the
softmax over a million items than for all the rest. The catalogue alone decides, and not the device: so results do not
depend on where they were computed."""
PASSES, FEWEST_STEPS = 300, 800
"""How often each sample is seen, and how many steps there are at least."""


@dataclass(frozen=True)
class DataFacts:
    """What `stats` knows of a dataset and settings depend on.

    Density and repeats are not among them: no trial asked for it. Nor does depth follow from them: three layers were no
    better than two on MovieLens 1M.
    """

    users: int
    actions: int
    mean_length: float
    """Actions of a user."""
    longest_length: int
    items: int

    @classmethod
    def of(cls, dataset: Dataset) -> "DataFacts":
        lengths = dataset.lengths
        return cls(
            users=dataset.num_users,
            actions=dataset.num_actions,
            mean_length=round(float(lengths.mean()), 2),
            longest_length=int(lengths.max()),
            items=dataset.num_items,
        )


LARGE = DataFacts(users=138_493, actions=20_000_263, mean_length=144.4, longest_length=9_254, items=26_744)
"""Those of MovieLens 20M: where no dataset is named, its settings are shown."""


def default_settings(
    model: str, facts: DataFacts, given: Mapping[str, Mapping[str, Any]] | None = None
) -> Values:
    """The settings of a model on such data, where they are not those of its classes.

    `given` wins over them, so they may depend on it: the learning rate on a given width, the warm-up on a given number
    of steps.
    """
    given, sections = given or {}, SECTIONS[model]
    found = of_joint_training(facts, given) if model == "bert4rec+" else by_size(sections, facts, given)
    if _can_draw(sections, given):
        found["objective"] = {**found.get("objective", {}), "negatives": usual_negatives(facts.items)}
    return found


def usual_negatives(items: int) -> int:
    """With how many items targets are compared in a catalogue of this size; 0 is all."""
    return NEGATIVES if items > MOST_ITEMS else 0


def _can_draw(sections: Sections, given: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a model learns by a softmax, and so can do with negatives that are drawn."""
    kind, loss = sections.objective, given.get("objective", {}).get("loss", NextItem.loss)
    return kind is not None and issubclass(kind, (Cloze, Joint, NextItem)) and loss == NextItem.loss


def by_size(sections: Sections, facts: DataFacts, given: Mapping[str, Mapping[str, Any]]) -> Values:
    """As many steps as the size of the data needs.

    A log of a few hundred users takes a minute or two; one as large as MovieLens 1M as long as its preset. Warm-up and
    validations go by the steps; the learning rate goes by the width.
    """
    if sections.objective is None:
        return {}
    usual = TrainingConfig()
    samples = facts.users if sections.objective.samples_are == "users" else facts.actions
    steps = min(usual.steps, max(FEWEST_STEPS, PASSES * samples // usual.batch_size))
    steps = given.get("training", {}).get("steps", steps)
    network = sections.model(**given.get("model", {}))
    return {
        "training": {
            "steps": steps,
            "warmup_steps": min(usual.warmup_steps, steps // 10),
            "validate_every": max(1, steps // 20),
            "learning_rate": sections.objective.usual_learning_rate(network.width),
        }
    }


SHORT, LONG = 10.0, 100.0
"""Actions of a user, on average. Settings of histories in between lie in between, on a logarithmic scale."""


@dataclass(frozen=True)
class Size:
    """A width, up to how many actions it is enough for, and what it needs."""

    dim: int
    heads: int
    most_actions: float
    dropout: tuple[float, float]
    """With short and with long histories."""
    learning_rate: tuple[float, float]
    """Likewise."""


SIZES = (
    Size(64, 2, 50_000, (0.45, 0.25), (0.0045, 0.0025)),
    Size(128, 4, 250_000, (0.6, 0.45), (0.002, 0.002)),
    Size(256, 4, math.inf, (0.6, 0.3), (0.001, 0.002)),
)
"""Few actions take a narrow model with a high learning rate."""


def of_joint_training(facts: DataFacts, given: Mapping[str, Mapping[str, Any]]) -> Values:
    """BERT4Rec+: what short histories need, what long ones need, and what lies between the two.

    Short histories are over-fitted soon and so get much dropout, weight decay and masks, and more weight on the next
    item, of which they have few; long ones get less of each. The more actions there are in all, the wider the model may
    be and the less dropout it needs. Steps grow with the root of the number of samples. Where there are few samples,
    batches are small, so that there are enough steps in a short time.
    """
    longness = _between(math.log(facts.mean_length / SHORT) / math.log(LONG / SHORT), 0.0, 1.0)
    max_length = _between(50 * 2 ** math.ceil(math.log2(facts.mean_length / 15)), 50, 200)
    max_length = max(2, min(int(max_length), facts.longest_length))
    samples = max(facts.users, round(2 * facts.actions / max_length))
    size = _size(facts, given.get("model", {}).get("dim"))
    dim = given.get("model", {}).get("dim", size.dim)
    plenty = _between(math.log10(facts.actions / 1e6), 0.0, 1.5)
    if_short, if_long = size.dropout
    dropout = _between(if_short + (if_long - if_short) * longness - 0.15 * plenty, 0.1, 0.6)
    if_short, if_long = size.learning_rate
    rate = if_short * (if_long / if_short) ** longness
    steps = int(_between(round(20 * math.sqrt(samples), -1), 1_250, 20_000))
    steps = given.get("training", {}).get("steps", steps)
    return {
        "model": {
            "dim": dim,
            # As many as leave an even number of channels to each: they are turned in pairs.
            "heads": next((heads for heads in range(size.heads, 1, -1) if dim % (2 * heads) == 0), 1),
            "max_length": max_length,
            "embedding_dropout": round(dropout, 2),
            "hidden_dropout": round(dropout, 2),
            "attention_dropout": 0.0,
        },
        "objective": {
            "mask_probability": round(0.6 - 0.2 * longness, 2),
            "next_item_weight": round(4 - 2 * longness, 2),
        },
        "training": {
            "batch_size": 32 * 2 ** bisect([2_500, 5_000, 9_000], samples),
            "steps": steps,
            # With a shorter one, some trainings of small logs got stuck.
            "warmup_steps": min(max(250, steps // 10), steps // 5),
            "validate_every": max(1, steps // 20),
            "learning_rate": round(rate, 5),
            "weight_decay": round(10**-longness, 2),
            # With 5, the usual, trainings of the small Steam sometimes stayed where popularity is.
            "clip_norm": 1.0,
        },
    }


def _size(facts: DataFacts, given_dim: int | None) -> Size:
    """By the number of actions; where a width is given, the one that is nearest to it."""
    if given_dim:
        return min(SIZES, key=lambda size: abs(math.log(size.dim / given_dim)))
    return next(size for size in SIZES if facts.actions < size.most_actions)


def _between(value: float, least: float, most: float) -> float:
    return min(most, max(least, value))
