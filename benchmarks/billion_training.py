"""The first steps of a training, for `benchmarks.billion`: when they begin, and how fast they are."""

import json
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.billion import BATCHES, SECONDS, SETTINGS, STEPS
from bert4rec.api.runs import train
from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import make_split
from bert4rec.settings.config import make_config
from bert4rec.settings.defaults import DataFacts, default_settings
from bert4rec.tasks.task import TaskInputs
from bert4rec.training.device import place
from bert4rec.training.loop import Interrupted
from bert4rec.training.specs import MODELS


def main(folder: str, device: str, began: str) -> None:
    marks: list[float] = []

    def note() -> bool:
        """Asked before every step."""
        marks.append(time.monotonic())
        return len(marks) > STEPS and marks[-1] - marks[1] > SECONDS

    with tempfile.TemporaryDirectory() as folder_of_run, suppress(Interrupted):
        run = Path(folder_of_run) / "run"
        train(folder, run, model="bert4rec", settings=SETTINGS, device=device, should_stop=note)
    found = {
        "seconds_to_first_step": round(marks[0] - float(began), 1),
        "steps_per_second": round((len(marks) - 2) / (marks[-1] - marks[1]), 3),
        "batches_per_second": round(batches_per_second(folder, device), 1),
    }
    sys.stdout.write(json.dumps(found) + "\n")


def batches_per_second(folder: str, device: str) -> float:
    """Of the default model's own, without any step."""
    dataset, placement = Dataset.open(folder), place(device)
    config = make_config(
        "bert4rec+", default_settings("bert4rec+", DataFacts.of(dataset), {"model": {"dim": 16}})
    )
    end = make_split(dataset).training_end("valid")
    inputs = TaskInputs(dataset, end, config, seed=1, device=placement.device, dtype=placement.dtype)
    task, step = MODELS["bert4rec+"].make_task(inputs), 0
    began = time.monotonic()
    while step < BATCHES:
        first, rows = task.block(step)
        step = first + len(rows)
    int(rows[-1, -1])  # Waits for the device.
    return step / (time.monotonic() - began)


if __name__ == "__main__":
    main(*sys.argv[1:])
