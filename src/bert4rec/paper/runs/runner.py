"""Works through a list of jobs: on all GPUs at once, several jobs on one GPU if wanted, or on the CPU.

Each worker is a process of its own (`worker`) with a thread here. Results and unfinished runs are on disk, so after any
failure the same call continues where this one stopped.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from bert4rec.paper.runs.jobs import Job
from bert4rec.paper.runs.run_times import RunTimes

SECONDS_TO_STOP = 3.5
"""Time for a worker to write a checkpoint when it is told to stop. A slower one continues from its last checkpoint."""
SECONDS_BETWEEN_LOOKS = 0.2
"""A signal that another thread received is handled when the main thread wakes up."""
Status = Literal["done", "failed", "broken", "interrupted"]


@dataclass(frozen=True)
class Slot:
    """A place for one worker."""

    name: str
    device: str
    """Slots of the same device share it."""
    is_first: bool
    """Whether it is the first of its device: that one runs the jobs that must not share the device."""

    @property
    def kind(self) -> str:
        """What the worker calls its device; it sees only its own GPU."""
        return self.device.partition(":")[0]


def make_slots(device: str, side_by_side: int) -> list[Slot]:
    """`auto` is every GPU, or the CPU if there is none."""
    if device == "auto":
        devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
    else:
        devices = ["cuda:0" if device == "cuda" else device]
    return [
        Slot(f"{each} #{number}" if side_by_side > 1 else each, each, number == 1)
        for each in devices
        for number in range(1, side_by_side + 1)
    ]


def environment(slot: Slot, workers: int) -> dict[str, str]:
    """Of a worker: it sees one of the GPUs that this process may see, and compiles with its share of the cores."""
    share = str(max(1, (os.cpu_count() or 1) // workers))
    wanted = {"TORCHINDUCTOR_COMPILE_THREADS": share, **os.environ}
    if slot.kind == "cuda":
        number = slot.device.partition(":")[2]
        seen = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        wanted["CUDA_VISIBLE_DEVICES"] = seen[int(number)] if seen else number
    return wanted


@dataclass(frozen=True)
class WorkerSettings:
    """What all workers share."""

    results: Path
    work: Path
    compile_step: bool = True
    quick: bool = False
    keep_runs: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    status: Status
    text: str
    seconds: float = 0.0
    is_whole: bool = True
    """Whether the whole run was done now, so that its seconds predict those of others."""


class Worker:
    """A worker process and the conversation with it."""

    def __init__(self, slot: Slot, settings: WorkerSettings, workers: int) -> None:
        """`workers` is how many share this machine."""
        settings.work.mkdir(parents=True, exist_ok=True)
        self.log = settings.work / f"worker-{slot.name.replace(' ', '-').replace(':', '-')}.log"
        command = [sys.executable, "-m", "bert4rec.paper.runs.worker"]
        with self.log.open("a", encoding="utf-8") as log:  # An earlier worker may have written why it died.
            self.process = subprocess.Popen(  # noqa: S603 - ourselves
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(slot, workers),
            )
        state = {**vars(settings), "results": str(settings.results), "work": str(settings.work)}
        threads = max(1, torch.get_num_threads() // workers)
        self._say(json.dumps({**state, "device": slot.kind, "threads": threads}))

    @cached_property
    def device(self) -> str:
        """Waits until the worker has started, which takes seconds."""
        return str(self._hear().get("device", ""))

    def do(self, job: Job, hear: Callable[[dict[str, Any]], None]) -> Outcome:
        self._say(job.to_json())
        while self.device and (event := self._hear()):
            if event["event"] != "progress":
                seconds, is_whole = event.get("seconds", 0.0), event.get("is_whole", True)
                return Outcome(event["event"], event["text"], seconds, is_whole)
            hear(event)
        return Outcome("broken", f"the worker died. See {self.log}")

    def stop(self) -> None:
        """Ask it to write a checkpoint and leave."""
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        """End it when it has finished its job, and wait for that."""
        if self.process.stdin:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()

    def _say(self, text: str) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):  # It is dead; reading from it will show that.
            self.process.stdin.write(text + "\n")
            self.process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        """The next event; empty if the worker is gone."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line.endswith("\n") else {}


class WorkerHandle(Protocol):
    """What the runner needs from a worker."""

    log: Path

    @property
    def device(self) -> str:
        """Its name in results. Empty if the worker did not start."""
        ...

    def do(self, job: Job, hear: Callable[[dict[str, Any]], None]) -> Outcome: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


class RunnerListener(Protocol):
    """Hears how the runs are going."""

    def progress(self, slot: str, job: Job, event: dict[str, Any]) -> None:
        """A job on a slot has reached event["step"] of event["steps"] in event["stage"]."""

    def finished(self, slot: str, job: Job, outcome: Outcome, progress: "OverallProgress") -> None:
        """A job has ended."""


@dataclass(frozen=True)
class OverallProgress:
    """How many of all jobs are finished."""

    finished: int
    total: int
    seconds_left: float


