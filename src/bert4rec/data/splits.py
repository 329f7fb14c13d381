"""What a model may see and what it must predict: two ways to cut the same dataset.

Both cut every user's history once for validation and once for test. A model of the *selection* stage is
trained on what lies before the validation cut; the *refit* model on what lies before the test cut.

- `leave-one-out` (the paper): the last action is the test target, the one before it the validation target.
- `time`: everybody is cut at the same two dates. The target is the first action at or after the date.

If the dataset excludes repeats, a target that occurs in its own history is left out and counted: a recommender will
never be asked for it.
"""

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.blocks import count_true, first_and_last, forget_pages, nth_smallest, user_blocks
from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import EndOf, Histories, histories_before
from bert4rec.errors import DataError, UsageError, one_of
from bert4rec.logs.times import format_moment, parse_moment

Part = Literal["valid", "test"]
PARTS: tuple[Part, ...] = get_args(Part)
SplitKind = Literal["leave-one-out", "time"]
MOST_USERS = 2**19
"""Who are asked about. A hit rate of one half is then known to one part in a thousand, and more would take hours."""
TargetKind = Literal["next", "all"]
"""What is asked about a user: the next item, or all items of a part of a `time` split."""


@dataclass(frozen=True)
class SplitSpec:
    """How histories are cut for validation and test, as written in dataset.json and in a run's configuration."""

    kind: SplitKind = "leave-one-out"
    """`leave-one-out`, or `time`: everybody is cut at the same two dates."""
    test_from: str | None = None
    """For `time`: a date, or the share of actions that lies before the test part, such as 0.9."""
    valid_from: str | None = None
    """For `time`: likewise; by default the validation part holds as many actions as the test part."""

    def __post_init__(self) -> None:
        if self.kind == "time" and self.test_from is None:
            raise UsageError(
                '`split="time"` requires `test_from`: a date such as 2024-01-31, or a share such as 0.9.'
            )
        if self.kind == "leave-one-out" and (self.test_from or self.valid_from):
            raise UsageError('`test_from` and `valid_from` require `split="time"`.')

    def __str__(self) -> str:
        """In one line, which distinguishes results of different splits."""
        dates = {"test from": self.test_from, "valid from": self.valid_from}
        return ", ".join([self.kind, *(f"{name} {date}" for name, date in dates.items() if date)])


@dataclass(frozen=True)
class Targets:
    """The actions to predict, at most one per user. The history is everything the user did before."""

    users: NDArray[np.int64]
    positions: NDArray[np.int64]
    """Index of each target into `Dataset.sequences`; the history is [offsets[user], position)."""
    left_out: int = 0
    """Users who are left out because their target repeats an item of their history."""
    not_asked: int = 0
    """Users who were not drawn, where there are more than anybody needs to ask."""

    def __len__(self) -> int:
        return len(self.users)


@dataclass(frozen=True)
class TargetSets:
    """All items that users choose in one part of a `time` split, in no order. The history is everything before it."""

    asked: Targets
    """The users, and where their histories end. Those of whom nothing but repeats would be asked are left out."""
    items: Histories
    """A row for each of these users: the items, each once."""


@dataclass(frozen=True)
class Split:
    """Where each user's history is cut, as indices into `Dataset.sequences`."""

    kind: SplitKind
    offsets: NDArray[np.int64]
    """Those of the dataset."""
    valid_cuts_of: EndOf
    """Of some users: the first action the selection model must not see."""
    test_cuts_of: EndOf
    """Of some users: the first action that no model may see."""
    valid: Targets
    test: Targets

    @cached_property
    def valid_cut(self) -> NDArray[np.int64]:
        """The first action of each user that the selection model must not see."""
        return self._of_all(self.valid_cuts_of)

    @cached_property
    def test_cut(self) -> NDArray[np.int64]:
        """The first action of each user that no model may see."""
        return self._of_all(self.test_cuts_of)

    def targets(self, part: Part) -> Targets:
        """The actions to predict of one part."""
        one_of("split", part, PARTS)
        return self.valid if part == "valid" else self.test

    def training_end(self, part: Part) -> NDArray[np.int64]:
        """Per user, where the training sequence of the model judged on `part` ends (exclusive)."""
        one_of("split", part, PARTS)
        return self.valid_cut if part == "valid" else self.test_cut

    def _of_all(self, cuts_of: EndOf) -> NDArray[np.int64]:
        cuts = np.empty(len(self.offsets) - 1, np.int64)
        for users in user_blocks(self.offsets):
            cuts[users] = cuts_of(users)
        return cuts


