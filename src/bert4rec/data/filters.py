"""Which actions of a log are kept (section 4.1: "we keep users with at least five feedbacks")."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from bert4rec.errors import DataError, UsageError
from bert4rec.logs.times import format_moment

Mask = NDArray[np.bool_]


class Filterable(Protocol):
    """Actions that can be filtered, wherever they are.

    A filter returns the actions that are left. Of those before it, nothing is asked any more but how many they were.
    """

    @property
    def has_times(self) -> bool: ...

    def __len__(self) -> int: ...

    def count_users(self) -> int: ...

    def since(self, moment: int) -> Self:
        """Only actions at or after a moment."""

    def until(self, moment: int) -> Self:
        """Only actions before a moment."""

    def without_duplicates(self) -> Self:
        """Only the first of several actions that agree in user, item and time."""

    def without_repeats(self) -> Self:
        """Only a user's first action on an item."""

    def with_items_of(self, least: int) -> Self:
        """Only items with at least so many actions."""

    def with_users_of(self, least: int) -> Self:
        """Only users with at least so many actions."""


AnyActions = TypeVar("AnyActions", bound=Filterable)


@dataclass(frozen=True)
class Actions:
    """All actions of some users, sorted by user, then by time, ties in the order of the log."""

    users: NDArray[np.uint32]
    items: NDArray[np.uint32]
    times: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.users)

    def keep(self, mask: Mask) -> "Actions":
        """Only the actions for which `mask` is True."""
        if mask.all():
            return self
        return Actions(self.users[mask], self.items[mask], None if self.times is None else self.times[mask])


@dataclass(frozen=True)
class Filters:
    """Applied in the order of the fields."""

    after: int | None = None
    """Drop actions before this moment (microseconds since 1970)."""
    before: int | None = None
    """Drop actions at or after this moment."""
    drop_duplicates: bool = False
    """Keep only one of several actions that agree in user, item and time."""
    drop_repeats: bool = False
    """Keep only the first action of a user on an item."""
    min_item_actions: int = 0
    """Drop items with fewer actions, counted once."""
    min_user_actions: int = 5
    """Drop users with fewer actions, counted once, after the items were dropped."""
    k_core: int = 0
    """Drop users and items in turn until all have at least this many actions."""

    def __post_init__(self) -> None:
        for name in ("min_item_actions", "min_user_actions", "k_core"):
            if getattr(self, name) < 0:
                raise UsageError(f"`{name}` must not be negative, found {getattr(self, name)}.")


def apply_filters(actions: AnyActions, filters: Filters) -> tuple[AnyActions, list[str]]:
    """The actions that are left, and a sentence for every filter that dropped some.

    Raises DataError naming the filter that leaves none.
    """
    if not len(actions):
        raise DataError("The log has no actions.")
    notes = []
    for parameter, value, keep in _steps(actions, filters):
        name = f"{parameter}={value}"
        kept = keep(actions)
        if not len(kept):
            raise DataError(f"`{name}` leaves none of {len(actions):,} actions. Loosen this filter.")
        if len(kept) < len(actions):
            dropped = f"{len(actions) - len(kept):,} of {len(actions):,} actions"
            before, after = actions.count_users(), kept.count_users()
            users = f", and {before - after:,} of {before:,} users" if after < before else ""
            notes.append(f"`{name}` dropped {dropped}{users}.")
        actions = kept
    return actions, notes


_Step = tuple[str, object, Callable[[AnyActions], AnyActions]]
"""Parameter, its value as it is shown, and what it does."""


def _steps(actions: AnyActions, filters: Filters) -> Iterator[_Step[AnyActions]]:
    def timed(parameter: str) -> str:
        if not actions.has_times:
            raise UsageError(f"`{parameter}` requires times, and this log has none.")
        return parameter

    if (after := filters.after) is not None:
        yield timed("after"), f'"{format_moment(after)}"', lambda a: a.since(after)
    if (before := filters.before) is not None:
        yield timed("before"), f'"{format_moment(before)}"', lambda a: a.until(before)
    if filters.drop_duplicates:
        yield timed("drop_duplicates"), True, lambda a: a.without_duplicates()
    if filters.drop_repeats:
        yield "drop_repeats", True, lambda a: a.without_repeats()
    if (least := filters.min_item_actions) > 1:
        yield "min_item_actions", least, lambda a: a.with_items_of(least)
    if (fewest := filters.min_user_actions) > 1:
        yield "min_user_actions", fewest, lambda a: a.with_users_of(fewest)
    if (core := filters.k_core) > 1:
        yield "k_core", core, lambda a: _core(a, core)


def repeats(users: NDArray[np.uint32], items: NDArray[np.uint32]) -> Mask:
    """True for every action on an item that the same user had before."""
    import polars as pl

    mask: Mask = ~pl.Series(_pairs(users, items)).is_first_distinct().to_numpy()
    return mask


def duplicates(actions: Actions, times: NDArray[np.int64]) -> Mask:
    """True for every action with the same user, item and time as an earlier one."""
    mask: Mask = np.zeros(len(actions), np.bool_)
    is_tied = np.zeros(len(actions), np.bool_)
    is_tied[1:] = (actions.users[1:] == actions.users[:-1]) & (times[1:] == times[:-1])
    moments = np.cumsum(~is_tied, dtype=np.uint32)
    places = np.flatnonzero(is_tied | np.append(is_tied[1:], False))
    mask[places] = repeats(moments[places], actions.items[places])
    return mask


def count_oddities(blocks: Iterable[Actions]) -> dict[str, int]:
    """How many actions tie with the user's previous one, repeat an item, or are there twice.

    All actions of a user must be in one block. Without times there are no duplicates: a user may do the same thing
    twice in a row on purpose.
    """
    counts = {"ties": 0, "repeats": 0, "duplicates": 0}
    for actions in blocks:
        counts["repeats"] += _count_repeats(actions)
        if actions.times is not None:
            same_user = actions.users[1:] == actions.users[:-1]
            counts["ties"] += int(np.count_nonzero(same_user & (actions.times[1:] == actions.times[:-1])))
            counts["duplicates"] += int(np.count_nonzero(duplicates(actions, actions.times)))
    return counts


def _count_repeats(actions: Actions) -> int:
    """As many as `repeats` finds; sorting is several times faster than telling which."""
    pairs = _pairs(actions.users, actions.items)
    pairs.sort()
    return int(np.count_nonzero(pairs[1:] == pairs[:-1]))


def _pairs(users: NDArray[np.uint32], items: NDArray[np.uint32]) -> NDArray[np.uint64]:
    return (users.astype(np.uint64) << np.uint64(32)) | items


def _core(actions: AnyActions, least: int) -> AnyActions:
    while len(actions):
        kept = actions.with_users_of(least)
        if len(kept):
            kept = kept.with_items_of(least)
        if len(kept) == len(actions):
            break
        actions = kept
    return actions
