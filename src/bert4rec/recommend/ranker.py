"""The best items for histories, in item numbers alone; `Recommender` translates them from and to ids."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.histories import Histories
from bert4rec.errors import DataError, UsageError
from bert4rec.recommend.answers import Question
from bert4rec.recommend.engine import Engine, Numbers, Scores

NOTHING = np.empty(0, np.int32)


class Ranker:
    """An engine, and popularity for histories that hold nothing it knows.

    Items that it was never trained on have a bias of -inf, and are never among the best.
    """

    def __init__(self, engine: Engine, counts: NDArray[np.int64]) -> None:
        self.engine, is_trained = engine, engine.bias > -np.inf
        self._popularity = np.where(is_trained, counts, -np.inf).astype(np.float32)
        self._by_popularity = np.flatnonzero(is_trained).astype(np.int32) + np.int32(1)

    def top(self, questions: Sequence[Question]) -> list[tuple[Numbers, Scores]]:
        """For each question the best numbers and their scores, best first; at most k, fewer if fewer remain."""
        among_all = iter(self._best([each for each in questions if each.allow is None]))
        among_allowed = iter(self._best_allowed([each for each in questions if each.allow is not None]))
        return [next(among_all if each.allow is None else among_allowed) for each in questions]

    def top_rows(self, histories: Histories, excluded: Histories, k: int) -> tuple[Numbers, Scores]:
        """As `top`, for many histories at once: tables [rows, k], filled up with number 0 and score -inf.

        They have no more columns than there are items. `excluded` has for each history the numbers never to be
        recommended.
        """
        k = min(k, len(self._popularity))
        numbers = np.zeros((len(histories), k), np.int32)
        scores = np.full((len(histories), k), -np.inf, np.float32)
        recent = histories.newest(self.engine.max_history)
        # By the whole history: some models look at none of it, and are asked all the same.
        warm, is_cold = np.flatnonzero(histories.lengths), histories.lengths == 0
        rows = warm[np.argsort(-recent.lengths[warm], kind="stable")]
        if len(rows):
            found, best = self._engine_top(recent[rows], excluded[rows], k)
            numbers[rows], scores[rows] = np.where(best > -np.inf, found, 0), best
        alike = np.flatnonzero(is_cold & (excluded.lengths == 0))
        popular, counts = self._popular(NOTHING, k)
        numbers[alike, : len(popular)], scores[alike, : len(popular)] = popular, counts
        for row in np.flatnonzero(is_cold & (excluded.lengths > 0)):
            popular, counts = self._popular(excluded[row : row + 1].flat()[1], k)
            numbers[row, : len(popular)], scores[row, : len(popular)] = popular, counts
        return numbers, scores

    def similar(self, number: int, k: int) -> tuple[Numbers, Scores]:
        """The items whose vectors point most nearly in the same direction, and the cosines."""
        if self.engine.max_history == 0:
            raise UsageError(
                "The model has no item vectors that can be compared: it recommends the same items to everybody. "
                "Use a model such as BERT4Rec or SASRec."
            )
        rows = self.engine.rows
        scores = np.einsum("vd,d->v", rows, rows[number - 1])
        scores /= self._norms * self._norms[number - 1]
        scores[self._popularity == -np.inf] = -np.inf
        scores[number - 1] = -np.inf
        k = min(k, int(np.count_nonzero(scores > -np.inf)))
        best = np.argpartition(-scores, k)[:k]
        best = best[np.argsort(-scores[best], kind="stable")]
        return (best + 1).astype(np.int32), scores[best]

    def explain(self, history: Numbers, number: int) -> tuple[float, list[float], NDArray[np.float32] | None]:
        """The score of an item, how much it falls without each action looked at, and the attention weights."""
        if not len(history):
            return float(self._popularity[number - 1]), [], None
        _, used = join([history]).newest(self.engine.max_history).flat()
        without = [np.delete(used, place) for place in range(len(used))]
        queries = self._queries([used, *without])
        whole, *lessened = queries @ self.engine.rows[number - 1] + self.engine.bias[number - 1]
        effects = [float(whole - score) for score in lessened]
        return float(whole), effects, self.engine.attention(used)

    def _engine_top(self, histories: Histories, excluded: Histories, k: int) -> tuple[Numbers, Scores]:
        numbers, scores = self.engine.top(histories, excluded, k)
        refuse_nan(scores)
        return numbers, scores

    def _best(self, questions: Sequence[Question]) -> list[tuple[Numbers, Scores]]:
        if not questions:
            return []
        if len(questions) == 1 and len(questions[0].history):
            return [self._best_alone(questions[0])]
        histories = join([question.history for question in questions])
        excluded = join([question.exclude for question in questions])
        tables = self.top_rows(histories, excluded, max(question.k for question in questions))
        answers = []
        for question, numbers, scores in zip(questions, *tables, strict=True):
            found = np.count_nonzero(numbers[: question.k])
            answers.append((numbers[:found], scores[:found]))
        return answers

    def _best_alone(self, question: Question) -> tuple[Numbers, Scores]:
        """One history needs no tables to be sorted into and out of; without them, it is answered a tenth sooner."""
        recent = join([question.history]).newest(self.engine.max_history)
        excluded = join([question.exclude])
        numbers, scores = self._engine_top(recent, excluded, min(question.k, len(self._popularity)))
        found = np.count_nonzero(scores[0] > -np.inf)
        return numbers[0, :found], scores[0, :found]

    def _best_allowed(self, questions: Sequence[Question]) -> list[tuple[Numbers, Scores]]:
        """Only the allowed items are scored, however many there are."""
        if not questions:
            return []
        answers = []
        queries = self._queries([question.history for question in questions])
        for question, query in zip(questions, queries, strict=True):
            assert question.allow is not None
            candidates = np.setdiff1d(question.allow, question.exclude)
            scores = self._scores(candidates, query) if len(question.history) else self._counts(candidates)
            best = np.argsort(-scores, kind="stable")[: question.k]
            best = best[scores[best] > -np.inf]
            answers.append((candidates[best], scores[best]))
        return answers

    def _scores(self, numbers: Numbers, query: NDArray[np.float32]) -> Scores:
        # Not a matrix product: NumPy's would take as many threads as there are processors.
        scores: Scores = np.einsum("nd,d->n", self.engine.rows[numbers - 1], query)
        return scores + self.engine.bias[numbers - 1]

    def _popular(self, excluded: Numbers, k: int) -> tuple[Numbers, Scores]:
        """The k most popular items, fewer if fewer remain, and their counts."""
        # The order of the numbers is that of popularity.
        popular = np.setdiff1d(self._by_popularity[: k + len(excluded)], excluded)[:k]
        return popular, self._counts(popular)

    def _counts(self, numbers: Numbers) -> Scores:
        return self._popularity[numbers - 1]

    def _queries(self, histories: Sequence[Numbers]) -> NDArray[np.float32]:
        """The query of each history, [rows, D]."""
        recent = join(histories).newest(self.engine.max_history)
        order = np.argsort(-recent.lengths, kind="stable")
        queries = np.empty((len(recent), self.engine.rows.shape[1]), np.float32)
        queries[order] = self.engine.queries(recent[order])
        return queries

    @cached_property
    def _norms(self) -> NDArray[np.float32]:
        """The length of each item's vector; never 0, so that it can be divided by."""
        squares = np.einsum("vd,vd->v", self.engine.rows, self.engine.rows)
        norms: NDArray[np.float32] = np.sqrt(np.maximum(squares, np.finfo(np.float32).tiny))
        return norms


def refuse_nan(scores: NDArray[np.floating[Any]]) -> None:
    """A model that has diverged must not recommend."""
    if np.isnan(scores).any():
        raise DataError("The model's scores are not numbers (NaN found): it has diverged. Train it again.")


def join(rows: Sequence[Numbers]) -> Histories:
    """Rows of item numbers, end to end."""
    limits = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return Histories(rows[0] if len(rows) == 1 else np.concatenate([NOTHING, *rows]), limits[:-1], limits[1:])
