"""What the settings that were found are worth: best and default again, with seeds that the search never used.

The best of many trials owes part of its lead to luck. So both are trained afresh, and compared user by user as
`bert4rec.compare` does it. The users are those the search went by: a little of its luck remains.
"""

from collections.abc import Sequence

import numpy as np

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import Split
from bert4rec.evaluation.criterion import Criterion
from bert4rec.evaluation.protocol import Ranks
from bert4rec.evaluation.significance import Difference, Sample, compare_samples, usual_seed_uncertainty
from bert4rec.evaluation.yardsticks import LEARNED, Yardsticks
from bert4rec.tuning.outcome import TuningTrial


def compare(best: Sequence[Ranks], default: Sequence[Ranks], criterion: Criterion) -> Difference:
    """Best less default, over users and seeds, by what trainings select by."""
    first, second = (
        Sample.of(np.stack([criterion.per_user(each) for each in ranks])) for ranks in (best, default)
    )
    return compare_samples(first, second, usual_seed_uncertainty([first, second]))


def least_learned(dataset: Dataset, split: Split, criterion: Criterion) -> float:
    """What a trial must reach: below, it has learned little but what is popular, and says nothing about settings."""
    return LEARNED * Yardsticks.measure(dataset, split, criterion).popular


def sentence(
    default: TuningTrial, best: TuningTrial, worth: Difference | None, *, metric: str, trials: int, seeds: int
) -> str:
    """What the best of so many trials is worth, and how sure that is."""
    if best.number == 0:
        tried = f"none of {trials - 1:,} other trials was better" if trials > 1 else "nothing else was tried"
        return f"no better than the default: {tried}. The settings are those of the default."
    if worth is None:
        return (
            f"trial {best.number} has {metric} {best.value:.4f}, the default {default.value:.4f}. As the best of "
            f"{trials:,}, it owes part of that to luck, and it was not trained again with another seed."
        )
    told = f"95% interval {worth.low:+.4f} to {worth.high:+.4f}, {seeds} fresh seed{'s' * (seeds > 1)} each"
    if worth.direction <= 0:
        return (
            f"no better than the default: trial {best.number} differs by {worth.difference:+.4f} {metric} ({told}). "
            "The settings are those of the default."
        )
    more = f" ({worth.share:+.1%})" if worth.base else ""
    return (
        f"better than the default by {worth.difference:.4f} {metric}{more}: {told}, on the validation items, which "
        "were searched by. Expect a little less elsewhere."
    )
