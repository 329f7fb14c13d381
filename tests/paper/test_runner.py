"""The runner hands out work as it should; with pretended workers here, with real ones in `test_worker`."""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bert4rec.paper.runs.jobs import Job
from bert4rec.paper.runs.run_times import GUESSES, MARGIN, QUICK_GUESS, SPEED_GUESS, RunTimes
from bert4rec.paper.runs.runner import Outcome, OverallProgress, Runner, Slot, environment, make_slots
from tests.paper.tiny import pretended_job

DEVICE = "NVIDIA H200"


class FakeWorkers:
    """Pretends to be the workers and the listener, and remembers which workers were there at the same time."""

    def __init__(self, answer: Callable[[Job], Outcome] = lambda _job: Outcome("done", "fine", 1.0)) -> None:
        self.answer = answer
        self.device = DEVICE
        self.lock = threading.Lock()
        self.present: set[str] = set()
        self.done: list[tuple[str, str, frozenset[str]]] = []
        self.started: list[str] = []
        self.reports: list[OverallProgress] = []

    def start(self, slot: Slot) -> "FakeWorker":
        with self.lock:
            self.present.add(slot.name)
            self.started.append(slot.name)
        return FakeWorker(self, slot)

    def progress(self, slot: str, job: Job, event: dict[str, Any]) -> None: ...

    def finished(self, slot: str, job: Job, outcome: Outcome, progress: OverallProgress) -> None:
        self.reports.append(progress)


class FakeWorker:
    log = Path("worker.log")

    def __init__(self, workers: FakeWorkers, slot: Slot) -> None:
        self.workers, self.slot = workers, slot
        self.device = workers.device

    def do(self, job: Job, hear: Callable[[dict[str, Any]], None]) -> Outcome:
        with self.workers.lock:
            self.workers.done.append((self.slot.name, job.label, frozenset(self.workers.present)))
        return self.workers.answer(job)

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None:
        with self.workers.lock:
            self.workers.present.discard(self.slot.name)


def run(
    jobs: list[Job],
    workers: FakeWorkers,
    slots: list[Slot],
    *,
    times: RunTimes | None = None,
    seconds: float = 1e9,
) -> Runner:
    runner = Runner(jobs, slots, workers.start, times or RunTimes(), workers, time.monotonic() + seconds)
    runner.run()
    return runner


def test_every_job_is_done_once_by_someone() -> None:
    jobs, workers = [pretended_job(seed=seed) for seed in range(40)], FakeWorkers()
    runner = run(jobs, workers, make_slots("cpu", 4))
    assert sorted(label for _, label, _ in workers.done) == sorted(job.label for job in jobs)
    assert not runner.waiting
    assert not runner.failed
    assert max(progress.finished for progress in workers.reports) == 40


def test_what_is_timed_is_alone_on_its_device() -> None:
    jobs = [pretended_job(str(n), task="speed" if n % 2 else "train", seed=n) for n in range(12)]
    workers = FakeWorkers()
    slots = [Slot(f"{device} #{n}", device, n == 1) for device in ("cuda:0", "cuda:1") for n in (1, 2, 3)]
    run(jobs, workers, slots)
    assert len(workers.done) == 12
    timed = [(slot, present) for slot, label, present in workers.done if "speed" in label]
    assert len(timed) == 6
    for slot, present in timed:
        device = slot.partition(" ")[0]
        assert {other for other in present if other.startswith(device)} == {slot}


def test_nothing_is_started_that_will_not_finish_in_time() -> None:
    long, short = pretended_job("long", seed=1), pretended_job("short", seed=2)
    times = RunTimes()
    times.learn(pretended_job(seed=3), DEVICE, 10.0)
    runner = run([long, short], workers := FakeWorkers(), make_slots("cpu", 1), times=times, seconds=11.0)
    assert workers.done == []
    assert runner.waiting == [long, short]
    runner = run([long, short], workers, make_slots("cpu", 1), times=times, seconds=60.0)
    assert len(workers.done) == 2


def test_a_job_that_fails_does_not_keep_the_others_from_being_done() -> None:
    jobs = [pretended_job(str(n), seed=n) for n in range(6)]

    def answer(job: Job) -> Outcome:
        return Outcome("failed", "it diverged") if job.seed == 2 else Outcome("done", "", 1.0)

    runner = run(jobs, workers := FakeWorkers(answer), make_slots("cpu", 2))
    assert len(workers.done) == 6
    assert runner.failed == {jobs[2].label: "it diverged"}
    assert len(workers.started) <= 2


