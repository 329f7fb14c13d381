"""Many callers, one worker thread, no timer: whatever queued up while the last batch ran is the next batch.

A single question does not wait. Under load, batches grow by themselves, and a batch costs far less than its
questions one by one. The same holds for commits of a database, so the service uses this for both.

The thread takes its next batch by itself. It must not wait for the event loop to hand it one: under overload the loop
is busy with saying no, and would hand over the less work the more there is.

A question whose caller has gone, because the client hung up, or whose time in the queue is over, is dropped before it
costs anything. Groups of questions are taken up whole or not at all, and wait behind single ones.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Result = TypeVar("Result")
Work = Callable[[list[Question]], Sequence[Answer | Exception]]
"""Answers all questions of a batch, in their order. An answer that is an exception is raised for its caller
alone; an exception that is raised instead reaches every caller of the batch."""
SHARE_OF_GROUPS = 8
"""One place of so many in a batch is for groups, however many single questions wait."""


class OverloadedError(Exception):
    """More is waiting than can be answered in time."""


class TooLateError(Exception):
    """No answer came in time."""


@dataclass(eq=False, slots=True)
class Entry(Generic[Question, Answer]):
    """A question that waits, and where its answer goes."""

    question: Question
    answer: asyncio.Future[Answer]
    asked: float
    since: float
    """When its time began, which may be earlier."""
    size: int
    is_started: bool = False


@dataclass(slots=True)
class Queue(Generic[Question, Answer]):
    """Entries in the order they came, and how large they are together."""

    entries: deque[Entry[Question, Answer]] = field(default_factory=deque)
    size: int = 0

    def extend(self, entries: Iterable[Entry[Question, Answer]]) -> None:
        for entry in entries:
            self.entries.append(entry)
            self.size += entry.size

    def take(self) -> Entry[Question, Answer]:
        entry = self.entries.popleft()
        self.size -= entry.size
        return entry

    def drop_abandoned(self) -> None:
        kept = [entry for entry in self.entries if not entry.answer.done()]
        self.entries, self.size = deque(), 0
        self.extend(kept)


class Batcher(Generic[Question, Answer]):
    """Asks `work` about many questions at once. To be used from one event loop."""

    def __init__(
        self,
        work: Work[Question, Answer],
        *,
        name: str,
        max_batch: int,
        max_waiting: int,
        timeout: float,
        max_wait: float | None = None,
        max_waiting_in_groups: int | None = None,
        size: Callable[[Question], int] = lambda _: 1,
        on_start: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`max_waiting` bounds the `size` of the questions that wait: as a rule, their number; groups have a bound of
        their own, or the same.

        A single question that has waited for `max_wait` seconds is turned away; where a batch takes longer than that,
        after two batches. `timeout` is for all of it. `on_start` is told how long the first of a batch has waited.
        """
        self._work, self._size, self._on_start = work, size, on_start
        self._max_batch, self._max_waiting, self._timeout = max_batch, max_waiting, timeout
        self._max_waiting_in_groups = max_waiting_in_groups or max_waiting
        self._max_wait = timeout if max_wait is None else max_wait
        self._singles: Queue[Question, Answer] = Queue()
        self._groups: Queue[Question, Answer] = Queue()
        self._asked: deque[Entry[Question, Answer]] = deque()
        """In the order of their deadlines, those that are answered included until they come first."""
        self._timer: asyncio.TimerHandle | None = None
        self._news = threading.Condition()
        """Guards the queues. Waited for by the thread alone."""
        self._is_idle = self._is_woken = False
        self._batch_began: float | None = None
        """None while the thread has nothing to do."""
        self._batch_seconds = 0.0
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many questions have not been started, including those whose callers have gone."""
        return len(self._singles.entries) + len(self._groups.entries)

    @property
    def oldest(self) -> float:
        """Seconds that the first in the queue has waited."""
        entries = [queue.entries[0] for queue in (self._singles, self._groups) if queue.entries]
        return time.monotonic() - min(entry.since for entry in entries) if entries else 0.0

    @property
    def is_full(self) -> bool:
        return self._singles.size >= self._max_waiting

    async def ask(self, question: Question, *, since: float | None = None) -> Answer:
        """The answer to one question; raises OverloadedError at once, or when it has waited for too long, and
        TooLateError when the worker does not answer in time. `since`: when its time began, by `time.monotonic`."""
        (entry,) = self._queue(self._singles, [question], self._max_waiting, since)
        return await entry.answer

    async def ask_all(self, questions: Sequence[Question]) -> list[Answer | Exception]:
        """The answers to many questions of one caller, each of which may be an exception; raises as `ask` does."""
        entries = self._queue(self._groups, questions, self._max_waiting_in_groups)
        found = await asyncio.gather(*(entry.answer for entry in entries), return_exceptions=True)
        return cast(list[Answer | Exception], found)  # nobody cancels single ones

    async def stop(self) -> None:
        """Return when everything that was accepted is answered. `ask` must not be called afterwards."""
        self._is_stopping = True
        self._wake()
        while self._thread.is_alive():
            await asyncio.sleep(0.005)  # not `join` in another thread, which nobody could give up
        if self._timer:
            self._timer.cancel()

    def _queue(
        self,
        queue: Queue[Question, Answer],
        questions: Sequence[Question],
        most: int,
        since: float | None = None,
    ) -> list[Entry[Question, Answer]]:
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        since = now if since is None else since
        entries = [Entry(each, loop.create_future(), now, since, self._size(each)) for each in questions]
        with self._news:
            if queue.size >= most:
                queue.drop_abandoned()
            if queue.size >= most:
                raise OverloadedError
            queue.extend(entries)
            if self._is_idle and not self._is_woken:
                self._is_woken = True
                loop.call_soon(
                    self._wake
                )  # not at once: what arrives in the same breath still joins the batch
        self._asked.extend(entries)
        self._watch_deadlines()
        return entries

    def _wake(self) -> None:
        with self._news:
            self._news.notify()

    def _watch_deadlines(self) -> None:
        """One timer for all: for the first that is not answered yet."""
        while self._asked and self._asked[0].answer.done():
            self._asked.popleft()
        if self._asked and self._timer is None:
            delay = self._asked[0].asked + self._timeout - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, delay), self._expire)

    def _expire(self) -> None:
        """The time is up: because the worker hangs, with this question or with one before it; or the queue is long."""
        self._timer = None
        latest = time.monotonic() - self._timeout
        while self._asked and self._asked[0].asked <= latest:
            entry = self._asked.popleft()
            hangs = self._batch_began is not None and self._batch_began <= entry.asked
            if not entry.answer.done():  # it may have come in the same turn of the loop
                entry.answer.set_exception(TooLateError() if hangs or entry.is_started else OverloadedError())
        self._watch_deadlines()

    # In the thread

    def _run(self) -> None:
        while True:
            batch, late = self._next()
            if not batch and not late:
                return
            outcomes = self._outcomes([entry.question for entry in batch]) if batch else []
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop = (batch or late)[0].answer.get_loop()
                loop.call_soon_threadsafe(_finish, batch, outcomes, late)

    def _next(self) -> tuple[list[Entry[Question, Answer]], list[Entry[Question, Answer]]]:
        """What to answer next, and what it is too late for; nothing of either at the end."""
        with self._news:
            now = time.monotonic()
            if self._batch_began is not None:
                self._batch_seconds = now - self._batch_began
                self._batch_began = None
            batch, late = self._take(now)
            while not batch and not late and not self._is_stopping:
                self._is_idle = True
                self._news.wait()
                self._is_idle = self._is_woken = False
                now = time.monotonic()
                batch, late = self._take(now)
            self._batch_began = now if batch else None
        if batch:
            self._on_start(now - batch[0].since)
        return batch, late

    def _take(self, now: float) -> tuple[list[Entry[Question, Answer]], list[Entry[Question, Answer]]]:
        batch: list[Entry[Question, Answer]] = []
        late: list[Entry[Question, Answer]] = []
        earliest = now - max(self._max_wait, 2 * self._batch_seconds)
        for_groups = self._max_batch // SHARE_OF_GROUPS if self._groups.entries else 0
        for queue, most in ((self._singles, self._max_batch - for_groups), (self._groups, self._max_batch)):
            while queue.entries and len(batch) < most:
                entry = queue.take()
                if entry.answer.done():
                    continue
                if queue is self._singles and entry.since < earliest:
                    late.append(entry)
                else:
                    entry.is_started = True
                    batch.append(entry)
        return batch, late

    def _outcomes(self, questions: list[Question]) -> Sequence[Answer | Exception]:
        """As many answers as questions, whatever `work` does."""
        try:
            outcomes = self._work(questions)
            assert len(outcomes) == len(questions), f"{len(outcomes)} answers to {len(questions)} questions"
        except Exception as error:
            return [error] * len(questions)
        return outcomes


def _finish(
    batch: list[Entry[Question, Answer]],
    outcomes: Sequence[Answer | Exception],
    late: list[Entry[Question, Answer]],
) -> None:
    """In the loop: give everybody their answer, unless they have gone."""
    for entry in late:
        if not entry.answer.done():
            entry.answer.set_exception(OverloadedError())
    for entry, outcome in zip(batch, outcomes, strict=True):
        if entry.answer.done():
            continue
        if isinstance(outcome, StopIteration):  # which a future cannot hold
            entry.answer.set_exception(RuntimeError(f"the answer was {outcome!r}"))
        elif isinstance(outcome, Exception):
            entry.answer.set_exception(outcome)
        else:
            entry.answer.set_result(outcome)


def lane(
    name: str, *, max_waiting: int, timeout: float, max_wait: float | None = None
) -> Batcher[Callable[[], Any], Any]:
    """A thread that makes calls one after the other, with a bounded queue and a deadline."""

    def work(calls: list[Callable[[], Result]]) -> Sequence[Result | Exception]:
        return [outcome_of(call) for call in calls]

    # Small batches: clients that have hung up are noticed between two of them.
    return Batcher(work, name=name, max_batch=8, max_waiting=max_waiting, max_wait=max_wait, timeout=timeout)


def outcome_of(call: Callable[[], Result]) -> Result | Exception:
    try:
        return call()
    except Exception as error:
        return error
