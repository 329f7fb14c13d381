"""What a split hides from the reader of its numbers: warnings, each with a count."""

import numpy as np

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import Split

FEW_USERS = 500
"""With fewer, HR@10 is uncertain by more than two points either way."""


def split_warnings(dataset: Dataset, split: Split) -> list[str]:
    """One sentence for each way in which this split flatters or handicaps a model on this dataset."""
    if not len(split.test):
        return ["No user has enough actions to be tested on."]
    checks = (_few_users, _future_popularity, _items_only_in_test, _ties_across_cut)
    found = [check(dataset, split) for check in checks]
    return [warning for warning in found if warning]


def _few_users(dataset: Dataset, split: Split) -> str | None:
    if len(split.test) >= FEW_USERS or len(split.test) == dataset.num_users:
        return None
    return f"Only {len(split.test):,} of {dataset.num_users:,} users are tested on: expect noisy numbers."


def _future_popularity(dataset: Dataset, split: Split) -> str | None:
    """Leave-one-out cuts every user at another moment, so training data lies after most test targets."""
    if dataset.times is None or split.kind != "leave-one-out":
        return None
    times = np.asarray(dataset.times)
    in_training = np.arange(len(times)) < np.repeat(split.test_cut, dataset.lengths)
    training_times = np.sort(times[in_training])
    later = 1 - np.searchsorted(training_times, times[split.test.positions], side="right") / len(
        training_times
    )
    share = float(np.mean(later))
    if share < 0.01:
        return None
    return (
        f"Leave-one-out leaks the future: for the average test item, {share:.0%} of the training actions happen after "
        "it. Models learn what will become popular. To measure without this, use --split time --test-from 0.9."
    )


def _items_only_in_test(dataset: Dataset, split: Split) -> str | None:
    seen = np.zeros(dataset.num_items + 1, bool)
    positions = np.arange(dataset.num_actions)
    seen[dataset.sequences[positions < np.repeat(split.test_cut, dataset.lengths)]] = True
    unseen = int(np.count_nonzero(~seen[dataset.sequences[split.test.positions]]))
    if not unseen:
        return None
    share = unseen / len(split.test)
    return (
        f"{unseen:,} of {len(split.test):,} test items ({share:.1%}) never occur in training: "
        f"a model that knows only training items cannot score above HR {1 - share:.3f}."
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
        "item before them: which of the two is the test item is the log's order, not time."
    )