def test_a_worker_that_breaks_is_replaced() -> None:
    jobs = [pretended_job(str(n), seed=n) for n in range(4)]
    broken = Outcome("broken", "the worker died")
    runner = run(jobs, workers := FakeWorkers(lambda _job: broken), make_slots("cpu", 1))
    assert len(runner.failed) == len(workers.started) == 4


def test_a_worker_that_has_hardly_begun_to_start_is_stopped_too() -> None:
    """It is told while nobody knows its device yet, and nobody waits until it has started."""
    told = threading.Event()

    class Starting(FakeWorker):
        def __init__(self, workers: FakeWorkers, slot: Slot) -> None:
            self.workers, self.slot = workers, slot

        @property
        def device(self) -> str:  # type: ignore[override]
            os.kill(os.getpid(), signal.SIGINT)
            assert told.wait(timeout=20)
            return ""

        def stop(self) -> None:
            told.set()

    workers = FakeWorkers()
    runner = Runner(
        [pretended_job()], make_slots("cpu", 1), lambda slot: Starting(workers, slot), RunTimes(), workers
    )
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    assert not runner.failed, "it was not the worker's fault"
    assert len(runner.waiting) == 1


class Interrupted(FakeWorker):
    """Takes its time over the checkpoint."""

    def __init__(self, workers: "Interrupting", slot: Slot) -> None:
        super().__init__(workers, slot)
        self.all_at_work, self.checkpoints = workers.all_at_work, workers.checkpoints
        self.told, self.killed = threading.Event(), threading.Event()

    def do(self, job: Job, hear: Callable[[dict[str, Any]], None]) -> Outcome:
        self.all_at_work.wait(timeout=20)
        assert self.told.wait(timeout=20)
        # Nothing to wait for where the runner is patient; one that is not has killed it by then.
        if not self.killed.wait(timeout=0.5):
            self.checkpoints.append(job.label)
        return Outcome("interrupted", "stopped with a checkpoint")

    def stop(self) -> None:
        self.told.set()

    def kill(self) -> None:
        self.killed.set()


