"""A sign of life for logs and pipes, which have no live line."""

import threading
from collections.abc import Callable

SILENCE = 30.0
"""Seconds without a line after which one is due."""


class Heartbeat:
    """Says how things stand whenever half a minute has passed without a line."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._news, self._is_over = threading.Event(), False

    def __enter__(self) -> "Heartbeat":
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._news.set()

    def note(self) -> None:
        """Something was said."""
        self._news.set()

    def _watch(self) -> None:
        while not self._is_over:
            if self._news.wait(SILENCE):
                self._news.clear()
            else:
                self._tell()
