"""How one worker lets all others know that something has changed, at once and without asking them."""

import ctypes
from multiprocessing import get_context
from random import getrandbits


class ChangeMark:
    """A number in memory that all workers share: another one whenever there is something new to read.

    Whoever has changed something sets it to a number that it never had, and whoever sees another number than before
    reads anew. So nobody has to hold a lock, which a killed worker would never give back. Can be sent to a process that
    is being started.
    """

    def __init__(self) -> None:
        self._shared = get_context("spawn").RawValue(ctypes.c_uint64, 0)

    @property
    def value(self) -> int:
        found: int = self._shared.value
        return found

    def change(self) -> None:
        self._shared.value = getrandbits(64)
