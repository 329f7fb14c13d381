"""What recommendations lead to: how many were given to whom in a test, and the feedback that clients send.

To write a row for every answer would cost too much. So the recommendations of a test are added up in memory and
written every second and at the end: a process that is killed loses the counts of its last second. Feedback is on disk
when it is acknowledged.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from bert4rec.service.batcher import Batcher, OverloadedError, TooLateError
from bert4rec.service.contract.event_reading import latest_moment, microseconds, stored_id
from bert4rec.service.contract.feedback_schemas import FeedbackIn, FeedbackRequest
from bert4rec.service.experiment import ServedArms
from bert4rec.service.recommending import Content, Plan
from bert4rec.service.served_models import TIMEOUT
from bert4rec.service.stored_events import MAX_WAITING_EVENTS, StoredEvents
from bert4rec.service.telemetry.counters import Metrics
from bert4rec.store.events import StoreError
from bert4rec.store.feedback import (
    A_DAY,
    Exposure,
    Feedback,
    Served,
    add_exposures,
    add_feedback,
    read_id,
    subject_of,
)

WRITE_EVERY = 1.0
MOST_COUNTED = 100_000
"""Users whose recommendations wait for a store that does not work; 20 MB at most."""
OTHER = "other"
"""The arm of feedback on recommendations of a model that is served no more, or elsewhere."""
log = logging.getLogger("bert4rec.service")


class Counting:
    """To be used from one event loop."""

    def __init__(self, arms: ServedArms, events: StoredEvents, metrics: Metrics) -> None:
        self._arms, self._events, self._metrics = arms, events, metrics
        self._given: Counter[tuple[str, Served]] = Counter()
        """How many recommendations a user got of a model since they were written last."""
        self._forgotten: dict[str, float] = {}
        """Users to be forgotten once more, and when: other workers write theirs without knowing."""
        self._is_full = self._has_failed = False
        self._stopping = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._writes: Batcher[list[Feedback], list[bool]] = Batcher(
            self._add,
            name="feedback-write",
            max_batch=256,
            max_waiting=MAX_WAITING_EVENTS,
            timeout=TIMEOUT,
            size=len,
        )

    # Recommendations

    def note(self, plan: Plan) -> None:
        """A recommendation was given."""
        plan.model.recommendations.inc()
        if self._arms.is_test and plan.subject:
            self._count((plan.subject, plan.model.served), 1)

    def _count(self, who: tuple[str, Served], count: int) -> None:
        if who in self._given or len(self._given) < MOST_COUNTED:
            self._given[who] += count
        elif not self._is_full:
            log.error(
                "Recommendations of %d users wait for the store; of others none are counted.", MOST_COUNTED
            )
            self._is_full = True

    def forget(self, user: str) -> None:
        """What was not written yet of a user never will be, and what other workers write is deleted in a moment."""
        subject = subject_of(user)
        self._given = Counter({key: count for key, count in self._given.items() if key[0] != subject})
        if self._arms.is_test:
            self._forgotten.pop(subject, None)
            self._forgotten[subject] = time.monotonic() + 2 * WRITE_EVERY
            if len(self._forgotten) > MOST_COUNTED:  # of whom the first was told that the store fails
                del self._forgotten[next(iter(self._forgotten))]

    def start(self) -> None:
        self._writing = asyncio.get_running_loop().create_task(self._keep_writing())

    async def stop(self) -> None:
        """When everything is written, unless the store hangs."""
        self._stopping.set()
        if self._writing:
            await self._writing
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT):
                await self._writes.stop()
        if self._forgotten:
            await asyncio.sleep(max(self._forgotten.values()) - time.monotonic())
            with suppress(StoreError, OverloadedError, TooLateError):
                await self._forget_again()

    async def _keep_writing(self) -> None:
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(WRITE_EVERY):
                    await self._stopping.wait()
            try:
                await self._write()
                await self._forget_again()
            except (StoreError, OverloadedError, TooLateError):  # which the log tells already
                pass
            except Exception:  # of whatever kind: it may pass, and memory must not grow
                if not self._has_failed:
                    log.exception("Recommendations cannot be counted; it is tried again every second.")
                self._has_failed = True
            else:
                self._has_failed = False

    async def _write(self) -> None:
        """What was not written waits for the next time."""
        given, self._given = self._given, Counter()
        if not given:
            return
        day = time.time_ns() // 1000 // A_DAY * A_DAY
        exposures = [Exposure(subject, served.mark, day, count) for (subject, served), count in given.items()]
        served = list({served for _, served in given})
        try:
            await self._events.change("write", partial(add_exposures, self._events.store, served, exposures))
            self._is_full = False
        except TooLateError:  # they may still be written
            pass
        except Exception:
            for who, count in given.items():
                self._count(who, count)
            raise

    async def _forget_again(self) -> None:
        """What others counted of forgotten users before they were, and wrote afterwards. Not feedback: that was on disk
        when it was acknowledged, so what is there now came later."""
        now = time.monotonic()
        due = [subject for subject, moment in self._forgotten.items() if moment <= now]
        if due:
            await self._events.change("delete", partial(self._events.store.forget_counts, due))
            self._forgotten = {who: moment for who, moment in self._forgotten.items() if moment > now}

    # Feedback

    async def add_feedback(self, request: FeedbackRequest) -> Content:
        """Store what recommendations led to. Acknowledged feedback is on disk; the same again counts once."""
        feedback: list[Feedback] = []
        rejected: list[dict[str, Any]] = []
        for place, each in enumerate(request.feedback):
            read = self._read(each)
            if isinstance(read, Feedback):
                feedback.append(read)
            else:
                rejected.append({"index": place, "code": read})
        new = await self._events.ask_store(self._writes, feedback, "write") if feedback else []
        marks = self._marks()
        for kept, is_new in zip(feedback, new, strict=True):
            arm = marks.get(kept.recommendation_id[12:18], OTHER)
            self._metrics.feedback.labels(arm, "accepted" if is_new else "duplicates").inc()
        self._metrics.feedback.labels(OTHER, "rejected").inc(len(rejected))
        return {"accepted": sum(new), "duplicates": len(new) - sum(new), "rejected": rejected}

    def _read(self, given: FeedbackIn) -> Feedback | str:
        """As it is stored, or why it is refused."""
        latest = latest_moment()
        found = read_id(given.recommendation_id)
        if found is None:
            return "malformed_recommendation_id"
        if found.moment * 1000 > latest:
            return "future_recommendation_id"
        moment = latest - A_DAY if given.timestamp is None else microseconds(given.timestamp)
        if moment > latest:
            return "future_timestamp"
        item_id, _ = stored_id(given.item_id, self._arms.first.current.recommender.catalogue)
        return Feedback(given.recommendation_id, item_id, given.kind, moment)

    def _marks(self) -> dict[str, str]:
        """The arms of the models that are served, by what stands for these in ids of recommendations."""
        return {
            model.served.mark: name
            for name, _, versions in self._arms
            for model in (versions.previous, versions.current)
            if model
        }

    def _add(self, requests: list[list[Feedback]]) -> Sequence[list[bool]]:
        """Feedback of many requests in one commit."""
        together = [each for feedback in requests for each in feedback]
        new = iter(self._events.with_store("write", add_feedback, self._events.store, together))
        return [[next(new) for _ in feedback] for feedback in requests]
