"""One thread, no timer: batches are what queued up while the last one ran."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.service.batcher import Batcher, OverloadedError, TooLateError

Arguments = ParamSpec("Arguments")


def in_a_loop(test: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, None]:
    @wraps(test)
    def run(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Worker:
    """Doubles numbers and remembers its batches. The question 100 holds it up until it may go on."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_go_on = threading.Event()

    def __call__(self, questions: list[int]) -> list[int]:
        self.batches.append(questions)
        assert 100 not in questions or self.may_go_on.wait(30)
        return [2 * question for question in questions]


def make(work: Callable[[list[int]], Sequence[Any]], **changes: Any) -> Batcher[int, int]:
    settings = {"name": "test", "max_batch": 8, "max_waiting": 100, "timeout": 30.0, **changes}
    return Batcher(work, **settings)


def ask(batcher: Batcher[int, int], *questions: int) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(batcher.ask(question)) for question in questions]


@asynccontextmanager
async def held_up(**changes: Any) -> AsyncIterator[tuple[Worker, Batcher[int, int], asyncio.Task[int]]]:
    """A batcher whose worker is busy with one question until it may go on."""
    worker = Worker()
    batcher = make(worker, **changes)
    (first,) = ask(batcher, 100)
    while not worker.batches:
        if first.done():  # on a busy machine, its time may be over before the worker wakes
            first.exception()
            (first,) = ask(batcher, 100)
        await asyncio.sleep(0)
    yield worker, batcher, first
    worker.may_go_on.set()
    await batcher.stop()


@in_a_loop
async def test_requests_that_arrive_together_share_a_batch() -> None:
    worker = Worker()
    batcher = make(worker)
    assert await asyncio.gather(*map(batcher.ask, range(5))) == [0, 2, 4, 6, 8]
    assert worker.batches == [[0, 1, 2, 3, 4]]
    await batcher.stop()


@in_a_loop
async def test_what_queued_while_a_batch_ran_is_the_next_batch() -> None:
    async with held_up(max_batch=4) as (worker, batcher, first):
        others = ask(batcher, *range(6))
        await asyncio.sleep(0)
        assert batcher.waiting == 6
        worker.may_go_on.set()
        assert await asyncio.gather(*[first, *others]) == [200, 0, 2, 4, 6, 8, 10]
        assert worker.batches == [[100], [0, 1, 2, 3], [4, 5]]


@in_a_loop
async def test_past_its_bound_the_queue_turns_away_at_once() -> None:
    async with held_up(max_waiting=3) as (worker, batcher, first):
        waiting = ask(batcher, 0, 1, 2)
        await asyncio.sleep(0)
        assert batcher.is_full
        with pytest.raises(OverloadedError):
            await batcher.ask(9)
        worker.may_go_on.set()
        assert await asyncio.gather(*[first, *waiting]) == [200, 0, 2, 4]
        assert await batcher.ask(9) == 18  # and recovers


@in_a_loop
async def test_what_waits_may_be_bounded_by_its_size() -> None:
    async with held_up(max_waiting=10, size=lambda question: question) as (worker, batcher, first):
        gone, waiting = ask(batcher, 9, 8)
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await batcher.ask(1)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        (late,) = ask(batcher, 2)
        await asyncio.sleep(0)
        assert batcher.is_full
        worker.may_go_on.set()
        assert await asyncio.gather(*[first, waiting, late]) == [200, 16, 4]
        assert not batcher.is_full


@in_a_loop
async def test_whoever_has_gone_is_dropped_before_it_costs_anything() -> None:
    async with held_up(max_waiting=3) as (worker, batcher, first):
        gone, also_gone, patient = ask(batcher, 1, 2, 3)
        await asyncio.sleep(0)
        gone.cancel()
        also_gone.cancel()
        await asyncio.gather(gone, also_gone, return_exceptions=True)
        (late,) = ask(batcher, 4)  # their places are free again
        await asyncio.sleep(0)
        worker.may_go_on.set()
        assert await asyncio.gather(*[first, patient, late]) == [200, 6, 8]
        assert worker.batches == [[100], [3, 4]]


@in_a_loop
async def test_no_answer_in_time_is_said_so_and_the_question_is_dropped() -> None:
    async with held_up(timeout=0.01) as (worker, batcher, first):
        with pytest.raises(TooLateError):
            await batcher.ask(1)
        with pytest.raises(TooLateError):
            await first
    assert worker.batches == [[100]]


@in_a_loop
async def test_what_has_waited_for_too_long_is_turned_away_before_it_costs_anything() -> None:
    """Its time began when its request did, not when it joined this queue."""
    async with held_up(max_wait=1000.0) as (worker, batcher, first):
        began = time.monotonic()
        late, in_time = (
            asyncio.create_task(batcher.ask(question, since=began - seconds))
            for question, seconds in ((1, 1001), (2, 0))
        )
        await asyncio.sleep(0)
        assert batcher.oldest > 1000
        worker.may_go_on.set()
        with pytest.raises(OverloadedError):
            await late
        assert [await first, await in_time] == [200, 4]
        assert worker.batches == [[100], [2]]


@in_a_loop
async def test_where_batches_take_long_questions_wait_for_two_of_them() -> None:
    async with held_up(max_wait=0.2) as (worker, batcher, first):
        asked = asyncio.create_task(batcher.ask(1, since=time.monotonic()))
        await asyncio.sleep(0.4)
        worker.may_go_on.set()
        assert [await first, await asked] == [200, 2]


