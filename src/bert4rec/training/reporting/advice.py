"""What a finished training shows that its user should know: what it is worth, why it may be worth too little, and what
to try next."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.evaluation.yardsticks import LEARNED, Yardsticks
from bert4rec.settings.objectives import RunConfig, TrainingConfig

LATE = 0.9
"""Share of the steps after which a best validation suggests that more steps might have given more."""
LAST_PART, RISE = 0.75, 1.05
"""Share of the steps after which little should be gained, for the learning rate falls to zero; and what is much."""
ABREAST = 0.98
"""Of what counting reaches: what is nearer to it may be chance, and needs no advice."""
EARLY = 0.25
"""Share of the steps up to which a best validation shows that the model over-fits from then on."""

NAMED = 5
"""How many items are named where many are meant."""


def tell_of_restart(restart: Mapping[str, Any]) -> str:
    """What happened, from an entry of `TrainingProgress.restarts`."""
    return (
        f"The {restart['stage']} collapsed at step {restart['step']:,}: {restart['reason']}. It was started over with "
        f"half the learning rate, {restart['learning_rate']:g}."
    )


def tell_of_asking(metric: str, asked: Mapping[str, float]) -> str:
    """Which way of asking was chosen, and what each is worth on the validation items."""
    (best, value), *others = asked.items()
    rest = ", ".join(f"{way} {worth:.4f}" for way, worth in others)
    return (
        f"The model is asked by {best}, the best way on the validation items: {metric} {value:.4f}; {rest}."
    )


def tell_of_untrained(dataset: Dataset, numbers: NDArray[np.int64]) -> str:
    """Which items the final weights never trained on, so that nobody looks for them in vain."""
    items, them = ("1 item", "it") if len(numbers) == 1 else (f"{len(numbers):,} items", "them")
    return (
        f"{items} of the log never occurred in what the final weights were trained on, so the model does not know "
        f'{them}{_named(dataset, numbers)}. `refit="all"` trains on everything.'
    )


def _named(dataset: Dataset, numbers: NDArray[np.int64]) -> str:
    """The first few by id and title, behind a colon."""
    try:
        table = dataset.items()[(numbers[:NAMED] - 1).tolist()]
    except ImportError:  # A machine that only trains may lack polars.
        return ""
    titles = table["title"] if "title" in table.columns else [None] * len(table)
    named = [
        f"{each} ({title})" if title else str(each) for each, title in zip(table["id"], titles, strict=True)
    ]
    return f": {', '.join(named)}{', …' if len(numbers) > NAMED else ''}"


def warn_of_few_steps(
    training: TrainingConfig, validations: Sequence[Mapping[str, Any]], remedy: str = ""
) -> list[str]:
    """A warning if validation was still getting much better close to the end."""
    best = _best_of(validations)
    if not is_rising(training, validations):
        return []
    return [
        f"Validation was still getting better at step {best['step']:,} of {training.steps:,}, so the model may be "
        "under-trained. "
        + (remedy or f"Raise training.steps above {training.steps:,}, or the time limit if there was one.")
    ]


def is_rising(training: TrainingConfig, validations: Sequence[Mapping[str, Any]]) -> bool:
    """Whether validation was getting much better close to the end, where the falling learning rate gives a little."""
    best = _best_of(validations)
    before = [mark["value"] for mark in validations if mark["step"] <= LAST_PART * training.steps]
    return best["step"] > LATE * training.steps and (not before or best["value"] > RISE * max(before))


def _best_of(validations: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return max(validations, key=lambda mark: float(mark["value"]))


def warn_of_selection(
    metric: str,
    training: TrainingConfig,
    marks: Sequence[Mapping[str, Any]],
    yardsticks: Yardsticks,
    remedy: str = "",
) -> list[str]:
    """What is to be said of how the validations went; with `remedy` in the place of settings to try."""
    little = warn_of_little_learned(metric, float(_best_of(marks)["value"]), yardsticks, remedy)
    return warn_of_few_steps(training, marks, remedy) + little


def warn_of_little_learned(metric: str, best: float, yardsticks: Yardsticks, remedy: str = "") -> list[str]:
    """A warning if the model is hardly better than popularity; where that is hard to beat, if it is no better.

    Weights may collapse until everybody is recommended the same, and the run ends as if nothing were wrong.
    """
    popular = yardsticks.popular
    is_hard_to_beat = yardsticks.following < LEARNED * popular
    if best > popular if is_hard_to_beat else best >= LEARNED * popular:
        return []
    relation = "not much more than" if best > popular else "no more than" if best == popular else "less than"
    return [
        f"{metric} on the validation items is {best:.4f}, {relation} the {popular:.4f} of recommending the "
        "most popular items to everybody. "
        + (remedy or "More training.steps, or a lower training.learning_rate, may help.")
    ]


@dataclass(frozen=True)
class Standing:
    """How a model stands on the validation items beside what counting alone reaches."""

    metric: str
    value: float
    popular: float
    following: float
    hint: str
    """What to try next; empty unless the model is clearly behind."""

    @classmethod
    def of(
        cls,
        metric: str,
        value: float,
        yardsticks: Yardsticks,
        config: RunConfig,
        validations: Sequence[Mapping[str, Any]],
        remedy: str = "",
    ) -> "Standing":
        """With a hint where it is clearly behind: `remedy`, or by what its training shows."""
        keeps_up = value > ABREAST * max(yardsticks.popular, yardsticks.following)
        has_learned = value >= LEARNED * yardsticks.popular
        hint = "" if keeps_up else remedy or _what_to_try(config, validations, has_learned=has_learned)
        return cls(metric, value, yardsticks.popular, yardsticks.following, hint)

    def __str__(self) -> str:
        told = (
            f"{self.metric} on the validation items: {self.value:.4f}. Counting what follows the last item gives "
            f"{self.following:.4f}, popularity {self.popular:.4f}."
        )
        return f"{told} {self.hint}".rstrip()


def _what_to_try(config: RunConfig, validations: Sequence[Mapping[str, Any]], *, has_learned: bool) -> str:
    """The one thing that is most likely to help a model that is behind."""
    training, best_step = config.training, _best_of(validations)["step"]
    assert training, "what is not trained stands where it stands"
    if is_rising(training, validations):
        return (
            f"It was still getting better: try more than {training.steps:,} training.steps, or a longer time limit if "
            "there was one."
        )
    if not has_learned:
        rate = training.learning_rate
        return f"It has learned little: try more training.steps, or a training.learning_rate below {rate:g}."
    if best_step <= EARLY * training.steps:
        more = "model.hidden_dropout" if "hidden_dropout" in asdict(config.model) else "training.weight_decay"
        return f"It over-fits after step {best_step:,} of {training.steps:,}: try more {more}."
    return (
        "Try another `model`, such as sasrec or gru4rec+, or search for better settings with `bert4rec tune`."
    )
