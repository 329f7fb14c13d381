"""Hidden items are recommended by nothing, as if they were excluded from every question."""

import numpy as np
import pytest

from bert4rec.recommend.engine import Numbers
from bert4rec.recommend.recommender import Question, Recommender
from bert4rec.recommend.rules.hidden import without
from tests.conftest import NUM_ITEMS


def numbers(*items: int) -> Numbers:
    return np.array(items, np.int32)


NOTHING = numbers()
SOME = numbers(1, 2, 3, 17, 33, NUM_ITEMS)
ALL = np.arange(1, NUM_ITEMS + 1, dtype=np.int32)
ALL_BUT_TWO = np.setdiff1d(ALL, [5, 40])


def questions(excluded: Numbers) -> list[Question]:
    """Also without a history, about few items, and about more than there are."""
    return [
        Question(history, k, np.concatenate([excluded, more]), allow)
        for history in (numbers(4, 9), numbers(17), NOTHING)
        for k, more in ((10, NOTHING), (10, numbers(4, 9)), (NUM_ITEMS, NOTHING))
        for allow in (None, numbers(1, 4, 5, 33))
    ]


@pytest.mark.parametrize("hidden", [SOME, ALL_BUT_TWO, ALL, NOTHING])
def test_hidden_items_are_missing_as_if_every_question_excluded_them(
    recommender: Recommender, hidden: Numbers
) -> None:
    hiding = without(recommender, hidden)
    for ask in (Recommender.top, lambda model, asked: [model.top([each])[0] for each in asked]):
        expected, found = ask(recommender, questions(hidden)), ask(hiding, questions(NOTHING))
        for each, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(each[0], other[0])
            np.testing.assert_array_equal(each[1], other[1])


def test_the_model_itself_goes_on_recommending_them(recommender: Recommender) -> None:
    before = recommender.recommend(["i4"], NUM_ITEMS)
    without(recommender, SOME)
    assert recommender.recommend(["i4"], NUM_ITEMS) == before


def test_similar_items_are_those_that_are_not_hidden(recommender: Recommender) -> None:
    hiding = without(recommender, SOME)
    everything = recommender.similar("i4", NUM_ITEMS).items
    expected = [item for item in everything if recommender.catalogue.number_of(item.item_id) not in SOME]
    assert hiding.similar("i4", NUM_ITEMS).items == expected
    assert hiding.similar("i4", 3).items == expected[:3]
    assert len(hiding.similar("i1", NUM_ITEMS).items) == NUM_ITEMS - len(SOME)  # itself one of them
    assert without(recommender, ALL).similar("i4", 3).items == []