@dataclass
class Runner:
    """Hands jobs to workers. Each slot has a thread; one lock guards what they share."""

    jobs: list[Job]
    slots: list[Slot]
    start_worker: Callable[[Slot], WorkerHandle]
    times: RunTimes
    listener: RunnerListener
    deadline: float = float("inf")
    """By the clock `time.monotonic`."""
    failed: dict[str, str] = field(default_factory=dict)
    """Label of the job → the reason."""

    def __post_init__(self) -> None:
        self.waiting = list(self.jobs)
        self._present: dict[str, Slot] = {slot.name: slot for slot in self.slots}
        self._workers: dict[str, WorkerHandle] = {}
        self._running: dict[str, tuple[Job, float]] = {}  # Slot → its job, and when it began.
        self.device = ""  # Its name in results, once a worker has reported it.
        self._finished = 0
        self._stopping = False
        self._changed = threading.Condition()

    def run(self) -> None:
        """Until no job is left, or none that would finish in time. Ctrl-C lets workers write checkpoints first."""
        with self._changed:  # No worker begins before this thread waits, which is where Ctrl-C is expected.
            for slot in self.slots:
                threading.Thread(target=self._serve, args=(slot,), daemon=True).start()
            try:
                while self._present:
                    self._changed.wait(SECONDS_BETWEEN_LOOKS)
            except KeyboardInterrupt:
                self._stop()
                raise

    def _stop(self) -> None:
        """Wait for the checkpoints, until a second Ctrl-C or until a worker takes too long."""
        self._stopping = True
        self._changed.notify_all()
        for worker in self._workers.values():
            worker.stop()
        try:
            self._changed.wait_for(lambda: not self._present, SECONDS_TO_STOP)
        finally:
            for worker in self._workers.values():
                worker.kill()

    def _serve(self, slot: Slot) -> None:
        """The thread of one slot: take jobs and have them done until there are no more."""
        worker: WorkerHandle | None = None
        try:
            while self._is_needed(slot):
                worker = worker or self._start(slot)
                job = self._take(slot) if worker.device else None
                if job is None:
                    break
                outcome = worker.do(job, partial(self.listener.progress, slot.name, job))
                self._finish(slot, job, outcome, worker.device)
                if outcome.status in ("broken", "interrupted"):
                    worker.close()
                    worker = None
        finally:
            if worker:
                worker.close()
            with self._changed:
                self._present.pop(slot.name)
                self._changed.notify_all()

    def _is_needed(self, slot: Slot) -> bool:
        with self._changed:
            wanted = any(job.case.task == "train" or slot.is_first for job in self.waiting)
            return wanted and not self._stopping

    def _start(self, slot: Slot) -> WorkerHandle:
        worker = self.start_worker(slot)
        with self._changed:  # From here on it can be stopped, even while it starts.
            self._workers[slot.name] = worker
        device = worker.device
        with self._changed:
            self.device = device or self.device
            if not device and not self._stopping:
                self.failed[f"the worker on {slot.name}"] = f"it did not start. See {worker.log}"
        return worker

    def _take(self, slot: Slot) -> Job | None:
        with self._changed:
            while not self._stopping:
                job = self._choose(slot)
                if job:
                    self.waiting.remove(job)
                    self._running[slot.name] = job, time.monotonic()
                    return job
                if not (slot.is_first and self._fitting("speed") and self._has_neighbours(slot)):
                    return None
                self._changed.wait()
            return None

    def _choose(self, slot: Slot) -> Job | None:
        """The first that will finish in time. A job that must not share the device waits for its neighbours."""
        if job := next(iter(self._fitting("train")), None):
            return job
        if slot.is_first and not self._has_neighbours(slot):
            return next(iter(self._fitting("speed")), None)
        return None

    def _fitting(self, task: str) -> list[Job]:
        left = self.deadline - time.monotonic()
        return [
            job
            for job in self.waiting
            if job.case.task == task and self.times.longest(job, self.device) <= left
        ]

    def _has_neighbours(self, slot: Slot) -> bool:
        return any(other.device == slot.device and other is not slot for other in self._present.values())

    def _finish(self, slot: Slot, job: Job, outcome: Outcome, device: str) -> None:
        with self._changed:
            if outcome.status == "interrupted":
                self.waiting.append(job)
            else:
                self._finished += 1
            if outcome.status == "done" and outcome.is_whole:
                self.times.learn(job, device, outcome.seconds)
            elif outcome.status in ("failed", "broken"):
                self.failed[job.label] = outcome.text
            self._running.pop(slot.name)
            progress = OverallProgress(self._finished, len(self.jobs), self._seconds_left(device))
            self._changed.notify_all()
        self.listener.finished(slot.name, job, outcome, progress)

    def _seconds_left(self, device: str) -> float:
        """Jobs run side by side, but no faster than the longest; jobs that must not share the device come last."""
        now = time.monotonic()
        waiting = [self.times.likely(job, device) for job in self._fitting("train")]
        running = [
            max(0.0, self.times.likely(job, device) - (now - began)) for job, began in self._running.values()
        ]
        together = max([sum(waiting + running) / len(self.slots), *waiting, *running])
        return together + sum(self.times.likely(job, device) for job in self._fitting("speed"))
