"""Models of the demo trained side by side, in lanes: processes with one thread each.

To such small models more threads are of little use, and starting a process for each of them would take longer than
training it. A lane reads tasks from its stdin, one JSON object a line, and answers each on its stdout.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from bert4rec.errors import Bert4RecError
from bert4rec.machine import usable_cores

SECONDS_BETWEEN_LOOKS = 0.2
"""How long Ctrl-C may go unnoticed."""


@dataclass(frozen=True)
class Task:
    """One model to be trained."""

    model: str
    dataset: str
    folder: str
    seed: int


def train_side_by_side(tasks: Sequence[Task], should_stop: Callable[[], bool]) -> Iterator[Task]:
    """Train as many at a time as there are cores, the first ones first, and yield each that is done."""
    lanes = [Lane() for _ in range(min(usable_cores(), len(tasks)))]
    free: SimpleQueue[Lane] = SimpleQueue()
    for lane in lanes:
        free.put(lane)

    def train_in_lane(task: Task) -> None:
        lane = free.get()
        lane.train(task)
        free.put(lane)

    threads = ThreadPoolExecutor(len(lanes))
    waiting: dict[Future[None], Task] = {threads.submit(train_in_lane, task): task for task in tasks}
    try:
        while waiting:
            done, _ = wait(waiting, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
            if should_stop():
                raise KeyboardInterrupt
            for future in done:
                future.result()
                yield waiting.pop(future)
    finally:
        for lane in lanes:
            lane.stop()
        threads.shutdown(cancel_futures=True)
        for lane in lanes:
            lane.close()


class Lane:
    """A process that trains one model after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 (this very module)
            [sys.executable, "-m", __name__],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def train(self, task: Task) -> None:
        assert self._process.stdin
        assert self._process.stdout
        try:
            print(json.dumps(asdict(task)), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise Bert4RecError(
                f"The process that was training {task.model} has ended: out of memory, perhaps."
            )
        if error := json.loads(answer)["error"]:
            raise Bert4RecError(error)

    def stop(self) -> None:
        """Ask it to end, in the middle of a training if need be."""
        self._process.terminate()

    def close(self) -> None:
        with self._process:  # This waits for it.
            pass


def main() -> None:
    stops: list[int] = []
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes of a terminal; the first one decides.
    signal.signal(signal.SIGTERM, lambda number, _frame: stops.append(number))
    from bert4rec.data.dataset import Dataset
    from bert4rec.demo.demo import Quiet, train_model
    from bert4rec.training.device import place
    from bert4rec.training.train import RunContext

    context = RunContext(place("cpu"), Quiet(), should_stop=lambda: bool(stops))
    for line in iter(sys.stdin.readline, ""):
        if stops:
            return
        task, error = Task(**json.loads(line)), None
        try:
            train_model(task.model, Dataset.open(task.dataset), Path(task.folder), context, seed=task.seed)
        except KeyboardInterrupt:
            return
        except Bert4RecError as trouble:
            error = str(trouble)
        print(json.dumps({"error": error}), flush=True)  # noqa: T201 (for the process that has started this one)


if __name__ == "__main__":
    main()
