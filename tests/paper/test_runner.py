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


class WorkerSettings:
    """Pretends to be workers and whoever watches, and remembers who was at work at the same time as whom."""

    def __init__(self, answer: Callable[[Job], Outcome] = lambda _job: Outcome("done", "fine", 1.0)) -> None:
        self.answer = answer
        self.device = DEVICE
        self.lock = threading.Lock()
        self.present: set[str] = set()
        self.done: list[tuple[str, str, frozenset[str]]] = []
        self.hired: list[str] = []
        self.tallies: list[OverallProgress] = []

    def hire(self, slot: Slot) -> "WorkerHandle":
        with self.lock:
            self.present.add(slot.name)
            self.hired.append(slot.name)
        return WorkerHandle(self, slot)

    def progress(self, slot: str, job: Job, event: dict[str, Any]) -> None: ...

    def finished(self, slot: str, job: Job, outcome: Outcome, tally: OverallProgress) -> None:
        self.tallies.append(tally)


class WorkerHandle:
    log = Path("worker.log")

    def __init__(self, office: WorkerSettings, slot: Slot) -> None:
        self.office, self.slot = office, slot
        self.device = office.device

    def do(self, job: Job, hear: Callable[[dict[str, Any]], None]) -> Outcome:
        with self.office.lock:
            self.office.done.append((self.slot.name, job.label, frozenset(self.office.present)))
        return self.office.answer(job)

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None:
        with self.office.lock:
            self.office.present.discard(self.slot.name)


def run(
    jobs: list[Job],
    office: WorkerSettings,
    slots: list[Slot],
    *,
    pace: RunTimes | None = None,
    seconds: float = 1e9,
) -> Runner:
    runner = Runner(jobs, slots, office.hire, pace or RunTimes(), office, time.monotonic() + seconds)
    runner.run()
    return runner


def test_every_job_is_done_once_by_someone() -> None:
    jobs, office = [pretended_job(seed=seed) for seed in range(40)], WorkerSettings()
    runner = run(jobs, office, make_slots("cpu", 4))
    assert sorted(label for _, label, _ in office.done) == sorted(job.label for job in jobs)
    assert not runner.waiting
    assert not runner.failed
    assert max(tally.finished for tally in office.tallies) == 40


def test_what_is_timed_is_alone_on_its_device() -> None:
    jobs = [pretended_job(str(n), task="speed" if n % 2 else "train", seed=n) for n in range(12)]
    office = WorkerSettings()
    slots = [Slot(f"{device} #{n}", device, n == 1) for device in ("cuda:0", "cuda:1") for n in (1, 2, 3)]
    run(jobs, office, slots)
    assert len(office.done) == 12
    timed = [(slot, present) for slot, label, present in office.done if "speed" in label]
    assert len(timed) == 6
    for slot, present in timed:
        device = slot.partition(" ")[0]
        assert {other for other in present if other.startswith(device)} == {slot}


def test_nothing_is_started_that_will_not_finish_in_time() -> None:
    long, short = pretended_job("long", seed=1), pretended_job("short", seed=2)
    pace = RunTimes()
    pace.learn(pretended_job(seed=3), DEVICE, 10.0)
    runner = run([long, short], office := WorkerSettings(), make_slots("cpu", 1), pace=pace, seconds=11.0)
    assert office.done == []
    assert runner.waiting == [long, short]
    runner = run([long, short], office, make_slots("cpu", 1), pace=pace, seconds=60.0)
    assert len(office.done) == 2


def test_a_job_that_fails_does_not_keep_the_others_from_being_done() -> None:
    jobs = [pretended_job(str(n), seed=n) for n in range(6)]

    def answer(job: Job) -> Outcome:
        return Outcome("failed", "it diverged") if job.seed == 2 else Outcome("done", "", 1.0)

    runner = run(jobs, office := WorkerSettings(answer), make_slots("cpu", 2))
    assert len(office.done) == 6
    assert runner.failed == {jobs[2].label: "it diverged"}
    assert len(office.hired) <= 2


def test_a_worker_that_breaks_is_replaced() -> None:
    jobs = [pretended_job(str(n), seed=n) for n in range(4)]
    broken = Outcome("broken", "the worker died")
    runner = run(jobs, office := WorkerSettings(lambda _job: broken), make_slots("cpu", 1))
    assert len(runner.failed) == len(office.hired) == 4


