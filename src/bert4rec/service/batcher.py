"""Many callers, one worker thread, no timer: whatever queued up while the last batch ran is the next batch.

A single question does not wait. Under load, batches grow by themselves, and a batch costs far less than its
questions one by one. The same holds for commits of a database, so the service uses this for both.

All state belongs to the event loop; the thread only ever sees a list of questions. A question whose caller has
gone, because the client hung up or the time was up, is dropped before it costs anything.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Work = Callable[[list[Question]], Sequence[Answer | Exception]]
"""Answers all questions of a batch, in their order. An answer that is an exception is raised for its caller
alone; an exception that is raised instead reaches every caller of the batch."""


class OverloadedError(Exception):
    """More is waiting than can be answered in time."""


class TooLateError(Exception):
    """No answer came in time."""


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
        size: Callable[[Question], int] = lambda _: 1,
    ) -> None:
        """`max_waiting` bounds the `size` of the questions that wait: as a rule, their number."""
        self._work, self._size = work, size
        self._max_batch, self._max_waiting, self._timeout = max_batch, max_waiting, timeout
        self._waiting: deque[tuple[Question, asyncio.Future[Answer]]] = deque()
        self._waiting_size = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._busy = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """How many questions have not been started, including those whose callers have gone."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return self._waiting_size >= self._max_waiting

    async def ask(self, question: Question) -> Answer:
        """The answer to one question; raises OverloadedError at once, or TooLateError when the time is up."""
        if self.is_full:
            self._drop_abandoned()
        if self.is_full:
            raise OverloadedError
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((question, answer))
        self._waiting_size += self._size(question)
        if not self._busy:
            self._busy = True
            self._idle.clear()
            # Not at once: requests that arrived in the same breath still join this batch.
            loop.call_soon(self._begin)
        try:
            async with asyncio.timeout(self._timeout):
                return await answer
        except TimeoutError as error:
            if answer.cancelled():
                raise TooLateError from error
            raise

    async def stop(self) -> None:
        """Return when everything that was accepted is answered. `ask` must not be called afterwards."""
        await self._idle.wait()
        self._thread.shutdown()

    def _drop_abandoned(self) -> None:
        kept = [entry for entry in self._waiting if not entry[1].done()]
        self._waiting.clear()
        self._waiting.extend(kept)
        self._waiting_size = sum(self._size(question) for question, _ in kept)

    def _begin(self) -> None:
        batch: list[tuple[Question, asyncio.Future[Answer]]] = []
        while self._waiting and len(batch) < self._max_batch:
            question, answer = self._waiting.popleft()
            self._waiting_size -= self._size(question)
            if not answer.done():
                batch.append((question, answer))
        if not batch:
            self._busy = False
            self._idle.set()
            return
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._thread, self._outcomes, [question for question, _ in batch])
        running.add_done_callback(lambda done: self._finish([answer for _, answer in batch], done.result()))

    def _outcomes(self, questions: list[Question]) -> Sequence[Answer | Exception]:
        """In the thread: as many answers as questions, whatever `work` does."""
        try:
            outcomes = self._work(questions)
            assert len(outcomes) == len(questions), f"{len(outcomes)} answers to {len(questions)} questions"
        except Exception as error:
            return [error] * len(questions)
        return outcomes

    def _finish(self, callers: list[asyncio.Future[Answer]], outcomes: Sequence[Answer | Exception]) -> None:
        for caller, outcome in zip(callers, outcomes, strict=True):
            if caller.done():
                continue
            if isinstance(outcome, StopIteration):  # which a future cannot hold
                caller.set_exception(RuntimeError(f"the answer was {outcome!r}"))
            elif isinstance(outcome, Exception):
                caller.set_exception(outcome)
            else:
                caller.set_result(outcome)
        self._begin()
