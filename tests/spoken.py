"""What a running process writes, line by line, and how to wait for it to say something."""

import re
import threading
from collections.abc import Iterable

PATIENCE = 60
"""Seconds after which a test gives up waiting; never how long it waits when all is well."""


class Spoken:
    """The lines of a stream, read as they come, so that the process never waits for a reader."""

    def __init__(self, stream: Iterable[str]) -> None:
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._reader.start()

    def _read(self, stream: Iterable[str]) -> None:
        for line in stream:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_for_line(self, pattern: str) -> re.Match[str]:
        """The first line, past or to come, in which the pattern is found."""

        def found() -> re.Match[str] | None:
            return next(filter(None, (re.search(pattern, line) for line in self._lines)), None)

        with self._news:
            self._news.wait_for(lambda: found() or self._ended, timeout=PATIENCE)
        match = found()
        assert match, f"never said {pattern!r}, but:\n{self.text}"
        return match

    def wait_for_end(self) -> None:
        self._reader.join()

    @property
    def text(self) -> str:
        return "".join(self._lines)
