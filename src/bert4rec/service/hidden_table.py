"""The list of hidden items as a worker has it in memory."""

from collections.abc import Sequence
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
    is."""

    def __init__(self) -> None:
        self.version = -1
        self._clear()

    def _clear(self) -> None:
        self.ids: list[str] = []
        """Of the item at each place. Another list where places have another meaning."""
        self._places: dict[str, int] = {}
        self._begin = self._end = np.empty(0, np.int64)

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
        self.version = read.version

    def in_force(self, moment: int) -> NDArray[np.bool_]:
        """Whether the item at each place is hidden."""
        return (self._begin <= moment) & (moment < self._end)

    def next_change(self, moment: int) -> int:
        """The next moment at which something is hidden or shown by its date."""
        dates = np.concatenate([self._begin, self._end])
        return int(dates[dates > moment].min(initial=NEVER))

    def hidings(self) -> Sequence[Hiding]:
        """The list, the latest to begin first."""
        ends = (None if end == NEVER else end for end in self._end.tolist())
        all_places = map(Hiding, self.ids, self._begin.tolist(), ends)
        listed = [each for each in all_places if each.begin != NEVER]
        return sorted(listed, key=lambda each: (-each.begin, each.item_id))


class KnownNumbers:
    """The numbers that a model has for the items of the table. May be asked from any thread."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue, self._looking_up = catalogue, Lock()
        self._ids: list[str] = []
        self._numbers = np.empty(0, np.int32)

    def at(self, ids: list[str], is_wanted: NDArray[np.bool_]) -> Numbers:
        """Of the items at some places, those that the model knows."""
        with self._looking_up:
            if ids is not self._ids:
                self._ids, self._numbers = ids, np.empty(0, np.int32)
            new = ids[len(self._numbers) : len(is_wanted)]
            found = [self._catalogue.number_of(each) or 0 for each in new]
            self._numbers = np.append(self._numbers, np.array(found, np.int32))
            numbers = self._numbers[: len(is_wanted)][is_wanted]
        return numbers[numbers > 0]
