import numpy as np
import torch

from bert4rec.data.histories import Histories
from bert4rec.data.splits import leave_one_out
from bert4rec.evaluation.protocol import rank_targets
from bert4rec.models.model import make_scorer
from bert4rec.models.pop import Pop
from bert4rec.settings.networks import PopConfig
from tests.evaluation.tiny import dataset_of

DATASET = dataset_of([[1, 1, 2, 3], [1, 2, 4, 3], [2, 1, 3, 5]], num_items=5)
SPLIT = leave_one_out(DATASET)


def pop_of_everything() -> Pop:
    return Pop.fit(DATASET, SPLIT.training_end("valid"), PopConfig("all"))


def test_only_the_training_part_is_counted() -> None:
    assert Pop.fit(DATASET, SPLIT.training_end("valid")).counts.tolist() == [0, 4, 2, 0, 0, 0]
    assert Pop.fit(DATASET, SPLIT.training_end("test")).counts.tolist() == [0, 4, 3, 1, 1, 0]


def test_counting_everything_includes_the_targets() -> None:
    assert pop_of_everything().counts.tolist() == [0, 4, 3, 3, 1, 1]


def test_everybody_gets_the_same_scores() -> None:
    pop = pop_of_everything()
    scores = make_scorer(pop)(np.array([2, 0]), Histories.from_lists([[1], []]))
    assert scores[:, 1:].tolist() == [[4, 3, 3, 1, 1]] * 2


def test_counts_are_told_apart_however_large_they_are() -> None:
    pop = pop_of_everything()
    pop.counts.copy_(torch.tensor([0, 2**40, 2**40 + 1, 5, 4, 3]))
    (scores,) = make_scorer(pop)(np.array([0]), Histories.from_lists([[]])).tolist()
    assert scores[2] > scores[1]


def test_the_most_popular_unseen_item_is_ranked_first_and_equally_popular_ones_against_it() -> None:
    negatives = np.array([[4, 5], [5, 0], [4, 0]], np.int32)
    ranks = rank_targets(make_scorer(pop_of_everything()), DATASET, SPLIT.test, negatives=negatives)
    assert ranks.full.tolist() == [0, 0, 1]  # Items 4 and 5 were chosen once each: a tie.
    assert ranks.sampled.tolist() == [0, 0, 1]
