"""What a training step on a GPU consists of: `python -m benchmarks.profile_step`.

A recorded step of the paper's model, with synthetic data in the shape of a data set, is replayed, and the time of its
kernels is added up by what they are for. Beside it stands what the card cannot be faster than, for what the step is
bound by: the arithmetic of products, attention and softmax at the rate of one large product, and the bytes of the
optimiser at the rate of one large copy. With `--json`, it prints the lines of `results/speed-training.jsonl` that the
profile is made of.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bert4rec.api import bench, timing
from bert4rec.data.dataset import Dataset
from bert4rec.settings.config import RunConfig
from bert4rec.tasks.task import TaskInputs
from bert4rec.training.device import Placement, place
from bert4rec.training.loop import Loop
from bert4rec.training.specs import MODELS

SHAPES: tuple[tuple[str, int, int | None], ...] = (
    ("ml-1m", 64, None),
    ("ml-1m", 256, None),
    ("beauty", 64, None),
    ("beauty", 64, 1_000_000),
)
"""Shape, width and number of items."""
BATCH = 256
WARM, REPLAYED = 10, 50
BYTES_UPDATED = 34
"""Of a parameter, by clipping and AdamW: its gradient read twice, itself and two moments read and written, a copy."""
PARTS = {
    "attention": ("_attend", "_bits", "_means"),
    "norms": ("_add_norm",),
    "look-up": ("_embed", "gather", "index", "Index"),
    "optimiser": ("_squares", "_factors", "_update"),
    "maps": (
        *("nvjet", "gemm", "splitK", "_map_kernel", "_weight_gradient", "_column_sums"),
        *("_feed_forward", "_input_gradient", "_maps_gradient", "_activate"),
    ),
}
"""By what the names of kernels have in them; the first that fits."""
SOFTMAX_BEGINS, SOFTMAX_ENDS = "_shares", "_add_norm_backward"
"""Where logits are written, the softmax is products too, so it is known by what comes before and after."""


def main() -> None:
    placement = place("cuda")
    lines = [measured(*shape, placement) for shape in SHAPES]
    if "--json" in sys.argv:
        print("\n".join(map(json.dumps, lines)))  # noqa: T201
        return
    table = Table("step", "", "ms", "its limit", box=None, header_style="bold")
    for line in lines:
        name = f"{line['profile']}, d={line['dim']}, {line['items']:,} items"
        for part, spent in line["milliseconds"].items():
            limit = line["limits"].get(part)
            table.add_row(name, part, f"{spent:.3f}", f"{limit:.3f}" if limit else "")
            name = ""
    Console().print(table)


def measured(shape: str, dim: int, num_items: int | None, placement: Placement) -> dict[str, Any]:
    dataset = bench.synthetic_dataset(shape, num_items)
    config = bench.bench_config(shape, dim, BATCH)
    inputs = TaskInputs(
        dataset, dataset.offsets[1:], config, seed=1, device=placement.device, dtype=placement.dtype
    )
    task = MODELS["bert4rec"].make_task(inputs)
    assert config.training
    loop = Loop(task, config.training, device=placement.device, seed=1)
    loop.run_steps(WARM)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        loop.run_steps(WARM + REPLAYED)
        torch.cuda.synchronize()
    kernels = sorted(
        (each.time_range.start, each.time_range.end, each.name)
        for each in profile.events()
        if each.device_type.name == "CUDA"
    )
    return {
        "profile": shape,
        "device": placement.name,
        "dim": dim,
        "batch_size": BATCH,
        "items": dataset.num_items,
        "launches": len(kernels) // REPLAYED,
        "milliseconds": by_part(kernels),
        "limits": limits(dataset, config, placement, sum(each.numel() for each in task.model.parameters())),
        "device_shared": placement.is_shared,
    }


def by_part(kernels: Sequence[tuple[float, float, str]]) -> dict[str, float]:
    """Milliseconds of a step, by what kernels are for, and between them. Times are in microseconds."""
    spent: dict[str, float] = defaultdict(float)
    in_softmax = False
    for begin, end, name in kernels:
        in_softmax = (in_softmax or SOFTMAX_BEGINS in name) and SOFTMAX_ENDS not in name
        part = "softmax" if in_softmax else part_of(name)
        spent[part] += end - begin
    spent["between kernels"] = sum(max(0.0, later[0] - former[1]) for former, later in pairwise(kernels))
    ordered = sorted(spent.items(), key=lambda one: -one[1])
    return {part: round(each / REPLAYED / 1000, 4) for part, each in ordered}


def part_of(name: str) -> str:
    return next((part for part, names in PARTS.items() if any(each in name for each in names)), "the rest")


def limits(
    dataset: Dataset, config: RunConfig, placement: Placement, num_parameters: int
) -> dict[str, float]:
    """Milliseconds that a step takes at least."""
    windows = bench.bench_windows(dataset, config)
    updating = 1000 * num_parameters * BYTES_UPDATED / copied_per_second(placement)
    products = bench.least_milliseconds(
        windows, config, dataset.num_items, timing.arithmetic_limit(placement)
    )
    return products | {"optimiser": round(updating, 4)}


def copied_per_second(placement: Placement) -> float:
    """Bytes read and written, in one large copy."""
    source = torch.randn(1 << 28, device=placement.device)
    target = torch.empty_like(source)
    seconds = timing.best_seconds(lambda: target.copy_(source), placement)
    return 2 * source.numel() * source.element_size() / seconds


if __name__ == "__main__":
    main()
