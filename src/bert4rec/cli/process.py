"""A command as a process: how soon it starts and ends, also on Ctrl-C and SIGTERM, and how many threads torch gets."""

import atexit
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from bert4rec.cli.console import say
from bert4rec.machine import local_ranks, num_ranks, usable_cores

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SECONDS_TO_STOP = 4.5
"""From a signal to the end of the process, whatever it is doing."""
_last_words: list[Callable[[], str]] = []
"""Said if the process has to be ended: how to continue."""


@contextmanager
def loading() -> Iterator[None]:
    """Look for no garbage while large libraries are loaded: what they make stays.

    Otherwise torch's many thousand objects are looked through again and again, for a seventh of the time it takes.
    """
    # All installed packages would be read in search of further kinds of devices, which are not used here.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def end_at_once() -> None:
    """When the process ends, leave its memory to the system: Python would look through all of torch for garbage."""
    atexit.register(gc.freeze)


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
        # torchrun passes on what a terminal has sent to all processes already: twice is no haste.
        if self._pressed and num_ranks() == 1:
            raise KeyboardInterrupt
        self._pressed = True


SPINS = "1000"
"""Then a waiting thread sleeps: some ten microseconds, where libgomp's usual 300,000 are milliseconds."""


def share_the_machine() -> None:
    """Leave a core to others, unless the user has set the number of threads.

    Threads wait for each other after every operation, spinning. If one of them has no core, because something else
    runs there, all the others wait for it: two threads on two cores with one busy neighbour train at a fraction of the
    speed of one thread. `python -m benchmarks.busy` shows it.
    """
    together = local_ranks()
    threads = usable_cores() // together if together > 1 else usable_cores() - 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, threads)))
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
