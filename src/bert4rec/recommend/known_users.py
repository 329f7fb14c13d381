"""Users of a dataset: who they are, what they did, and models that answer for nobody else."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories
from bert4rec.errors import NotFoundError
from bert4rec.recommend.answers import Question
from bert4rec.recommend.catalogue import Id
from bert4rec.recommend.engine import Numbers, Scores, by_rows
from bert4rec.recommend.ids import id_text, slips, spellings
from bert4rec.recommend.ranker import join, refuse_nan

if TYPE_CHECKING:
    import polars as pl

SCORES_AT_ONCE = 2**25
"""Scores that are held at once."""


@dataclass(frozen=True)
class UserScorer:
    """A model that answers only for users it was trained with: BPR-MF, NCF, FPMC and Caser."""

    title: str
    """Name of the model, for messages."""
    num_items: int
    max_history: int
    """How many items of a history it looks at; some look at none."""
    scores: Callable[[NDArray[np.int64], Histories], NDArray[np.float64]]
    """From users and their histories to the scores of all items, [users, items + 1] with padding first."""

    def top(
        self,
        users: NDArray[np.int64],
        histories: Histories,
        excluded: Histories,
        k: int,
        allow: Numbers | None = None,
    ) -> tuple[Numbers, Scores]:
        """The best items of each user: tables [users, k], filled up with number 0 and score -inf.

        `users` are places in the dataset. Of items with equal scores, the more popular come first.
        """
        k = min(k, self.num_items)
        numbers, best_scores = np.empty((len(users), k), np.int32), np.empty((len(users), k), np.float32)
        never = np.zeros(self.num_items + 1, bool) if allow is None else np.ones(self.num_items + 1, bool)
        never[allow if allow is not None else []] = False
        never[0] = True
        for rows in by_rows(len(users), max(1, SCORES_AT_ONCE // self.num_items)):
            scores = self.scores(users[rows], histories[rows])
            refuse_nan(scores[:, 1:])
            struck_rows, struck_items = excluded[rows].flat()
            scores[struck_rows, struck_items] = -np.inf
            scores[:, never] = -np.inf
            numbers[rows] = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            best_scores[rows] = np.take_along_axis(scores, numbers[rows], axis=1)
        numbers[best_scores == -np.inf] = 0
        return numbers, best_scores

    def best(self, user: int, question: Question) -> tuple[Numbers, Scores]:
        """The best numbers and their scores for one user, best first; at most k."""
        seen, excluded = join([question.history]), join([question.exclude])
        (numbers,), (scores,) = self.top(np.array([user]), seen, excluded, question.k, question.candidates)
        found = np.count_nonzero(numbers)
        return numbers[:found], scores[:found]


def user_number(dataset: Dataset, user: object) -> int:
    """The place of a user in the dataset, by the original id."""
    import polars as pl

    known, text = dataset.users()["id"], id_text(user, "user")
    ids = known.cast(pl.String)
    for spelling in spellings(text, whole_numbers=known.dtype.is_integer()):
        found = (ids == spelling).arg_true()
        if len(found):
            return int(found[0])
    raise NotFoundError(f"Unknown user {text!r}. {_advice(dataset, ids, text.strip())}")


def _advice(dataset: Dataset, ids: "pl.Series", user: str) -> str:
    near = ids.filter((ids.str.to_lowercase() == user.lower()) | ids.is_in(list(slips(user))))
    hint = f"Did you mean {near[0]!r}?" if len(near) else f"A known user is {ids[0]!r}."
    filters = dataset.manifest.get("filters", {})  # sequences in memory were never filtered
    fewest = max(filters.get("min_user_actions", 0), filters.get("k_core", 0))
    dropped = f" Users with fewer than {fewest} actions were dropped by `prepare()`." if fewest > 1 else ""
    return f"{hint}{dropped} Models such as BERT4Rec also answer for a history: use `recommend()`."


def history_of(dataset: Dataset, user: int) -> list[Id]:
    """The ids of all that a user did, oldest first."""
    ids: list[Id] = dataset.items()["id"].gather(dataset.history(user) - 1).to_list()
    return ids
