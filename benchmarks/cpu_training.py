"""Training on a CPU, part by part, and beside another version of the code.

`python -m benchmarks.cpu_training data/world` tells what a step of the default model consists of. With `--against
../other/src` that version takes turns with this one, in processes of their own, and the ratios of the middle values are
printed. Seconds are those of the processor, not of the clock, so that a busy machine does not count.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

import bert4rec

TURNS, STEPS = 5, 30
HERE = Path(bert4rec.__file__).parents[1]
PARTS = ("batch", "forward", "backward", "clipping", "update", "step", "validation")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--model", default="bert4rec+")
    parser.add_argument("--preset", help="such as demo; otherwise the settings follow from the data")
    parser.add_argument("--against", type=Path, help="the src folder of another version")
    parser.add_argument("--before", default="the version before", help="what that version is called")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one line")
    given = parser.parse_args()
    versions = {"now": HERE} | ({"before": given.against.resolve()} if given.against else {})
    seconds: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in versions}
    for _ in range(TURNS):
        for name, source in versions.items():
            for part, found in measured(given, source).items():
                seconds[name][part].append(found)
    if given.json:
        print(json.dumps(as_line(given, seconds)))  # noqa: T201
        return
    table = Table(
        str(given.dataset), *(f"{name}, ms" for name in versions), *["ratio"] * bool(given.against), box=None
    )
    for part in PARTS:
        values = [median(found[part]) * 1000 for found in seconds.values()]
        ratio = [f"{values[1] / values[0]:.2f}"] if given.against else []
        table.add_row(part, *(f"{value:.2f}" for value in values), *ratio)
    Console().print(table)


def as_line(given: argparse.Namespace, seconds: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """Milliseconds of the parts and, beside another version, how many times as fast each is."""
    from bert4rec.machine import processor_name  # Which other versions, in their own processes, may not have.

    middle = {
        name: {part: round(1000 * median(found[part]), 3) for part in PARTS}
        for name, found in seconds.items()
    }
    line: dict[str, Any] = {"cpu": "training", "device": processor_name(), "threads": given.threads}
    line |= {"model": given.model, "preset": given.preset, "milliseconds": middle}
    line["users"] = json.loads((given.dataset / "dataset.json").read_text())["counts"]["users"]
    if "before" in middle:
        line["before"] = given.before
        line["times"] = {part: round(middle["before"][part] / middle["now"][part], 2) for part in PARTS}
    return line


def measured(given: argparse.Namespace, source: Path) -> dict[str, float]:
    """Seconds of the parts by the version in `source`, in a process of its own."""
    code = f"import runpy, sys; sys.argv[0] = 'cpu_training'; runpy.run_path({__file__!r}, run_name='worker')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(given.dataset), given.model, given.preset or ""],
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": str(given.threads)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def work(dataset_folder: str, model: str, preset: str) -> dict[str, float]:
    """Seconds of the parts of a step, and of a validation, each the middle of many."""
    import torch
    from torch import nn

    from bert4rec.data.dataset import Dataset
    from bert4rec.data.splits import make_split
    from bert4rec.evaluation.judge import judge
    from bert4rec.models.model import make_scorer
    from bert4rec.settings.config import make_config
    from bert4rec.settings.defaults import DataFacts, default_settings
    from bert4rec.settings.presets import load_preset
    from bert4rec.tasks.task import TaskInputs
    from bert4rec.training.loop import Loop
    from bert4rec.training.specs import MODELS

    device, dataset = torch.device("cpu"), Dataset.open(Path(dataset_folder))
    values = load_preset(model, preset) if preset else default_settings(model, DataFacts.of(dataset))
    config, split = make_config(model, values), make_split(dataset)
    training = config.training
    assert training, f"{model} is not trained"
    inputs = TaskInputs(dataset, split.training_end("valid"), config, seed=1, device=device, dtype=None)
    task = MODELS[model].make_task(inputs)
    loop = Loop(task, training, device=device, seed=1)
    loop.run_steps(3)
    passed: dict[str, list[float]] = defaultdict(list)

    def timed(part: str, part_of_step: Callable[[], Any]) -> Any:
        began = time.process_time()
        found = part_of_step()
        passed[part].append(time.process_time() - began)
        return found

    for _ in range(STEPS):
        timed("step", lambda: loop.run_steps(loop.progress.step + 1))
        # The same once more, taken apart; the weights go on as in a step.
        first, rows = task.block(loop.progress.step)
        row = timed("batch", rows[loop.progress.step - first].clone)
        loop._optimizer.zero_grad()
        loss = timed("forward", partial(task.loss, row))
        timed("backward", loss.backward)
        timed("clipping", lambda: nn.utils.clip_grad_norm_(task.model.parameters(), training.clip_norm))
        timed("update", loop._optimizer.step)
    task.model.eval()
    scorer = make_scorer(task.model)
    for _ in range(3):
        timed("validation", lambda: judge(scorer, dataset, split, "valid", "cpu"))
    return {part: median(seconds) for part, seconds in passed.items()}


if __name__ == "worker":
    print(json.dumps(work(*sys.argv[1:])))  # noqa: T201
if __name__ == "__main__":
    main()
