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
"""[batch, num_items + 1], a NumPy array or a torch tensor on any device; column 0, padding, is ignored. Of a catalogue
that is too large to be scored at once: `ScoresInChunks`."""

Scorer = Callable[[NDArray[np.int64], Histories], Scores]
"""A model as evaluation sees it: from user indices and their histories to a score for every item."""

CandidateScorer = Callable[[NDArray[np.int64], Histories, NDArray[np.int64]], Scores]
"""The same for some items only: given [batch, K] item numbers, their scores [batch, K]."""


class ScoresInChunks(Contract):
    """The scores of a batch of users, some columns at a time: no more of them need to be held."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def starts(self) -> range:
        """The first column of each chunk."""
        ...

    @property
    def width(self) -> int:
        """Columns of a chunk; the last one may have fewer."""
        ...

    def columns_from(self, start: int) -> Scores:
        """The chunk that begins there, the same at every call."""
        ...


@dataclass(frozen=True)
class _OneChunk:
    """All columns at once."""

    scores: Scores

    @property
    def shape(self) -> tuple[int, int]:
        return self.scores.shape[0], self.scores.shape[1]

    @property
    def starts(self) -> range:
        return range(1)

    @property
    def width(self) -> int:
        return self.shape[1]

    def columns_from(self, start: int) -> Scores:  # noqa: ARG002
        return self.scores


def in_chunks(scores: Scores) -> ScoresInChunks:
    """Scores as they are ranked: in chunks, be it a single one."""
    return scores if hasattr(scores, "columns_from") else _OneChunk(scores)


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
        scores = in_chunks(scorer(batch.users, batch.histories))
        _check_shape((scores.shape[0], scores.shape[1] - 1), (len(rows), dataset.num_items))
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
        _check_shape(tuple(scores.shape), items.shape)
        _check(scores, batch.users)
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
        scores = in_chunks(scorer(users, histories[rows]))
        _check_shape((scores.shape[0], scores.shape[1] - 1), (len(rows), dataset.num_items))
        not_rivals = [sets, histories[rows]] if dataset.repeats == "exclude" else [sets]
        owners, _ = sets.flat()
        rivals = _rivals_of_each(scores, users, sets, not_rivals, batch_size)
        rivals = rivals[np.lexsort((rivals, owners))]
        better = np.arange(len(owners)) - (np.cumsum(sets.lengths) - sets.lengths)[owners]
        ranks[sets.begin[owners] + better] = rivals + better
    return ranks


def _rivals_of_each(
    scores: ScoresInChunks,
    users: NDArray[np.int64],
    sets: Histories,
    not_rivals: Sequence[Histories],
    at_once: int,
) -> NDArray[np.int64]:
    """For each target of each row of scores, how many candidates that are not `not_rivals` are at least as good."""
    rows, answers = sets.flat()
    bars = _scores_of(scores, rows, answers.astype(np.int64))
    rivals = np.zeros(len(rows), np.int64)
    for column in scores.starts:
        chunk = _through_numpy_if_on_host(scores.columns_from(column))
        _check_items(chunk, column, users)
        for first in range(0, len(rows), at_once):
            part = slice(first, first + at_once)
            as_good = chunk[rows[part]] >= bars[part][:, None]
            _strike(as_good, column, np.arange(len(rows[part])), np.zeros_like(rows[part]))
            for each in not_rivals:
                _strike(as_good, column, *each[rows[part]].flat())
            rivals[part] += _on_host(as_good.sum(1))
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


def _check_shape(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert shape == expected, f"scores are {shape}, expected {expected}"


def _check_items(chunk: Scores, column: int, users: NDArray[np.int64]) -> None:
    """Of a chunk that begins at this column: the score of padding may be anything."""
    items = chunk[:, 1:] if column == PADDING else chunk
    if items.shape[1]:
        _check(items, users)


def _check(scores: Scores, users: NDArray[np.int64]) -> None:
    """`scores` are those of items, without padding."""
    # The maximum is the cheapest pass that cannot miss a NaN: both libraries let it win.
    if math.isnan(scores.max().item()):
        user = next(u for u, row in zip(users, scores, strict=True) if math.isnan(row.max().item()))
        raise DivergedError(
            f"The model's scores for user {user} are not all numbers (NaN found): it has diverged. "
            "Train it again with a lower learning rate, or go back to an earlier checkpoint."
        )


def _rank(
    scores: ScoresInChunks, batch: _Batch, repeats: Repeats
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The sampled and the full rank of each row, from a table of who is as good as the answer."""
    rows = np.arange(len(batch.users))
    bars = _scores_of(scores, rows, batch.answers)[:, None]
    sampled, full = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for column in scores.starts:
        chunk = _through_numpy_if_on_host(scores.columns_from(column))
        _check_items(chunk, column, batch.users)
        rivals = chunk >= bars
        _strike(rivals, column, rows, np.zeros_like(rows))
        _strike(rivals, column, rows, batch.answers)
        sampled += _count_at(rivals, column, batch.negatives)
        if repeats == "exclude":
            _strike(rivals, column, *batch.histories.flat())
        full += _on_host(rivals.sum(1))
    return sampled, full


def _scores_of(scores: ScoresInChunks, rows: NDArray[np.int64], items: NDArray[np.int64]) -> Scores:
    """One score of each of the rows, taken from the very chunks that it is compared with: so equals stay equal."""
    found: Scores = None
    for column in sorted(set((items // scores.width * scores.width).tolist())):
        chunk = _through_numpy_if_on_host(scores.columns_from(column))
        is_here = np.flatnonzero(items // scores.width * scores.width == column)
        if found is None:  # so that it is where the scores are, and of their kind
            found = chunk[rows, np.zeros_like(rows)]
        found[is_here] = chunk[rows[is_here], items[is_here] - column]
    return found


def _strike(rivals: Any, column: int, rows: NDArray[np.int64], items: NDArray[np.integer[Any]]) -> None:
    """These items are no rivals, where the table, which begins at this column, has them."""
    places = items.astype(np.int64) - column
    if column or rivals.shape[1] <= places.max(initial=0):
        is_here = (places >= 0) & (places < rivals.shape[1])
        rows, places = rows[is_here], places[is_here]
    rivals[rows, places] = False


def _count_at(rivals: Any, column: int, items: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of each row's items [rows, K] are rivals in the table, which begins at this column."""
    places = items - column
    is_here = (places >= 0) & (places < rivals.shape[1])
    found = _on_host(rivals[np.arange(len(items))[:, None], np.where(is_here, places, 0)])
    return np.asarray((found & is_here).sum(1))


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
