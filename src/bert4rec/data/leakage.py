"""What to know before trusting numbers on a split: warnings, each with a count."""

from datetime import UTC, datetime, timedelta

import numpy as np

from bert4rec.data.blocks import count_true, first_and_last
from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import seen_before
from bert4rec.data.splits import Split, Targets
from bert4rec.data.trained import is_item_seen
from bert4rec.logs.times import format_moment, parse_moment

FEW_USERS = 500
"""With fewer, chance alone moves a hit rate by several points either way; with a fifth as many, by ten."""
EASY_GUESS = 0.2
"""If random guessing reaches this HR@10, a high number says little."""
DAY = 86_400 * 1_000_000
"""In microseconds."""


def split_warnings(dataset: Dataset, split: Split) -> list[str]:
    """One sentence for each way in which this split flatters or handicaps a model on this dataset."""
    checks = [_duplicates, _no_real_times, _after_today, _sampled_users, _repeated_targets]
    if len(split.test):
        checks += [_future_popularity, _items_only_in_test, _ties_across_cut]
    found = [check(dataset, split) for check in checks]
    return [*too_little_to_judge(dataset, split.test), *(warning for warning in found if warning)]


def why_nobody(split: Split) -> str:
    """Why a part of the split has no targets."""
    empty = split.test if len(split.valid) else split.valid
    if empty.left_out:
        return 'all targets repeat an item of their history. To include them, prepare with `repeats="keep"`.'
    return "too few users act before and after its cuts. Choose other dates, or keep users with at least three actions."


def too_little_to_judge(dataset: Dataset, targets: Targets) -> list[str]:
    """Why metrics on these targets say little, whatever the model."""
    if not len(targets):
        return [] if targets.left_out else ["No user has enough actions to be tested on."]
    warnings = []
    if len(targets) < FEW_USERS:
        # A hit rate of one half is the least certain: its 95% interval is ± 0.98 / √users.
        margin = 0.98 / len(targets) ** 0.5
        users = "1 user is" if len(targets) == 1 else f"{len(targets):,} users are"
        warnings.append(
            f"{'Too few users to judge a model: only' if margin >= 0.1 else 'Only'} {users} tested, so chance "
            f"alone moves a hit rate by up to {margin:.2f} either way."
        )
    if (guess := _blind_guess(dataset, targets)) >= EASY_GUESS:
        warnings.append(
            f"Too few items to judge a model: with {dataset.num_items:,} items, random guessing has "
            f"HR@10 of {guess:.2f} in full ranking. Look at HR@1 and MRR."
        )
    return warnings


def _blind_guess(dataset: Dataset, targets: Targets) -> float:
    """HR@10 of a random order of all candidates."""
    candidates = np.full(len(targets), dataset.num_items)
    if dataset.repeats == "exclude":
        candidates -= targets.positions - dataset.offsets[targets.users]
    return float(np.mean(np.minimum(1, 10 / np.maximum(1, candidates))))


def _duplicates(dataset: Dataset, _split: Split) -> str | None:
    count = dataset.manifest["counts"].get("duplicates", 0)
    if not count:
        return None
    are = "action is" if count == 1 else "actions are"
    return (
        f"{count:,} {are} there twice: same user, item and time ({count / dataset.num_actions:.1%}). To keep one of "
        "each, prepare with `drop_duplicates=True`."
    )


def _no_real_times(dataset: Dataset, _split: Split) -> str | None:
    if dataset.times is None or first_and_last(dataset.times)[1] >= DAY:
        return None
    return (
        "All times lie on the first day of 1970: the time column may hold something else, or another unit. Choose the "
        "right column with `time`."
    )


def _after_today(dataset: Dataset, _split: Split) -> str | None:
    if dataset.times is None:
        return None
    tomorrow = str(datetime.now(UTC).date() + timedelta(days=1))
    limit = parse_moment(tomorrow)
    late = count_true(dataset.times, lambda times: times >= limit)
    if not late:
        return None
    lie = "1 action lies" if late == 1 else f"{late:,} actions lie"
    latest = format_moment(first_and_last(dataset.times)[1])
    return (
        f"{lie} after today (UTC), the latest is {latest}. Check the times, or leave such actions out: prepare with "
        f'`before="{tomorrow}"`.'
    )


def _sampled_users(_dataset: Dataset, split: Split) -> str | None:
    if not split.test.not_asked:
        return None
    could = len(split.test) + split.test.left_out + split.test.not_asked
    return (
        f"Of {could:,} users who can be tested, {could - split.test.not_asked:,} are: they were drawn at random, once "
        "and for all models. Intervals are as narrow as so many users make them."
    )


def _repeated_targets(_dataset: Dataset, split: Split) -> str | None:
    left_out = split.test.left_out
    if not left_out:
        return None
    if not len(split.test):
        return (
            'Every test item repeats an item of its history. To include them, prepare with `repeats="keep"`.'
        )
    share = left_out / (left_out + len(split.test))
    return (
        f"{left_out:,} test items ({share:.1%}) repeat an item of their history and are left out, because repeats are "
        'excluded. To include them, prepare with `repeats="keep"`.'
    )


def _future_popularity(dataset: Dataset, split: Split) -> str | None:
    """Leave-one-out cuts every user at another moment, so training data lies after most test targets."""
    if dataset.times is None or split.kind != "leave-one-out":
        return None
    targets = np.sort(dataset.times[split.test.positions])
    later = num_training = 0
    for _, times in seen_before(dataset, split.test_cuts_of):
        assert times is not None
        # In order, they are found much faster than at random.
        later += int(np.searchsorted(targets, np.sort(times)).sum())
        num_training += len(times)
    share = later / (num_training * len(targets))
    if share < 0.01:
        return None
    return (
        f"Leave-one-out leaks the future: for the average test item, {share:.0%} of the training actions happen after "
        'it. Models learn what will become popular. To avoid this, use `split="time", test_from=0.9`.'
    )


def _items_only_in_test(dataset: Dataset, split: Split) -> str | None:
    is_seen = is_item_seen(dataset, split.test_cuts_of)
    unseen = int(np.count_nonzero(~is_seen[dataset.sequences[split.test.positions]]))
    if not unseen:
        return None
    share = unseen / len(split.test)
    return (
        f"{unseen:,} of {len(split.test):,} test items ({share:.1%}) never occur in training: "
        f"a model that knows only training items cannot reach more than HR {1 - share:.3f}."
    )


def _ties_across_cut(dataset: Dataset, split: Split) -> str | None:
    if dataset.times is None:
        return None
    positions = split.test.positions
    tied = int(np.count_nonzero(dataset.times[positions] == dataset.times[positions - 1]))
    if not tied:
        return None
    return (
        f"{tied:,} of {len(split.test):,} test items ({tied / len(split.test):.1%}) happen at the same time as the "
        "item before them: the order of the log, not time, decides which of the two is the test item."
    )
