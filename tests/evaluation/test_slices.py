import numpy as np
import pytest

from bert4rec.data.splits import Targets, leave_one_out
from bert4rec.evaluation.metrics import summarise
from bert4rec.evaluation.slices import slice_by_activity, slice_by_popularity
from tests.evaluation.tiny import dataset_of


def test_users_are_sliced_by_the_history_before_the_target() -> None:
    dataset = dataset_of([[1] * length for length in (1, 2, 5, 6, 10, 11, 300)], num_items=1)
    targets = Targets(np.arange(7), dataset.offsets[1:] - 1)
    ranks = np.array([0, 0, 9, 0, 99, 4, 4], np.int32)
    slices = slice_by_activity(ranks, dataset, targets)
    assert [(s.label, s.users) for s in slices] == [
        ("no history", 1),
        ("history 1-4", 2),
        ("history 5-9", 2),
        ("history 10-19", 1),
        ("history 200 or more", 1),
    ]
    assert slices[1].metrics == summarise(np.array([0, 9], np.int32))
    assert [s.metrics["HR@5"] for s in slices] == [1.0, 0.5, 0.5, 1.0, 1.0]


def test_targets_are_sliced_by_their_count_in_the_training_part_alone() -> None:
    # Training is all but the last two: item 1 five times, item 2 once, item 3 never.
    dataset = dataset_of([[1, 1, 3, 1], [1, 1, 3, 2], [1, 2, 3, 3]], num_items=3, repeats="keep")
    split = leave_one_out(dataset)
    ranks = np.array([0, 7, 20], np.int32)
    slices = slice_by_popularity(ranks, dataset, split.test, split.training_end("valid"))
    assert [(s.label, s.users, s.metrics["HR@10"]) for s in slices] == [
        ("never seen in training", 1, 0.0),
        ("seen 1-4", 1, 1.0),
        ("seen 5-19", 1, 1.0),
    ]


def test_the_refitted_model_has_seen_the_validation_item() -> None:
    dataset = dataset_of([[1, 1, 3, 3]], num_items=3, repeats="keep")
    split = leave_one_out(dataset)
    ranks = np.array([0], np.int32)
    (only,) = slice_by_popularity(ranks, dataset, split.test, split.training_end("test"))
    assert only.label == "seen 1-4"


def test_slices_weighted_by_their_users_give_the_whole() -> None:
    rng = np.random.default_rng(1)
    dataset = dataset_of(
        [rng.geometric(0.1, size=rng.integers(3, 120)).clip(1, 50).tolist() for _ in range(200)], 50, "keep"
    )
    split = leave_one_out(dataset)
    ranks = rng.integers(0, 40, size=200).astype(np.int32)
    whole = summarise(ranks)
    for slices in (
        slice_by_activity(ranks, dataset, split.test),
        slice_by_popularity(ranks, dataset, split.test, split.training_end("test")),
    ):
        assert len(slices) > 1
        assert sum(s.users for s in slices) == 200
        for metric, value in whole.items():
            assert sum(s.users * s.metrics[metric] for s in slices) / 200 == pytest.approx(value)
