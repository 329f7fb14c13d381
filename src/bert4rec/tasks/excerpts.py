"""Training data that is larger than the card or the memory.

The sequences stay where they are, in a memory map. What a block of batches needs of them is known as soon as its
samples are drawn: a thread reads it while the steps of the block before are computed, and it goes to the device through
pinned memory. Batches are made of it there, and are the same as if everything were there.
"""

from dataclasses import dataclass
from threading import Thread

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class MappedSequences:
    """The items of all actions, user after user, in a memory map, and the device that batches are made on."""

    items: NDArray[np.int32]
    device: torch.device


@dataclass(frozen=True)
class Excerpt:
    """Pieces of the flat sequences."""

    items: Tensor
    """The pieces, end to end."""
    starts: Tensor
    """Where each of them begins in the whole, rising,"""
    places: Tensor
    """and in `items`."""

    def shift(self, begin: Tensor) -> Tensor:
        """What to add to the places of samples that begin there, in the whole, to find them in `items`."""
        piece = torch.searchsorted(self.starts, begin.contiguous(), right=True) - 1
        return self.places[piece] - self.starts[piece]


Sequences = Tensor | MappedSequences
"""The items of all actions, on the device or not."""
Items = Tensor | Excerpt
"""The items of all actions, or of some, where batches are made of them."""


def read_excerpt(
    items: NDArray[np.int32],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    room: NDArray[np.int32] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """The fields of an excerpt that has at least items[begin[i] : end[i]] for every i.

    Its items are written into `room`, if that is given; they are never more than these pieces together.
    """
    order = np.argsort(begin)
    begin, end = begin[order], np.maximum.accumulate(end[order])
    is_first = np.append(True, begin[1:] > end[:-1])
    starts, ends = begin[is_first], end[np.append(is_first[1:], True)]
    lengths = ends - starts
    places = np.cumsum(lengths) - lengths
    index = np.repeat(starts - places, lengths)
    index += np.arange(len(index))
    # This waits for the disk, and lets others work meanwhile; to join slices would not. By another mode than "clip" it
    # would not write into the room itself.
    found = np.take(items, index, out=None if room is None else room[: len(index)], mode="clip")
    return found, starts, places


class RoundExcerpts:
    """The excerpts that the blocks of one round need, each read ahead while steps of the one before are computed.

    A thread lives for as long as it takes to read one, so that there is nothing to end. It never calls the device,
    which may be recording a step. What is raised there is raised when the excerpt is asked for.
    """

    def __init__(self, sequences: MappedSequences, begin: Tensor, length: Tensor, steps: int) -> None:
        """`begin` and `length` are those of the samples [steps of the round, batch size]; a block has `steps`."""
        self._items, self._device, self._steps = np.asarray(sequences.items), sequences.device, steps
        self._begin, self._length = (each.contiguous().cpu().numpy() for each in (begin, length))
        self._read: dict[int, tuple[Tensor, ...] | Exception] = {}
        self._thread: Thread | None = None

    def block(self, number: int) -> Excerpt:
        """What the block of this number needs."""
        if self._thread:
            self._thread.join()
        if number not in self._read:
            self._read_block(number, self._room(number))
        found = self._read.pop(number)
        self._read.clear()
        if isinstance(found, Exception):
            raise found
        return Excerpt(*map(self._to_device, found))

    def read_ahead(self, number: int) -> None:
        """Begin to read what the block of this number needs, if there is one: call it when the device has work."""
        if number * self._steps < len(self._begin):
            self._thread = Thread(target=self._read_block, args=(number, self._room(number)))
            self._thread.start()

    def _rows(self, number: int) -> slice:
        return slice(number * self._steps, (number + 1) * self._steps)

    def _room(self, number: int) -> Tensor:
        """For the items of a block, from where a GPU copies while it computes."""
        # One more each, which is what is asked for where the next item is.
        size = int((self._length[self._rows(number)] + 1).sum())
        return torch.empty(size, dtype=torch.int32, pin_memory=self._device.type == "cuda")

    def _read_block(self, number: int, room: Tensor) -> None:
        rows = self._rows(number)
        begin, length = self._begin[rows].ravel(), self._length[rows].ravel()
        try:
            end = np.minimum(begin + length + 1, len(self._items))
            found, *numbers = read_excerpt(self._items, begin, end, room.numpy())
            self._read[number] = room[: len(found)], *map(torch.from_numpy, numbers)
        except Exception as error:  # In the caller's thread it can be dealt with.
            self._read[number] = error

    def _to_device(self, tensor: Tensor) -> Tensor:
        if self._device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)
