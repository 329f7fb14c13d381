"""The best items for many users at once: numbers and scores, before they become tables and files."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.histories import Histories
from bert4rec.recommend.answers import Question
from bert4rec.recommend.bulk_input import Users
from bert4rec.recommend.engine import Numbers, Scores, Steady

if TYPE_CHECKING:
    from bert4rec.recommend.recommender import Recommender


def fallbacks(recommender: "Recommender", users: Users) -> NDArray[np.bool_]:
    """Who gets the most popular items. Models that know users need no history."""
    is_fallback: NDArray[np.bool_] = users.histories.lengths == 0
    return is_fallback & (recommender.user_scorer is None)


def top_of_users(
    recommender: "Recommender", users: Users, question: Question, *, leaves_out_seen: bool, is_part: bool
) -> tuple[Numbers, Scores]:
    """Tables [users, k] of numbers and scores, filled up with number 0.

    If these users are a part of all, the answers are those they would have in any other part, to the last bit.
    """
    histories = users.histories
    excluded = histories if leaves_out_seen else Histories(histories.items, histories.begin, histories.begin)
    if len(question.exclude):
        excluded = excluded.followed_by(question.exclude)
    if recommender.user_scorer is not None and users.places is not None:
        return recommender.user_scorer.top(users.places, histories, excluded, question.k, question.candidates)
    ranker, count = recommender.ranker, len(histories)
    if is_part and isinstance(ranker.engine, Steady):
        rows = _enough_rows(histories, ranker.engine.enough)
        histories, excluded = histories[rows], excluded[rows]
    if not ranker.is_about_few(question):
        numbers, scores = ranker.top_rows(
            histories, excluded, question.k, question.subset, question.diversity
        )
        return numbers[:count], scores[:count]
    asked = [
        replace(question, history=history.flat()[1], exclude=left_out.flat()[1])
        for history, left_out in (
            (histories[row : row + 1], excluded[row : row + 1]) for row in range(len(histories))
        )
    ]
    width = min(question.k, len(recommender.catalogue))
    numbers = np.zeros((len(asked), width), np.int32)
    scores = np.full((len(asked), width), -np.inf, np.float32)
    for row, (best, best_scores) in enumerate(ranker.top(asked)):
        numbers[row, : len(best)], scores[row, : len(best)] = best, best_scores
    return numbers[:count], scores[:count]


def _enough_rows(histories: Histories, enough: int) -> NDArray[np.int64]:
    """All rows, and some again, until enough of them are not empty: so no answer depends on how users are parted."""
    rows, warm = np.arange(len(histories)), np.flatnonzero(histories.lengths)
    missing = max(0, enough - len(warm)) if len(warm) else 0
    return np.concatenate([rows, np.resize(warm, missing)])