def test_a_worker_that_has_hardly_begun_to_start_is_stopped_too() -> None:
    """It is told while nobody knows its device yet, and nobody waits until it has started."""
    told = threading.Event()

    class Starting(WorkerHandle):
        def __init__(self, office: WorkerSettings, slot: Slot) -> None:
            self.office, self.slot = office, slot

        @property
        def device(self) -> str:  # type: ignore[override]
            os.kill(os.getpid(), signal.SIGINT)
            assert told.wait(timeout=20)
            return ""

        def stop(self) -> None:
            told.set()

    office = WorkerSettings()
    runner = Runner(
        [pretended_job()], make_slots("cpu", 1), lambda slot: Starting(office, slot), RunTimes(), office
    )
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    assert not runner.failed, "it was not the worker's fault"
    assert len(runner.waiting) == 1


class Interrupted(WorkerHandle):
    """Takes its time over the checkpoint."""

    def __init__(self, office: "Interrupting", slot: Slot) -> None:
        super().__init__(office, slot)
        self.all_at_work, self.checkpoints = office.all_at_work, office.checkpoints
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


class Interrupting(WorkerSettings):
    """Presses Ctrl-C when so many are at work."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.all_at_work = threading.Barrier(workers, action=lambda: os.kill(os.getpid(), signal.SIGINT))
        self.checkpoints: list[str] = []

    def hire(self, slot: Slot) -> WorkerHandle:
        super().hire(slot)
        return Interrupted(self, slot)


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_waits_for_all_checkpoints_and_hires_nobody(workers: int) -> None:
    jobs, office = [pretended_job(seed=seed) for seed in range(5)], Interrupting(workers)
    slots = make_slots("cpu", workers)
    runner = Runner(jobs, slots, office.hire, RunTimes(), office)
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    assert sorted(office.checkpoints) == [job.label for job in jobs[:workers]]
    assert sorted(office.hired) == [slot.name for slot in slots]
    assert office.present == set(), "all have left"
    assert sorted(job.seed for job in runner.waiting) == [0, 1, 2, 3, 4]


def test_where_no_worker_starts_nothing_is_tried_again_and_again() -> None:
    office = WorkerSettings()
    office.device = ""
    jobs = [pretended_job(seed=seed) for seed in range(5)]
    runner = run(jobs, office, make_slots("cpu", 2))
    assert runner.waiting == jobs
    assert set(runner.failed.values()) == {"it did not start; see worker.log"}
    assert len(office.hired) == 2


def test_the_time_left_falls_to_nothing() -> None:
    office = WorkerSettings()
    run([pretended_job(seed=seed) for seed in range(5)], office, make_slots("cpu", 1))
    left = [tally.seconds_left for tally in office.tallies]
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0


def test_the_time_left_counts_what_others_are_doing_and_is_no_shorter_than_the_longest() -> None:
    pace = RunTimes()
    pace.learn(pretended_job(), DEVICE, 100.0)
    jobs = [pretended_job(str(n), seed=n) for n in range(2)]
    both_at_work, first_is_told = threading.Barrier(2), threading.Event()

    def answer(job: Job) -> Outcome:
        both_at_work.wait(timeout=20)
        if job.seed == 1:
            first_is_told.wait(timeout=20)
        return Outcome("done", "", 100.0)

    class Telling(WorkerSettings):
        def finished(self, slot: str, job: Job, outcome: Outcome, tally: OverallProgress) -> None:
            super().finished(slot, job, outcome, tally)
            first_is_told.set()

    office = Telling(answer)
    run(jobs, office, make_slots("cpu", 2), pace=pace)
    first, last = (tally.seconds_left for tally in office.tallies)
    assert 80 < first <= 100, "not half of it, though there are two workers"
    assert last == 0


def test_part_of_a_run_teaches_nothing() -> None:
    pace, job = RunTimes(), pretended_job()
    run(
        [job],
        WorkerSettings(lambda _job: Outcome("done", "", 1.0, is_whole=False)),
        make_slots("cpu", 1),
        pace=pace,
    )
    assert pace.likely(job, DEVICE) == GUESSES["cuda"]


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
    pace = RunTimes([line_of(seconds) for seconds in (30.0, 90.0, 40.0)])
    assert pace.likely(pretended_job(), DEVICE) == 40
    assert pace.longest(pretended_job(), DEVICE) == MARGIN * 90


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