def make_split(dataset: Dataset, spec: SplitSpec | None = None) -> Split:
    """The split that `spec` describes; by default the one that the dataset was prepared with."""
    spec = spec or SplitSpec(**dataset.manifest["split"])
    if spec.kind == "leave-one-out":
        return leave_one_out(dataset)
    assert spec.test_from is not None
    test_from = _moment(dataset, spec.test_from)
    if spec.valid_from is None:
        test_share = count_true(_times(dataset), lambda times: times >= test_from) / dataset.num_actions
        return split_by_time(dataset, test_from, _moment_after(dataset, 1 - 2 * test_share))
    return split_by_time(dataset, test_from, _moment(dataset, spec.valid_from))


def all_targets(dataset: Dataset, split: Split, part: Part) -> TargetSets:
    """Everything that users with a history do in `part`; of a dataset that excludes repeats, without those."""
    if split.kind != "time":
        raise UsageError(
            '`targets="all"` requires a split by time: leave-one-out holds out a single item of each user. Leave out '
            '`targets`, or prepare the log with `split="time", test_from=0.9`.'
        )
    begin = split.training_end(part)
    end = split.test_cut if part == "valid" else dataset.offsets[1:]
    (drawn,) = _draw(dataset.offsets, begin.__getitem__, end.__getitem__)
    users = drawn.users
    rows, items = Histories(np.asarray(dataset.sequences), begin[users], end[users]).flat()
    numbers = dataset.num_items + 1
    rows, items = np.divmod(np.unique(rows * numbers + items), numbers)
    if dataset.repeats == "exclude":
        is_new = ~histories_before(dataset, users[rows], begin[users[rows]]).contain(items)
        rows, items = rows[is_new], items[is_new]
    kept, counts = np.unique(rows, return_counts=True)
    limits = np.cumsum([0, *counts])
    return TargetSets(
        Targets(users[kept], begin[users[kept]], left_out=len(users) - len(kept), not_asked=drawn.not_asked),
        Histories(items.astype(np.int32), limits[:-1], limits[1:]),
    )


def leave_one_out(dataset: Dataset) -> Split:
    """Cut off each user's last action for test and the one before for validation.

    A user with fewer than three actions would have nothing left to learn from, so all of them are used for training
    and none for validation or test.
    """
    offsets = dataset.offsets
    return _cut(
        dataset, "leave-one-out", partial(_without_last, offsets, 2), partial(_without_last, offsets, 1)
    )


def split_by_time(dataset: Dataset, test_from: int, valid_from: int) -> Split:
    """Cut everybody at two moments, in microseconds since 1970.

    The target is the first action at or after the moment, of users with at least one action before it. A user's
    validation target must lie before `test_from`.
    """
    if valid_from >= test_from:
        raise UsageError(
            f"The validation part must begin before the test part, found {format_moment(valid_from)} and "
            f"{format_moment(test_from)}. Choose other dates with `valid_from` and `test_from`."
        )
    offsets, times = dataset.offsets, _times(dataset)
    split = _cut(
        dataset,
        "time",
        partial(_until, offsets, times, valid_from),
        partial(_until, offsets, times, test_from),
    )
    if not len(split.test) + split.test.left_out:
        first, last = map(format_moment, first_and_last(times))
        raise DataError(
            f"No user acts both before and after {format_moment(test_from)}. The log runs from {first} to {last}: "
            "choose a date between them with `test_from`."
        )
    return split


def _cut(dataset: Dataset, kind: SplitKind, valid_cuts_of: EndOf, test_cuts_of: EndOf) -> Split:
    """Who is asked is found block by block: of very many users, no array has an entry for each."""
    offsets = dataset.offsets
    valid, test = _draw(offsets, valid_cuts_of, test_cuts_of, partial(_without_last, offsets, 0))
    return Split(
        kind, offsets, valid_cuts_of, test_cuts_of, _targets(dataset, valid), _targets(dataset, test)
    )