@in_a_loop
async def test_a_queue_that_is_too_long_is_not_taken_for_a_worker_that_hangs() -> None:
    worker = Worker()
    batcher = make(slow(worker), max_batch=1, timeout=0.1)
    answers = await asyncio.gather(*map(batcher.ask, range(20)), return_exceptions=True)
    assert answers[0] == 0
    assert isinstance(answers[-1], OverloadedError)
    await batcher.stop()


def slow(worker: Worker) -> Callable[[list[int]], list[int]]:
    def work(questions: list[int]) -> list[int]:
        threading.Event().wait(0.02)
        return worker(questions)

    return work


@in_a_loop
async def test_an_answer_that_comes_in_the_turn_in_which_the_time_is_up_is_given() -> None:
    """The loop is busy until both have happened."""
    begun = threading.Event()

    def work(questions: list[int]) -> list[int]:
        begun.set()
        threading.Event().wait(0.1)
        return questions

    batcher = make(work, timeout=0.2)
    (asked,) = ask(batcher, 1)
    while not begun.is_set():
        await asyncio.sleep(0)
    threading.Event().wait(0.4)
    (outcome,) = await asyncio.gather(asked, return_exceptions=True)
    assert outcome == 1 or isinstance(outcome, TooLateError), "never an error of another kind"
    await batcher.stop()


@in_a_loop
async def test_a_group_is_taken_up_whole_or_not_at_all() -> None:
    async with held_up(max_waiting=1, max_waiting_in_groups=10) as (worker, batcher, _):
        group = asyncio.create_task(batcher.ask_all(range(12)))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await batcher.ask_all([1])
        assert not batcher.is_full, "single questions have a bound of their own"
        worker.may_go_on.set()
        assert await group == [2 * question for question in range(12)]
        assert await batcher.ask_all([]) == []


@in_a_loop
async def test_single_questions_go_before_groups_but_for_a_place_in_eight() -> None:
    async with held_up(max_batch=8) as (worker, batcher, _):
        group = asyncio.create_task(batcher.ask_all(range(200, 210)))
        await asyncio.sleep(0)
        singles = ask(batcher, *range(10))
        await asyncio.sleep(0)
        worker.may_go_on.set()
        await asyncio.gather(group, *singles)
        assert worker.batches[1] == [*range(7), 200]
        assert worker.batches[2] == [7, 8, 9, *range(201, 206)]


@in_a_loop
async def test_one_wrong_question_of_a_group_does_not_spoil_the_others_and_a_group_can_be_left() -> None:
    batcher = make(lambda questions: [ValueError("odd") if each % 2 else each for each in questions])
    assert [type(each) for each in await batcher.ask_all([2, 3, 4])] == [int, ValueError, int]
    await batcher.stop()
    async with held_up() as (worker, busy, _):
        group = asyncio.create_task(busy.ask_all([1, 2]))
        await asyncio.sleep(0)
        group.cancel()
        await asyncio.gather(group, return_exceptions=True)
        worker.may_go_on.set()
    assert worker.batches == [[100]]


@in_a_loop
async def test_stopping_finishes_what_was_accepted() -> None:
    async with held_up(max_batch=1) as (worker, batcher, first):
        accepted = [first, *ask(batcher, 1, 2)]
        stopping = asyncio.create_task(batcher.stop())
        await asyncio.sleep(0)
        assert not stopping.done()
        worker.may_go_on.set()
        await stopping
        assert [task.result() for task in accepted] == [200, 2, 4]


@in_a_loop
async def test_an_answer_that_is_an_exception_is_raised_for_its_asker_alone() -> None:
    batcher = make(lambda questions: [ValueError("odd") if each % 2 else each for each in questions])
    answers = await asyncio.gather(*map(batcher.ask, (2, 3, 4)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [int, ValueError, int]
    await batcher.stop()


def fails(_: list[int]) -> list[int]:
    raise ValueError("no")


def too_few(questions: list[int]) -> list[int]:
    return questions[1:]


def stops(_: list[int]) -> list[int]:
    return [next(iter([]))]


def returns_stops(questions: list[int]) -> list[Any]:
    return [StopIteration()] * len(questions)


def runs_out_of_time(_: list[int]) -> list[int]:
    raise TimeoutError("the disk")


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (fails, ValueError),
        (too_few, AssertionError),
        (stops, RuntimeError),
        (returns_stops, RuntimeError),
        (runs_out_of_time, TimeoutError),
    ],
)
@in_a_loop
async def test_whatever_the_work_does_all_askers_hear_of_it_and_the_next_batch_runs(
    work: Callable[[list[int]], list[int]], error: type[Exception]
) -> None:
    batcher = make(work)
    for _ in range(2):
        answers = await asyncio.gather(*map(batcher.ask, (1, 2)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [error] * 2
    await batcher.stop()


@given(
    bursts=st.lists(st.lists(st.integers(101, 2**31), max_size=12), max_size=6),
    max_batch=st.integers(1, 5),
    vanishing=st.sets(st.integers(0, 40)),
)
@in_a_loop
async def test_everybody_who_stays_hears_the_answer_to_their_own_question(
    bursts: list[list[int]], max_batch: int, vanishing: set[int]
) -> None:
    worker = Worker()
    batcher = make(worker, max_batch=max_batch)
    tasks: list[asyncio.Task[int]] = []
    for burst in bursts:
        tasks += ask(batcher, *burst)
        await asyncio.sleep(0)
        for place in vanishing & set(range(len(tasks))):
            tasks[place].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    questions = [question for burst in bursts for question in burst]
    for place, (question, answer) in enumerate(zip(questions, answers, strict=True)):
        assert answer == 2 * question or (place in vanishing and isinstance(answer, asyncio.CancelledError))
    assert all(len(batch) <= max_batch for batch in worker.batches)
    await batcher.stop()
