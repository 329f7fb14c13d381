"""What rules cost: `python -m benchmarks.rules`, requests with a filter or diversity beside the same without.

One exported model (d = 64, random weights, 54,542 items unless a number is given) with attributes answers one request
after another on one core, from ids to ids. The kinds of requests take turns, and each is told as a share of the time
of a request without rules. Then the same by a real server, with as many requests at once as `CONNECTIONS`, by the
processor time that each takes; and what it takes to write and to read the attributes.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.load import closed_loop, post
from benchmarks.recommend import K, numbered, random_model, seconds_each
from benchmarks.serving.servers import THIS, Version, serving
from bert4rec.export.exporter import export_model
from bert4rec.recommend.recommender import Recommender
from bert4rec.recommend.rules.attributes import FILE, Attributes

NUM_ITEMS, LENGTH, HISTORIES = 54_542, 20, 200
CONNECTIONS, TURNS, SECONDS = 4, 5, 2.0
Rules = Callable[[int], dict[str, Any]]
RULES: dict[str, Rules] = {
    "no rule": lambda _: {},
    "filter, half of the items": lambda _: {"where": {"price": {"<": 50}}},
    "filter, nearly all items": lambda _: {"where": {"brand": {"not": "brand 7"}}},
    "filter, one in ten": lambda _: {"where": {"tags": ["tag 3"]}},
    "filter, one in a hundred": lambda _: {"where": {"brand": "brand 7"}},
    "filter, one in ten thousand": lambda _: {"where": {"brand": "brand 7", "price": {"<": 1}}},
    "a filter never asked for before": lambda turn: {"where": {"price": {"<": 50 + 1e-6 * turn}}},
    "ten kinds of filters": lambda turn: {"where": {"price": {"<": 30 + 6 * (turn % 10)}}},
    "diversity": lambda _: {"diversity": 0.3},
}
"""What is asked, by how often it was asked before."""


def main() -> None:
    torch.set_num_threads(1)
    num_items = next((int(each) for each in sys.argv[1:] if each.isdigit()), NUM_ITEMS)
    console = Console()
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        console.print(make(folder, num_items))
        asked = np.random.default_rng(2).integers(1, num_items + 1, (HISTORIES, LENGTH)).tolist()
        alone, served = measure_alone(folder, asked), measure_served(folder, asked)
    table = Table("", "alone, ms", "share", "served, ms of a core", "share", box=None, header_style="bold")
    for name in RULES:
        cells = [
            cell
            for found in (alone, served)
            for cell in (f"{1000 * found[name]:.3f}", f"{found[name] / found['no rule']:.2f}")
        ]
        table.add_row(name, *cells)
    console.print(table)


def make(folder: Path, num_items: int) -> str:
    """Write the model; what its attributes cost."""
    rng = np.random.default_rng(1)
    items = folder.with_name("items.parquet")
    pl.DataFrame(
        {
            "id": np.arange(1, num_items + 1),
            "price": rng.uniform(0, 100, num_items).round(2),
            "brand": [f"brand {number}" for number in rng.integers(0, 100, num_items)],
            "tags": [[f"tag {number}"] for number in rng.integers(0, 10, num_items)],
            "released": pl.date_range(pl.date(2000, 1, 1), pl.date(2024, 1, 1), eager=True).sample(
                num_items, with_replacement=True, seed=1
            ),
        }
    ).write_parquet(items)
    attributes = Attributes.of_table(items)
    model = random_model("beauty", num_items)
    export_model(
        model, numbered(num_items), folder, name="rules", attributes=attributes, with_attention=False
    )
    began = time.perf_counter()
    read = Attributes.read(folder / FILE)
    opened = time.perf_counter()
    for name in read.kinds:
        read.column(name)
    columns = time.perf_counter() - opened
    size = (folder / FILE).stat().st_size / 1e6
    return (
        f"{num_items:,} items, {len(read.kinds)} attributes: {size:.1f} MB, "
        f"{1000 * (opened - began):.1f} ms to open, {1000 * columns / len(read.kinds):.1f} ms for a column."
    )


def measure_alone(folder: Path, asked: list[list[int]]) -> dict[str, float]:
    """Seconds of a request in Python."""
    recommender = Recommender.load(folder, force=True)

    def asking(rules: Rules) -> Callable[[], object]:
        turns = count()

        def ask() -> object:
            turn = next(turns)
            return recommender.recommend(asked[turn % HISTORIES], K, **rules(turn))

        return ask

    return dict(zip(RULES, seconds_each(*map(asking, RULES.values())), strict=True))


def measure_served(folder: Path, asked: list[list[int]]) -> dict[str, float]:
    """Seconds of the processor for a request to a server, with several of them under way."""
    taken: dict[str, list[float]] = {name: [] for name in RULES}
    with serving(Version("this", THIS), folder) as server:
        for turn in range(TURNS):
            for name, rules in RULES.items():
                requests = [
                    post("/v1/recommend", {"history": history, "k": K, **rules(HISTORIES * turn + place)})
                    for place, history in enumerate(asked)
                ]
                load = partial(closed_loop, server.port, requests, connections=CONNECTIONS, seconds=SECONDS)
                outcome = server.during(load)
                taken[name].append(1 / outcome.per_processor_second)
    return {name: float(np.median(each)) for name, each in taken.items()}


if __name__ == "__main__":
    main()
