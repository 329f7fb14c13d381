"""What the best weights are chosen by: how it is named, what it is worth, and what it costs."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories
from bert4rec.data.splits import make_split
from bert4rec.errors import UsageError
from bert4rec.evaluation.criterion import Criterion
from bert4rec.evaluation.judge import judge, metrics_of
from bert4rec.evaluation.protocol import Ranks
from bert4rec.settings.sections import SECTIONS
from tests.conftest import MakeDataset
from tests.training.tiny import random_histories


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("ndcg@10", "NDCG@10"),
        ("NDCG@10:sampled", "NDCG@10"),
        ("Ndcg@20:FULL", "NDCG@20:full"),
        ("hr@1:both", "HR@1:both"),
        ("mrr", "MRR"),
        ("MRR:full", "MRR:full"),
    ],
)
def test_it_is_named_in_any_case_and_spelled_in_one_way(text: str, spelled: str) -> None:
    assert str(Criterion.parse(text)) == spelled
    assert Criterion.parse(spelled) == Criterion.parse(text)


def test_a_metric_that_cannot_tell_models_apart_is_refused() -> None:
    for text in ("hr@101", "recall@200:both"):
        with pytest.raises(UsageError, match="is the same for every model among 101 sampled candidates"):
            Criterion.parse(text)
    assert Criterion.parse("hr@100").metric == "HR@100"
    assert str(Criterion.parse("hr@200:full")) == "HR@200:full"


@pytest.mark.parametrize("text", ["", "ndcg", "ndcg@0", "ndcg@x", "mrr@", "auc", "ndcg@10:half", ":full"])
def test_what_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"`select_by` must be HR@k, .* such as ndcg@10:full; found"):
        Criterion.parse(text)


def test_each_model_of_the_paper_goes_by_its_metric_and_our_own_by_both_protocols() -> None:
    assert {name: sections.select_by for name, sections in SECTIONS.items()} == {
        **dict.fromkeys(SECTIONS, "NDCG@10"),
        "bert4rec+": "NDCG@10:both",
    }


def test_the_mean_over_users_is_the_value_also_of_a_geometric_mean() -> None:
    rng = np.random.default_rng(1)
    ranks = Ranks(*(rng.integers(0, 30, 200).astype(np.int32) for _ in range(2)))
    for text in ("ndcg@10", "hr@5:full", "ndcg@10:both", "mrr:both"):
        criterion = Criterion.parse(text)
        assert criterion.per_user(ranks).mean() == pytest.approx(
            criterion.of(metrics_of(ranks, [criterion.metric]))
        )
    never = Ranks(np.full(9, 99, np.int32), np.zeros(9, np.int32))
    assert not Criterion.parse("ndcg@10:both").per_user(never).any()


def test_both_is_the_geometric_mean() -> None:
    metrics = {"sampled": {"HR@5": 0.4}, "full": {"HR@5": 0.1}}
    found = [Criterion("HR@5", each).of(metrics) for each in ("sampled", "full", "both")]
    assert found == pytest.approx([0.4, 0.1, 0.2])


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> Dataset:
    return make_dataset(random_histories())


def some_scores(
    users: NDArray[np.int64], histories: Histories, items: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """Different for every user and item."""
    assert len(users) == len(histories)
    table = np.sin(np.arange(21) * 7.3 + users[:, None] * 1.7)
    return table if items is None else np.take_along_axis(table, items, axis=1)


@pytest.mark.parametrize("text", ["ndcg@10", "hr@3:full", "mrr:both"])
def test_it_is_what_the_ranks_of_the_validation_items_say(dataset: Dataset, text: str) -> None:
    criterion, split = Criterion.parse(text), make_split(dataset)
    metrics = metrics_of(judge(some_scores, dataset, split, "valid"), [criterion.metric])
    assert criterion.judge(some_scores, dataset, split, "cpu") == criterion.of(metrics)


def test_among_sampled_candidates_nothing_else_is_scored(dataset: Dataset) -> None:
    def scores(users: Any, histories: Any, items: Any = None) -> Any:
        assert items is not None
        return some_scores(users, histories, items)

    assert 0 < Criterion("NDCG@10").judge(scores, dataset, make_split(dataset), "cpu") < 1
