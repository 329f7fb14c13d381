"""Where a model ranks the item that came next, under two protocols at once.

- *sampled* (the paper): the target among the stored negatives.
- *full*: the target among the whole catalogue.

Both ask what a recommender will be asked. If the dataset excludes repeats, the items of the user's history are not
candidates, and no target is one of them (see `splits`); if it keeps repeats, they are candidates like any other.

A rank is the number of other candidates with at least the target's score: 0 is best, and ties count
against the model, so that a scorer that cannot tell items apart earns nothing. Minus and plus infinity
are scores like any other. A score that is not a number is an error.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from typing import Protocol as Contract

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import PADDING, Dataset, Repeats
from bert4rec.data.histories import Histories, histories_before
from bert4rec.data.splits import Targets, TargetSets
from bert4rec.errors import DataError

Protocol = Literal["sampled", "full"]
PROTOCOLS: dict[Protocol, str] = {"sampled": "up to 100 sampled negatives", "full": "full ranking"}
"""Each protocol, and how tables call it."""

Scores = Any
"""[batch, num_items + 1], a NumPy array or a torch tensor on any device; column 0, padding, is ignored."""

Scorer = Callable[[NDArray[np.int64], Histories], Scores]
"""A model as evaluation sees it: from user indices and their histories to a score for every item."""

CandidateScorer = Callable[[NDArray[np.int64], Histories, NDArray[np.int64]], Scores]
"""The same for some items only: given [batch, K] item numbers, their scores [batch, K]."""


Each = TypeVar("Each")


class Party(Contract):
    """Processes that rank together, each of them some of the batches."""

    def share(self, batches: Iterator[Each]) -> Iterator[Each]:
        """Those of this process."""
        ...

    def add_up(self, ranks: Sequence[NDArray[np.int32]]) -> list[NDArray[np.int32]]:
        """The ranks that all have found, given this one's, which are 0 where others were asked."""
        ...

    def join_lists(self, lists: NDArray[np.int32]) -> NDArray[np.int32]:
        """The lists of all, given this one's."""
        ...


class OneProcess:
    """The party that most rankings are made by."""

    def share(self, batches: Iterator[Each]) -> Iterator[Each]:
        return batches

    def add_up(self, ranks: Sequence[NDArray[np.int32]]) -> list[NDArray[np.int32]]:
        return list(ranks)

    def join_lists(self, lists: NDArray[np.int32]) -> NDArray[np.int32]:
        return lists


ONE_PROCESS = OneProcess()


class DivergedError(DataError):
    """A model's scores are not all numbers."""


@dataclass(frozen=True)
class Ranks:
    """The rank of each target, in the order of the targets; 0 is best."""

    sampled: NDArray[np.int32]
    full: NDArray[np.int32]


@dataclass(frozen=True)
class _Batch:
    users: NDArray[np.int64]
    histories: Histories
    answers: NDArray[np.int64]
    """The items to be guessed."""
    negatives: NDArray[np.int64]


def rank_targets(
    scorer: Scorer,
    dataset: Dataset,
    targets: Targets,
    *,
    negatives: NDArray[np.int32],
    batch_size: int = 256,
    party: Party = ONE_PROCESS,
) -> Ranks:
    """Rank every target under both protocols, in one pass over the scores.

    `negatives` has one row for each user of the dataset; 0 in it is not a candidate. Scores are compared
    where they live: a tensor on a GPU is never copied to the host as a whole. Histories of similar
    length share a batch, the longest first, so that a batch too large for the memory fails at once.
    """
    sampled = np.zeros(len(targets), np.int32)
    full = np.zeros(len(targets), np.int32)
    for rows, batch in party.share(_batches(dataset, targets, negatives, batch_size)):
        scores = _through_numpy_if_on_host(scorer(batch.users, batch.histories))
        _check(scores[:, 1:], batch.users, (len(rows), dataset.num_items))
        sampled[rows], full[rows] = _rank(scores, batch, dataset.repeats)
    return Ranks(*party.add_up([sampled, full]))


def rank_among_negatives(
    scorer: CandidateScorer,
    dataset: Dataset,
    targets: Targets,
    *,
    negatives: NDArray[np.int32],
    batch_size: int = 256,
    party: Party = ONE_PROCESS,
) -> NDArray[np.int32]:
    """The sampled ranks alone. Only the candidates are scored: far cheaper where the catalogue is large."""
    ranks = np.zeros(len(targets), np.int32)
    for rows, batch in party.share(_batches(dataset, targets, negatives, batch_size)):
        answers = batch.answers[:, None]
        # The answer stands in for padding: it is not a rival of itself.
        items = np.hstack([answers, np.where(batch.negatives == PADDING, answers, batch.negatives)])
        scores = _through_numpy_if_on_host(scorer(batch.users, batch.histories, items))
        _check(scores, batch.users, items.shape)
        rivals = scores >= scores[:, :1]
        rivals[(items == answers).nonzero()] = False
        ranks[rows] = _on_host(rivals.sum(1))
    return party.add_up([ranks])[0]


