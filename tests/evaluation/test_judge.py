from collections.abc import Callable
from math import log2
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories
from bert4rec.data.splits import leave_one_out
from bert4rec.errors import NotFoundError
from bert4rec.evaluation import judge as judge_module
from bert4rec.evaluation.exam import Exam
from bert4rec.evaluation.judge import judge, load_ranks, metrics_of, rows_per_batch, save_ranks, slices_of
from bert4rec.evaluation.protocol import Ranks
from bert4rec.models import model as model_module
from bert4rec.models.model import ChunkedScores, make_scorer
from tests.conftest import MakeDataset
from tests.training.tiny import make_task, random_histories, tiny_config

RANKS = Ranks(sampled=np.array([0, 1, 9, 10], np.int32), full=np.array([0, 4, 5, 99], np.int32))


def after_the_last(dataset: Dataset) -> Callable[[NDArray[np.int64], Histories], NDArray[np.float64]]:
    """A model that is sure that the number behind the newest item comes next, then the one behind that."""

    def scores(users: NDArray[np.int64], histories: Histories) -> NDArray[np.float64]:
        newest = histories.newest(1).flat()[1].astype(np.int64)
        behind = (np.arange(dataset.num_items + 1)[None] - newest[:, None]) % (dataset.num_items + 1)
        return -behind.astype(np.float64)

    return scores


def test_each_part_is_judged_by_its_own_targets_and_histories(make_dataset: MakeDataset) -> None:
    falling_counts = [1] * 9 + [2] * 6 + [3] * 5 + [4] * 4 + [5] * 4 + [6] * 2 + [7]
    dataset = make_dataset([[1, 2, 3, 4, 7], [2, 1, 2, 3, 6], falling_counts], repeats="exclude")
    assert dataset.items()["id"].to_list() == [f"item-{number}" for number in range(1, 8)]
    split = leave_one_out(dataset)
    valid = judge(after_the_last(dataset), dataset, split, "valid")
    test = judge(after_the_last(dataset), dataset, split, "test")
    assert (valid.full[:2].tolist(), valid.sampled[:2].tolist()) == ([0, 0], [0, 0])
    assert (test.full[:2].tolist(), test.sampled[:2].tolist()) == ([2, 2], [2, 2])


def test_metrics_are_those_of_the_ranks_under_both_protocols() -> None:
    found = metrics_of(RANKS)
    assert found["sampled"] == pytest.approx(
        {
            "HR@1": 1 / 4,
            "HR@5": 2 / 4,
            "HR@10": 3 / 4,
            "NDCG@5": (1 + 1 / log2(3)) / 4,
            "NDCG@10": (1 + 1 / log2(3) + 1 / log2(11)) / 4,
            "MRR": (1 + 1 / 2 + 1 / 10 + 1 / 11) / 4,
        }
    )
    assert (found["full"]["HR@5"], found["full"]["HR@10"]) == (2 / 4, 3 / 4)


def test_slices_cover_every_user_once_in_each_protocol(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([[1, 2, 3], [1, 2, 3, 4, 1, 2], [2] * 12, [4, 3, 2, 1]])
    split = leave_one_out(dataset)
    slices = slices_of(RANKS, dataset, split, "test")
    assert slices.keys() == {"sampled", "full"}
    for kinds in slices.values():
        assert kinds.keys() == {"activity", "popularity"}
        for found in kinds.values():
            assert sum(each["users"] for each in found) == 4
    activity = {each["label"]: each["metrics"]["HR@1"] for each in slices["full"]["activity"]}
    assert activity == {"history 1-4": 0.5, "history 5-9": 0.0, "history 10-19": 0.0}


def test_ranks_are_read_as_they_were_saved(tmp_path: Path) -> None:
    save_ranks(tmp_path, "valid", RANKS)
    found = load_ranks(tmp_path, "valid")
    assert found.sampled.tolist() == RANKS.sampled.tolist()
    assert found.full.tolist() == RANKS.full.tolist()


def test_ranks_that_were_never_computed_are_missed_with_the_method_that_does(tmp_path: Path) -> None:
    save_ranks(tmp_path, "valid", RANKS)
    with pytest.raises(
        NotFoundError, match=r"ranks-test-sampled.npy not found.*`run.evaluate\(split=\"test\"\)`"
    ):
        load_ranks(tmp_path, "test")


@pytest.mark.parametrize(
    ("num_items", "device", "rows"),
    [
        (50_000, "cuda", 1024),
        (10_000_000, "cuda", 53),
        (50_000, "cpu", 128),
        (10_000_000, "cpu", 6),
        (10**10, "cpu", 1),
    ],
)
def test_the_larger_the_catalogue_the_fewer_users_are_scored_at_once(
    num_items: int, device: str, rows: int
) -> None:
    assert rows_per_batch(num_items, device) == rows


def test_ranks_are_the_same_however_many_users_are_scored_at_once(
    make_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_dataset([[1, 2, 3], [1, 2, 3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]])
    asked: list[int] = []

    def scorer(users: NDArray[np.int64], _histories: Histories) -> NDArray[np.float64]:
        asked.append(len(users))
        return np.random.default_rng(1).random((dataset.num_users, dataset.num_items + 1))[users]

    at_once = judge(scorer, dataset, leave_one_out(dataset), "test")
    monkeypatch.setitem(judge_module.SCORES_PER_BATCH, "cpu", 2 * (dataset.num_items + 1))
    by_two = judge(scorer, dataset, leave_one_out(dataset), "test")
    assert asked[0] == 4 - leave_one_out(dataset).test.left_out
    assert max(asked[1:]) == 2
    assert (at_once.full.tolist(), at_once.sampled.tolist()) == (
        by_two.full.tolist(),
        by_two.sampled.tolist(),
    )


@pytest.mark.parametrize("at_once", [1, 40, 1000])
def test_a_model_is_judged_the_same_where_its_scores_come_in_chunks(
    make_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    dataset = make_dataset(random_histories())
    exam = Exam(dataset, leave_one_out(dataset), "test", "next", "popularity", (1, 5))
    scorer = make_scorer(make_task(dataset, tiny_config()).model.eval())
    whole = exam.judge(scorer)
    monkeypatch.setitem(model_module.SCORES_AT_ONCE, "cpu", at_once)
    in_chunks = exam.judge(scorer)
    is_chunked = isinstance(scorer(np.arange(8), dataset_histories(dataset)[:8]), ChunkedScores)
    assert is_chunked == (at_once < 1000)
    assert in_chunks.metrics == whole.metrics
    assert in_chunks.lists == whole.lists


def dataset_histories(dataset: Dataset) -> Histories:
    return Histories(dataset.sequences, dataset.offsets[:-1], dataset.offsets[1:])
