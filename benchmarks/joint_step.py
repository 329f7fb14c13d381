"""What a step of joint training costs beside its two halves: `python -m benchmarks.joint_step`.

BERT4Rec+ with the settings of a preset, on synthetic data in the shape of its data set, takes steps that learn masked
items, next items, and both. Halves share what does not depend on the batch: above all the optimiser and, of the
softmax over items, the gradient of the item table. With `--json`, it prints lines for `results/speed-training.jsonl`.
"""

import json
import sys
import time
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from bert4rec.api.bench import synthetic_dataset
from bert4rec.api.timing import wait
from bert4rec.settings.config import RunConfig, make_config
from bert4rec.settings.presets import load_preset
from bert4rec.tasks.next_item import NextItemTask
from bert4rec.tasks.task import Task, TaskInputs
from bert4rec.training.device import Placement, place
from bert4rec.training.loop import Loop
from bert4rec.training.specs import MODELS

SHAPES = "ml-1m", "beauty"
MODEL = "bert4rec+"
WARM, TIMED = 10, {"cuda": 500, "cpu": 10, "mps": 50}
"""Steps."""
MASKED_ALONE = "objective.next_item_weight=0", "model.ask=mask"


def main() -> None:
    placement = place()
    lines = [measured(shape, placement) for shape in SHAPES]
    if "--json" in sys.argv:
        print("\n".join(map(json.dumps, lines)))  # noqa: T201
        return
    table = Table("shape", "ms a step", "", box=None, header_style="bold")
    for line in lines:
        for what, spent in line["milliseconds"].items():
            table.add_row(line["joint"], what, f"{spent:.3f}")
        table.add_row(line["joint"], "both, of the sum of its halves", f"{line['share_of_sum']:.2f}")
    Console().print(table)


def measured(shape: str, placement: Placement) -> dict[str, Any]:
    dataset, preset = synthetic_dataset(shape), load_preset(MODEL, shape)

    def inputs(config: RunConfig) -> TaskInputs:
        return TaskInputs(
            dataset, dataset.offsets[1:], config, seed=1, device=placement.device, dtype=placement.dtype
        )

    both, masked = (inputs(make_config(MODEL, preset, changes)) for changes in ((), MASKED_ALONE))
    spec = MODELS[MODEL]
    next_items = {
        "objective": {"loss": "cross-entropy", "window_step": preset["objective"]["window_step"]},
        "training": preset["training"],
    }
    followed = replace(both, config=make_config("sasrec", next_items))
    network = spec.build(dataset.num_users, dataset.num_items, both.config.model)
    tasks: dict[str, Task] = {
        "masked items": spec.make_task(masked),
        "next items": NextItemTask(network.to(placement.device), followed),
        "both": spec.make_task(both),
    }
    spent = {what: milliseconds(task, both.config, placement) for what, task in tasks.items()}
    return {
        "joint": shape,
        "device": placement.name,
        "items": dataset.num_items,
        "milliseconds": spent,
        "share_of_sum": round(spent["both"] / (spent["masked items"] + spent["next items"]), 3),
        "device_shared": placement.is_shared,
    }


def milliseconds(task: Task, config: RunConfig, placement: Placement) -> float:
    assert config.training
    loop, steps = Loop(task, config.training, device=placement.device, seed=1), TIMED[placement.device.type]
    loop.run_steps(WARM)
    wait(placement)
    began = time.perf_counter()
    loop.run_steps(WARM + steps)
    wait(placement)
    return round(1000 * (time.perf_counter() - began) / steps, 4)


if __name__ == "__main__":
    main()