def rank_target_sets(
    scorer: Scorer, dataset: Dataset, targets: TargetSets, *, batch_size: int = 256
) -> NDArray[np.int32]:
    """The full ranks of each user's targets, user after user, best first.

    The best target of a user is behind all other candidates that are at least as good, the second best has one place
    more in front of it, and so on: targets take different places, and ties with anything else count against the model.
    """
    ranks = np.empty(int(targets.items.lengths.sum()), np.int32)
    histories = histories_before(dataset, targets.asked.users, targets.asked.positions)
    order = np.argsort(-histories.lengths, kind="stable")
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        users, sets = targets.asked.users[rows], targets.items[rows]
        scores = _through_numpy_if_on_host(scorer(users, histories[rows]))
        _check(scores[:, 1:], users, (len(rows), dataset.num_items))
        not_rivals = [sets, histories[rows]] if dataset.repeats == "exclude" else [sets]
        owners, _ = sets.flat()
        rivals = _rivals_of_each(scores, sets, not_rivals, batch_size)
        rivals = rivals[np.lexsort((rivals, owners))]
        better = np.arange(len(owners)) - (np.cumsum(sets.lengths) - sets.lengths)[owners]
        ranks[sets.begin[owners] + better] = rivals + better
    return ranks


def _rivals_of_each(
    scores: Scores, sets: Histories, not_rivals: Sequence[Histories], at_once: int
) -> NDArray[np.int64]:
    """For each target of each row of scores, how many candidates that are not `not_rivals` are at least as good."""
    rows, answers = sets.flat()
    rivals = np.empty(len(rows), np.int64)
    for first in range(0, len(rows), at_once):
        part = slice(first, first + at_once)
        as_good = scores[rows[part]] >= scores[rows[part], answers[part].astype(np.int64)][:, None]
        as_good[:, PADDING] = False
        for each in not_rivals:
            places, items = each[rows[part]].flat()
            as_good[places, items.astype(np.int64)] = False
        rivals[part] = _on_host(as_good.sum(1))
    return rivals


def _batches(
    dataset: Dataset, targets: Targets, negatives: NDArray[np.int32], batch_size: int
) -> Iterator[tuple[NDArray[np.int64], _Batch]]:
    """Which targets share a batch, and the batch; the longest histories first."""
    histories = histories_before(dataset, targets.users, targets.positions)
    answers = dataset.sequences[targets.positions].astype(np.int64)
    order = np.argsort(-histories.lengths, kind="stable")
    for first in range(0, len(targets), batch_size):
        rows = order[first : first + batch_size]
        users = targets.users[rows]
        drawn = negatives[users].astype(np.int64)
        if dataset.repeats == "keep":
            _drop_the_spare(drawn, answers[rows])
        yield rows, _Batch(users, histories[rows], answers[rows], drawn)


def _drop_the_spare(drawn: NDArray[np.int64], answers: NDArray[np.int64]) -> None:
    """Of one candidate more than needed: the answer, where it was drawn, or else the last one."""
    is_answer = drawn == answers[:, None]
    spare = np.where(is_answer.any(axis=1), is_answer.argmax(axis=1), drawn.shape[1] - 1)
    drawn[np.arange(len(drawn)), spare] = PADDING


def _check(scores: Scores, users: NDArray[np.int64], expected: tuple[int, ...]) -> None:
    """`scores` are those of items, without padding."""
    assert tuple(scores.shape) == expected, f"scores are {tuple(scores.shape)}, expected {expected}"
    # The maximum is the cheapest pass that cannot miss a NaN: both libraries let it win.
    if math.isnan(scores.max().item()):
        user = next(u for u, row in zip(users, scores, strict=True) if math.isnan(row.max().item()))
        raise DivergedError(
            f"The model's scores for user {user} are not all numbers (NaN found): it has diverged. "
            "Train it again with a lower learning rate, or go back to an earlier checkpoint."
        )


def _rank(scores: Scores, batch: _Batch, repeats: Repeats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The sampled and the full rank of each row, from one table of who is as good as the answer."""
    rows = np.arange(len(batch.users))
    rivals = scores >= scores[rows, batch.answers][:, None]
    rivals[:, PADDING] = False
    rivals[rows, batch.answers] = False
    sampled = rivals[rows[:, None], batch.negatives].sum(1)
    if repeats == "exclude":
        history_rows, history = batch.histories.flat()
        rivals[history_rows, history.astype(np.int64)] = False
    return _on_host(sampled), _on_host(rivals.sum(1))


def _through_numpy_if_on_host(scores: Scores) -> Scores:
    """NumPy compares and counts ten times faster than torch does on the CPU. Nothing is copied."""
    if str(scores.device) != "cpu":
        return scores
    try:
        return np.asarray(scores)
    except TypeError:  # bfloat16, which NumPy does not know: slower, but the same ranks.
        return scores


def _on_host(values: Any) -> NDArray[Any]:
    return np.asarray(values.cpu() if hasattr(values, "cpu") else values)
