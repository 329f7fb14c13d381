"""What the settings that were found are worth: best and default again, with seeds that the search never used.

The best of many trials owes part of its lead to luck. So both are trained afresh, and compared user by user as
`bert4rec.compare` does it. The users are those the search went by: a little of its luck remains. The default's trial
counts as well, for nobody chose it.
"""

from collections.abc import Sequence

import numpy as np

from bert4rec.evaluation.criterion import Criterion
from bert4rec.evaluation.protocol import Ranks
from bert4rec.evaluation.significance import Difference, Sample, compare_samples, usual_seed_uncertainty
from bert4rec.tuning.budget import FEWEST_SEEDS
from bert4rec.tuning.outcome import TuningTrial


def compare(best: Sequence[Ranks], default: Sequence[Ranks], criterion: Criterion) -> Difference | None:
    """Best less default, over users and seeds, by what trainings select by.

    None with fewer than two trainings of each, for nothing would be known about seeds: with one, a third of all
    comparisons of a setting with itself find a difference.
    """
    if min(len(best), len(default)) < FEWEST_SEEDS:
        return None
    first, second = (
        Sample.of(np.stack([criterion.per_user(each) for each in ranks])) for ranks in (best, default)
    )
    return compare_samples(first, second, usual_seed_uncertainty([first, second]))


def sentence(
    default: TuningTrial,
    best: TuningTrial,
    worth: Difference | None,
    *,
    metric: str,
    trials: int,
    seeds: int,
    is_over: bool,
) -> str:
    """What the best of so many trials is worth, how sure that is, and what the file holds.

    Until the search `is_over`, the file holds the best trial so far.
    """
    leads = f"{metric} {best.value:.4f}, the default {default.value:.4f}"
    if best.number == 0:
        tried = f"none of {trials - 1:,} other trials was better" if trials > 1 else "nothing else was tried"
        return f"no better than the default: {tried}. The settings are those of the default."
    if worth is None and is_over:
        return (
            f"not sure: trial {best.number} has {leads}, but there was too little time to confirm that with "
            f"{FEWEST_SEEDS} fresh seeds. The settings are those of the default."
        )
    if worth is None:
        return (
            f"trial {best.number}, not confirmed: it has {leads}. As the best of {trials:,}, it owes part of that to "
            f"luck, and it was not trained again with {FEWEST_SEEDS} fresh seeds."
        )
    told = f"95% interval {worth.low:+.4f} to {worth.high:+.4f}, at least {seeds} seeds each"
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


def warn_of_short_trials(minutes: int) -> str:
    """Before a search whose trials are too short for anything to be taken of them."""
    return (
        "Such short trials say little about whole trainings, so the settings will stay those of the default; "
        f"{minutes:,} minutes would be enough for whole ones."
    )


def of_short_trials(told: str, short: int, whole: int, minutes: int, *, is_telling: bool) -> str:
    """The sentence of a search whose trials were not whole trainings."""
    doubt = "Whole ones may turn out otherwise"
    if not is_telling:
        doubt = "That says little about whole ones, so the settings stay those of the default"
    trainings = f"In trainings of {short:,} of {whole:,} steps"
    return f"{trainings}: {told} {doubt}; {minutes:,} minutes would be enough for them."