class Interrupting(FakeWorkers):
    """Presses Ctrl-C when so many are at work."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.all_at_work = threading.Barrier(workers, action=lambda: os.kill(os.getpid(), signal.SIGINT))
        self.checkpoints: list[str] = []

    def start(self, slot: Slot) -> FakeWorker:
        super().start(slot)
        return Interrupted(self, slot)


@pytest.mark.parametrize("number", [1, 2])
def test_ctrl_c_waits_for_all_checkpoints_and_starts_no_worker(number: int) -> None:
    jobs, workers = [pretended_job(seed=seed) for seed in range(5)], Interrupting(number)
    slots = make_slots("cpu", number)
    runner = Runner(jobs, slots, workers.start, RunTimes(), workers)
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    assert sorted(workers.checkpoints) == [job.label for job in jobs[:number]]
    assert sorted(workers.started) == [slot.name for slot in slots]
    assert workers.present == set(), "all have left"
    assert sorted(job.seed for job in runner.waiting) == [0, 1, 2, 3, 4]


def test_where_no_worker_starts_nothing_is_tried_again_and_again() -> None:
    workers = FakeWorkers()
    workers.device = ""
    jobs = [pretended_job(seed=seed) for seed in range(5)]
    runner = run(jobs, workers, make_slots("cpu", 2))
    assert runner.waiting == jobs
    assert set(runner.failed.values()) == {"it did not start. See worker.log"}
    assert len(workers.started) == 2


def test_the_time_left_falls_to_nothing() -> None:
    workers = FakeWorkers()
    run([pretended_job(seed=seed) for seed in range(5)], workers, make_slots("cpu", 1))
    left = [progress.seconds_left for progress in workers.reports]
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0


def test_the_time_left_counts_what_others_are_doing_and_is_no_shorter_than_the_longest() -> None:
    times = RunTimes()
    times.learn(pretended_job(), DEVICE, 100.0)
    jobs = [pretended_job(str(n), seed=n) for n in range(2)]
    both_at_work, first_is_told = threading.Barrier(2), threading.Event()

    def answer(job: Job) -> Outcome:
        both_at_work.wait(timeout=20)
        if job.seed == 1:
            first_is_told.wait(timeout=20)
        return Outcome("done", "", 100.0)

    class Telling(FakeWorkers):
        def finished(self, slot: str, job: Job, outcome: Outcome, progress: OverallProgress) -> None:
            super().finished(slot, job, outcome, progress)
            first_is_told.set()

    workers = Telling(answer)
    run(jobs, workers, make_slots("cpu", 2), times=times)
    first, last = (progress.seconds_left for progress in workers.reports)
    assert 80 < first <= 100, "not half of it, though there are two workers"
    assert last == 0


def test_part_of_a_run_teaches_nothing() -> None:
    times, job = RunTimes(), pretended_job()
    run(
        [job],
        FakeWorkers(lambda _job: Outcome("done", "", 1.0, is_whole=False)),
        make_slots("cpu", 1),
        times=times,
    )
    assert times.likely(job, DEVICE) == GUESSES["cuda"]


def line_of(seconds: float, *, shared: bool = False, **more: Any) -> dict[str, Any]:
    line = {**pretended_job().identity(), "device": DEVICE, "device_shared": shared}
    return {**line, "command_seconds": seconds, **more}


def test_nobody_knows_how_long_a_run_takes_that_is_like_no_other() -> None:
    job, told = pretended_job(), [line_of(30.0)]
    assert RunTimes().likely(job, DEVICE) == GUESSES["cuda"]
    assert RunTimes(told).likely(job, "another device, 1 threads") == GUESSES["cpu"]
    assert RunTimes(told).likely(pretended_job(task="speed"), DEVICE) == SPEED_GUESS
    assert (
        RunTimes(told).likely(replace(job, quick=True, facts=replace(job.facts, name="x")), DEVICE)
        == QUICK_GUESS
    )
    assert RunTimes().longest(job, DEVICE) == MARGIN * GUESSES["cuda"]


def test_the_same_settings_tell_more_than_the_same_model() -> None:
    other = line_of(70.0, config={"model": {}})
    assert RunTimes([other]).likely(pretended_job(), DEVICE) == 70
    assert RunTimes([other, line_of(30.0)]).likely(pretended_job(), DEVICE) == 30


def test_what_is_likely_is_the_middle_and_nothing_is_started_that_the_longest_would_not_let_finish() -> None:
    times = RunTimes([line_of(seconds) for seconds in (30.0, 90.0, 40.0)])
    assert times.likely(pretended_job(), DEVICE) == 40
    assert times.longest(pretended_job(), DEVICE) == MARGIN * 90


def test_a_crowd_of_another_day_does_not_keep_a_run_from_being_started() -> None:
    job, crowded = pretended_job(), [line_of(seconds, shared=True) for seconds in (50.0, 60.0, 300.0)]
    assert RunTimes(crowded).longest(job, DEVICE) == MARGIN * 60
    assert RunTimes([*crowded, line_of(20.0)]).longest(job, DEVICE) == MARGIN * 20, (
        "alone, as this one will be"
    )
    together = RunTimes([*crowded, line_of(20.0)], side_by_side=True)
    assert together.longest(job, DEVICE) == MARGIN * 55
    together.learn(job, DEVICE, 110.0)
    together.learn(job, DEVICE, 130.0)
    assert together.longest(job, DEVICE) == MARGIN * 130, "the crowd of today"
    assert together.likely(job, DEVICE) == 120


def test_a_run_that_was_interrupted_and_went_on_teaches_nothing() -> None:
    """Its line has the seconds of the last call alone, while those of training add up."""
    selection = {**line_of(8.0, stage="selection"), "split": "valid", "train_seconds": 70.0}
    resumed = line_of(75.0, train_seconds=60.0)
    assert RunTimes([selection, resumed]).likely(pretended_job(), DEVICE) == GUESSES["cuda"]
    whole = line_of(140.0, train_seconds=60.0)
    assert RunTimes([selection, whole]).likely(pretended_job(), DEVICE) == 140
    assert RunTimes([{**selection, "seed": 2}, resumed]).likely(pretended_job(), DEVICE) == 75, (
        "of another run"
    )


def test_workers_see_one_gpu_each_and_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert environment(Slot("", "cuda:1", True), 2)["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert environment(Slot("", "cuda:1", True), 2)["CUDA_VISIBLE_DEVICES"] == "7"
    assert int(environment(Slot("", "cpu", True), 10_000)["TORCHINDUCTOR_COMPILE_THREADS"]) == 1


def test_all_gpus_are_used_or_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [slot.device for slot in make_slots("auto", 2)] == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    assert [slot.device for slot in make_slots("cuda:1", 1)] == ["cuda:1"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert [slot.kind for slot in make_slots("auto", 1)] == ["cpu"]
