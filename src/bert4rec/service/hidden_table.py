"""The list of hidden items as a worker has it in memory."""

from collections.abc import Iterator
from itertools import count
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.engine import Numbers
from bert4rec.store.hiding import Hiding, HidingsRead

NEVER = np.iinfo(np.int64).max


class HiddenTable:
    """Every item has a place, which it keeps. So a change costs no more than there is to change, however long the list
    is. When most places are of items that were shown again, the others get new ones."""

    def __init__(self) -> None:
        self.version = -1
        self._clear()

    def _clear(self) -> None:
        self.ids: list[str] = []
        """Of the item at each place. Another list where places have another meaning."""
        self._places: dict[str, int] = {}
        self._begin = self._end = np.empty(0, np.int64)
        self._order: NDArray[np.intp] | None = None
        """The places of what is listed, the latest to begin first; None if it is not known."""

    def __len__(self) -> int:
        """How many items are listed."""
        return int(np.count_nonzero(self._begin != NEVER))

    def take(self, read: HidingsRead) -> None:
        """What was read from the store."""
        if read.is_whole:
            self._clear()
        new = [each.item_id for each in read.hidings if each.item_id not in self._places]
        self._places.update(zip(new, count(len(self.ids)), strict=False))
        self.ids.extend(new)
        room = np.full(len(new), NEVER)
        self._begin, self._end = np.append(self._begin, room), np.append(self._end, room)
        places = [self._places[each.item_id] for each in read.hidings]
        self._begin[places] = [each.begin for each in read.hidings]
        self._end[places] = [NEVER if each.end is None else each.end for each in read.hidings]
        shown = [self._places[each] for each in read.shown if each in self._places]
        self._begin[shown] = self._end[shown] = NEVER
        self._order = None
        if 2 * len(self) < len(self.ids):
            self._drop_shown()
        self.version = read.version

    def _drop_shown(self) -> None:
        listed = np.flatnonzero(self._begin != NEVER)
        self.ids = [self.ids[place] for place in listed]
        self._places = dict(zip(self.ids, count(), strict=False))
        self._begin, self._end = self._begin[listed], self._end[listed]

    def in_force(self, moment: int) -> NDArray[np.bool_]:
        """Whether the item at each place is hidden."""
        return (self._begin <= moment) & (moment < self._end)

    def next_change(self, moment: int) -> int:
        """The next moment at which something is hidden or shown by its date."""
        dates = np.concatenate([self._begin, self._end])
        return int(dates[dates > moment].min(initial=NEVER))

    def hidings(self, limit: int | None = None) -> Iterator[Hiding]:
        """The list as it is now, the latest to begin first, made as it is read."""
        if self._order is None:
            self._order = self._in_order()
        places = self._order[:limit]
        begins, ends = self._begin[places].tolist(), self._end[places].tolist()
        ids = map(self.ids.__getitem__, places.tolist())
        return map(Hiding, ids, begins, (None if end == NEVER else end for end in ends))

    def _in_order(self) -> NDArray[np.intp]:
        listed = np.flatnonzero(self._begin != NEVER)
        order = listed[np.argsort(-self._begin[listed], kind="stable")]
        # By their ids where many begin at once: to compare texts takes longest, so only there.
        first = np.flatnonzero(np.diff(self._begin[order], prepend=NEVER))
        after = np.append(first[1:], len(order))
        for group in np.flatnonzero(after - first > 1):
            tied = slice(first[group], after[group])
            order[tied] = sorted(order[tied].tolist(), key=self.ids.__getitem__)
        return order


class KnownNumbers:
    """The numbers that a model has for the items of the table. May be asked from any thread."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue, self._looking_up = catalogue, Lock()
        self._ids: list[str] = []
        self._numbers = np.empty(0, np.int32)

    def at(self, ids: list[str], is_wanted: NDArray[np.bool_]) -> Numbers:
        """Of the items at some places, those that the model knows."""
        numbers = self._first(ids, len(is_wanted))[is_wanted]
        return numbers[numbers > 0]

    def ids_of(self, ids: list[str], number: int) -> list[str]:
        """All of the ids by which the model knows one item: 42 may be in the list as 42.0 as well."""
        return [ids[place] for place in np.flatnonzero(self._first(ids, len(ids)) == number)]

    def _first(self, ids: list[str], count: int) -> Numbers:
        """Of the items at the first places; 0 for what the model does not know."""
        with self._looking_up:
            if ids is not self._ids:
                self._ids, self._numbers = ids, np.empty(0, np.int32)
            new = ids[len(self._numbers) : count]
            found = [self._catalogue.number_of(each) or 0 for each in new]
            self._numbers = np.append(self._numbers, np.array(found, np.int32))
            return self._numbers[:count]
