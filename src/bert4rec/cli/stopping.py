"""Ctrl-C and SIGTERM: first politely, so that a checkpoint can be written, and within seconds in any case."""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from bert4rec.cli.console import say

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SECONDS_TO_STOP = 4.5
"""From a signal to the end of the process, whatever it is doing."""
_last_words: list[Callable[[], str]] = []
"""Said if the process has to be ended: how to continue."""


def end_in_time() -> None:
    """From now on, end the process if it has not ended by itself some seconds after a signal.

    Python handles a signal between two operations only, and one of them may take minutes: so a thread listens too.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_end_in_time, args=(reader,), daemon=True).start()


def _end_in_time(signals: int) -> None:
    while os.read(signals, 1)[0] not in SIGNALS:
        pass
    time.sleep(SECONDS_TO_STOP)
    for words in _last_words:
        say(words())
    say("Interrupted.")
    os._exit(130)


class StopSwitch:
    """Turns Ctrl-C into a polite request, so that training stops between two steps. A second one is not polite."""

    def __init__(self, last_words: Callable[[], str]) -> None:
        self._pressed = False
        self._words = last_words

    def is_on(self) -> bool:
        return self._pressed

    def __enter__(self) -> "StopSwitch":
        self._before = {number: signal.signal(number, self._press) for number in SIGNALS}
        _last_words.append(self._words)
        return self

    def __exit__(self, *_: object) -> None:
        _last_words.remove(self._words)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _press(self, _signal: int, _frame: FrameType | None) -> None:
        if self._pressed:
            raise KeyboardInterrupt
        self._pressed = True
