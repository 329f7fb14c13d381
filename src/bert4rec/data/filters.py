"""Which actions of a log are kept (section 4.1: "we keep users with at least five feedbacks")."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert4rec.errors import DataError, UsageError
from bert4rec.logs.times import format_moment

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Actions:
    """Actions sorted by user, then by time, ties in the order of the log."""

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


def apply_filters(actions: Actions, filters: Filters) -> tuple[Actions, list[str]]:
    """The actions that are left, and a sentence for every filter that dropped some.

    Raises DataError naming the filter that leaves none.
    """
    if not len(actions):
        raise DataError("The log has no actions.")
    notes = []
    for name, keep in _steps(filters):
        kept = keep(actions)
        if not len(kept):
            raise DataError(f"`{name}` leaves none of {len(actions):,} actions. Loosen this filter.")
        if len(kept) < len(actions):
            dropped = f"{len(actions) - len(kept):,} of {len(actions):,} actions"
            before, after = _count_users(actions), _count_users(kept)
            users = f", and {before - after:,} of {before:,} users" if after < before else ""
            notes.append(f"`{name}` dropped {dropped}{users}.")
        actions = kept
    return actions, notes


def _count_users(actions: Actions) -> int:
    return int(np.count_nonzero(np.bincount(actions.users)))


def _steps(filters: Filters) -> list[tuple[str, Callable[[Actions], Actions]]]:
    steps: list[tuple[str, Callable[[Actions], Actions]]] = []
    if filters.after is not None:
        after = filters.after
        steps.append((f'after="{format_moment(after)}"', lambda a: a.keep(_times(a, "after") >= after)))
    if filters.before is not None:
        before = filters.before
        steps.append((f'before="{format_moment(before)}"', lambda a: a.keep(_times(a, "before") < before)))
    if filters.drop_duplicates:
        steps.append(("drop_duplicates=True", lambda a: a.keep(~duplicates(a, _times(a, "drop_duplicates")))))
    if filters.drop_repeats:
        steps.append(("drop_repeats=True", lambda a: a.keep(~repeats(a.users, a.items))))
    if filters.min_item_actions > 1:
        least = filters.min_item_actions
        steps.append((f"min_item_actions={least}", lambda a: a.keep(_frequent(a.items, least))))
    if filters.min_user_actions > 1:
        fewest = filters.min_user_actions
        steps.append((f"min_user_actions={fewest}", lambda a: a.keep(_frequent(a.users, fewest))))
    if filters.k_core > 1:
        steps.append((f"k_core={filters.k_core}", lambda a: _core(a, filters.k_core)))
    return steps


def repeats(users: NDArray[np.uint32], items: NDArray[np.uint32]) -> Mask:
    """True for every action on an item that the same user had before."""
    import polars as pl

    pairs = (users.astype(np.uint64) << np.uint64(32)) | items
    mask: Mask = ~pl.Series(pairs).is_first_distinct().to_numpy()
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


def count_oddities(actions: Actions) -> dict[str, int]:
    """How many actions tie with the user's previous one, repeat an item, or are there twice.

    Without times there are no duplicates: a user may do the same thing twice in a row on purpose.
    """
    counts = {
        "ties": 0,
        "repeats": int(np.count_nonzero(repeats(actions.users, actions.items))),
        "duplicates": 0,
    }
    if actions.times is not None:
        same_user = actions.users[1:] == actions.users[:-1]
        counts["ties"] = int(np.count_nonzero(same_user & (actions.times[1:] == actions.times[:-1])))
        counts["duplicates"] = int(np.count_nonzero(duplicates(actions, actions.times)))
    return counts


def _times(actions: Actions, parameter: str) -> NDArray[np.int64]:
    if actions.times is None:
        raise UsageError(f"`{parameter}` requires times, and this log has none.")
    return actions.times


def _frequent(numbers: NDArray[np.uint32], least: int) -> Mask:
    mask: Mask = (np.bincount(numbers) >= least)[numbers]
    return mask


def _core(actions: Actions, least: int) -> Actions:
    while len(actions):
        kept = actions.keep(_frequent(actions.users, least))
        if len(kept):
            kept = kept.keep(_frequent(kept.items, least))
        if len(kept) == len(actions):
            break
        actions = kept
    return actions