def _without_last(offsets: NDArray[np.int64], count: int, users: slice) -> NDArray[np.int64]:
    """Where histories end without the last `count` actions. Those of fewer than three actions stay whole."""
    limits = np.asarray(offsets[users.start : users.stop + 1])
    return limits[1:] - count * (np.diff(limits) >= 3)


def _until(
    offsets: NDArray[np.int64], times: NDArray[np.int64], moment: int, users: slice
) -> NDArray[np.int64]:
    """The index of each user's first action at or after `moment`, or the user's end if there is none."""
    limits = np.asarray(offsets[users.start : users.stop + 1])
    earlier = np.concatenate([[0], np.cumsum(times[limits[0] : limits[-1]] < moment)])
    forget_pages(times)
    found: NDArray[np.int64] = limits[:-1] + np.diff(earlier[limits - limits[0]])
    return found


@dataclass
class _Sample:
    """Those who are asked, of the users who come block by block: the same ones whenever they are drawn."""

    users: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    positions: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    tickets: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    not_asked: int = 0

    def add(
        self, users: NDArray[np.int64], positions: NDArray[np.int64], tickets: NDArray[np.uint64]
    ) -> None:
        """If there are too many, those with the smallest tickets stay."""
        self.users = np.concatenate([self.users, users])
        self.positions = np.concatenate([self.positions, positions])
        self.tickets = np.concatenate([self.tickets, tickets])
        if len(self.users) > MOST_USERS:
            self.not_asked += len(self.users) - MOST_USERS
            drawn = np.sort(np.argpartition(self.tickets, MOST_USERS)[:MOST_USERS])
            self.users, self.positions = self.users[drawn], self.positions[drawn]
            self.tickets = self.tickets[drawn]


def _draw(offsets: NDArray[np.int64], *cuts: EndOf) -> list[_Sample]:
    """For each part between two cuts: users with an action in it and one before, and the first index in it."""
    samples = [_Sample() for _ in cuts[1:]]
    # The raw stream of PCG64 stays the same in all versions of NumPy; a user is drawn by a number of his own, so that
    # validation and test ask nearly the same ones.
    stream = np.random.PCG64(0)
    for users in user_blocks(offsets):
        tickets = np.asarray(stream.random_raw(users.stop - users.start))
        ends = [cuts_of(users) for cuts_of in cuts]
        for sample, begin, end in zip(samples, ends, ends[1:], strict=False):
            asked = np.flatnonzero((offsets[users] < begin) & (begin < end))
            sample.add(asked + users.start, begin[asked], tickets[asked])
    return samples


def _targets(dataset: Dataset, drawn: _Sample) -> Targets:
    """The targets of these users, without repeats if the dataset excludes them."""
    users, positions = drawn.users, drawn.positions
    if dataset.repeats == "keep" or dataset.manifest["counts"].get("repeats") == 0:
        return Targets(users, positions, not_asked=drawn.not_asked)
    is_repeat = histories_before(dataset, users, positions).contain(dataset.sequences[positions])
    return Targets(
        users[~is_repeat], positions[~is_repeat], left_out=int(is_repeat.sum()), not_asked=drawn.not_asked
    )


def _times(dataset: Dataset) -> NDArray[np.int64]:
    if dataset.times is None:
        raise DataError(
            f'{dataset.where} has no times, so it cannot be split by time. Use `split="leave-one-out"`.'
        )
    return dataset.times


def _moment(dataset: Dataset, text: str) -> int:
    """A date, or the moment before which the given share of all actions lies."""
    try:
        share = float(text)
    except ValueError:
        return parse_moment(text)
    return _moment_after(dataset, share) if 0 < share < 1 else parse_moment(text)


def _moment_after(dataset: Dataset, share: float) -> int:
    """As `np.quantile` finds it with the method "higher"."""
    return nth_smallest(_times(dataset), int(np.ceil((dataset.num_actions - 1) * max(share, 0.0))))
