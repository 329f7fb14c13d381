"""How fast recommendations are made, beside plain PyTorch in the same process: `python -m benchmarks.recommend`.

Weights are random, histories synthetic, in the shape of a data set. One thread. The plain loop is what one would
write first: histories padded to the longest the model takes, `nn.TransformerEncoder`, scores, `topk`.

`python -m benchmarks.recommend cuda` measures a GPU instead: users a second from arrays in memory, and from file
to file where polars is installed. With `--json`, it prints the lines of `results/speed-recommend.jsonl`.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from bert4rec.api.bench import MAX_LENGTH, synthetic_dataset
from bert4rec.data.histories import Histories, training_histories
from bert4rec.export.exporter import export_model
from bert4rec.models.bert4rec import BERT4Rec
from bert4rec.recommend.bulk import USERS_PER_PART, Request, recommend_file
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.engine import by_rows
from bert4rec.recommend.recommender import Question, Recommender
from bert4rec.recommend.rules.rules import Rules
from bert4rec.recommend.torch_engine import TorchEngine
from bert4rec.settings.networks import ModelConfig
from bert4rec.training.device import Placement, place

K = 10
CPU = Placement(torch.device("cpu"), None)
USERS = 2048
TURNS, TURN_SECONDS = 6, 0.4
Line = dict[str, Any]


@dataclass(frozen=True)
class Contestants:
    """One model, three ways to ask it, and a plain one of the same size."""

    model: BERT4Rec
    plain: "PlainModel"
    run: Recommender
    exported: Recommender
    histories: Histories


def main() -> None:
    shapes = list(map(measure_gpu, ("ml-1m", "beauty"))) if "cuda" in sys.argv else measure_cpu()
    if "--json" in sys.argv:
        print("\n".join(map(json.dumps, shapes)))  # noqa: T201
        return
    table = Table("shape", "", box=None, header_style="bold")
    for shape in shapes:
        name = f"{shape['recommend']}, {shape['items']:,} items, {shape['device']}"
        for what, found in (*shape["milliseconds"].items(), *shape["users_per_second"].items()):
            table.add_row(name, what, f"{found:,.2f}" if found < 1000 else f"{found:,.0f}")
            name = ""
    Console().print(table)


def measure_cpu() -> list[Line]:
    torch.set_num_threads(1)
    lines = []
    for shape, num_items in (("beauty", None), ("ml-1m", None), ("beauty", 1_000_000)):
        with TemporaryDirectory() as scratch:
            made = contestants(shape, num_items, Path(scratch) / "model")
            line = describe(shape, made.model.num_items, CPU)
            lines.append({**line, "milliseconds": single_request(made), "users_per_second": bulk(made)})
    return lines


def measure_gpu(shape: str, users: int = 200_000) -> Line:
    """Every user of the shape, as often as it takes."""
    placement = place("cuda")
    dataset = synthetic_dataset(shape)
    recommender = Recommender(
        TorchEngine(random_model(shape, dataset.num_items).to(placement.device), placement),
        numbered(dataset.num_items),
        name=shape,
        version="",
    )
    everybody = training_histories(dataset, dataset.offsets[1:])
    many = everybody[np.arange(users) % len(everybody)]
    recommender.ranker.top_rows(many[:USERS], many[:USERS], K)
    began = time.perf_counter()
    for part in by_rows(users, USERS_PER_PART):
        recommender.ranker.top_rows(many[part], many[part], K)
    speeds = {"run": users / (time.perf_counter() - began)}
    if find_spec("polars"):
        with TemporaryDirectory() as scratch:
            source = write_lists(many, Path(scratch) / "users.parquet")
            began = time.perf_counter()
            recommend_file(recommender, Request(source, Path(scratch) / "out.parquet", Rules(k=K)))
            speeds["file to file"] = users / (time.perf_counter() - began)
    return {**describe(shape, dataset.num_items, placement), "milliseconds": {}, "users_per_second": speeds}


def describe(shape: str, num_items: int, placement: Placement) -> Line:
    return {"recommend": shape, "items": num_items, "dim": 64, "device": placement.name}


def write_lists(histories: Histories, path: Path) -> Path:
    import polars as pl

    rows, items = histories.flat()
    table = pl.DataFrame({"user": rows, "items": items}).group_by("user", maintain_order=True).agg("items")
    table.write_parquet(path)
    return path


def random_model(shape: str, num_items: int) -> BERT4Rec:
    config = ModelConfig(dim=64, heads=2, max_length=MAX_LENGTH[shape])
    return BERT4Rec(num_items, config, torch.Generator().manual_seed(1)).eval()


def numbered(num_items: int) -> Catalogue:
    ids = [str(number) for number in range(1, num_items + 1)]
    return Catalogue(ids, None, np.arange(num_items, 0, -1), whole_numbers=True)


def contestants(shape: str, num_items: int | None, folder: Path) -> Contestants:
    dataset = synthetic_dataset(shape, num_items)
    model, catalogue = random_model(shape, dataset.num_items), numbered(dataset.num_items)
    export_model(model, catalogue, folder, name=shape)
    everybody = training_histories(dataset, dataset.offsets[1:])
    chosen = np.random.default_rng(1).choice(len(everybody), USERS, replace=False)
    return Contestants(
        model,
        PlainModel(dataset.num_items, model.config).eval(),
        Recommender(TorchEngine(model, CPU), catalogue, name=shape, version=""),
        Recommender.load(folder),
        everybody[chosen],
    )


def single_request(made: Contestants) -> dict[str, float]:
    """Milliseconds for one history after another, by the same model in PyTorch and exported."""
    questions = [made.histories[row : row + 1].flat()[1] for row in range(200)]
    number = iter(range(10**9))

    def next_history() -> NDArray[np.int32]:
        return questions[next(number) % len(questions)]

    @torch.inference_mode()
    def eager() -> None:
        seen = torch.from_numpy(next_history()).long()
        recent = F.pad(seen[-made.exported.max_history :], (0, 1), value=made.model.mask_number)
        scores = made.model(recent[None])
        scores[0, seen] = -torch.inf
        scores.topk(K)

    def exported() -> None:
        seen = next_history()
        made.exported.top([Question(seen, K, seen)])

    eager_seconds, exported_seconds = seconds_each(eager, exported)
    return {"PyTorch": 1000 * eager_seconds, "exported": 1000 * exported_seconds}


def bulk(made: Contestants) -> dict[str, float]:
    """Users a second, by the plain loop, by the run as it is, and by the exported model."""
    batch, length = 128, made.model.config.max_length
    if made.model.num_items > 10**5:
        batch = 16
    plain_batches = [made.histories[first : first + batch] for first in range(0, len(made.histories), batch)]
    number = iter(range(10**9))

    @torch.inference_mode()
    def plain() -> None:
        histories = plain_batches[next(number) % len(plain_batches)]
        items = torch.from_numpy(histories.padded(length - 1)).long()
        scores = made.plain(F.pad(items, (0, 1), value=made.model.mask_number))
        rows, seen = histories.flat()
        scores[torch.from_numpy(rows), torch.from_numpy(seen).long()] = -torch.inf
        scores.topk(K)

    some = made.histories if made.model.num_items <= 10**5 else made.histories[:128]
    ours = [
        lambda: made.run.ranker.top_rows(some, some, K),
        lambda: made.exported.ranker.top_rows(some, some, K),
    ]
    seconds = seconds_each(plain, *ours)
    return {
        "plain": batch / seconds[0],
        "run": len(some) / seconds[1],
        "exported": len(some) / seconds[2],
    }


def seconds_each(*calls: Callable[[], object]) -> list[float]:
    """The median time of each call. They take turns, so that whatever else the machine does disturbs all alike;
    turns are long enough for the caches to hold what the call needs."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(TURNS):
        for call, times in zip(calls, taken, strict=True):
            call()
            turn_ends = time.perf_counter() + TURN_SECONDS
            while time.perf_counter() < turn_ends:
                began = time.perf_counter()
                call()
                times.append(time.perf_counter() - began)
    return [float(np.median(times)) for times in taken]


class PlainModel(nn.Module):
    """BERT4Rec's size out of PyTorch's own parts."""

    def __init__(self, num_items: int, size: ModelConfig) -> None:
        super().__init__()
        self.items = nn.Embedding(num_items + 2, size.dim, padding_idx=0)
        self.positions = nn.Embedding(size.max_length, size.dim)
        inner = size.dim * size.feed_forward
        layer = nn.TransformerEncoderLayer(size.dim, size.heads, inner, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
        self.output = nn.Linear(size.dim, size.dim)
        self.bias = nn.Parameter(torch.zeros(num_items + 2))

    def forward(self, items: Tensor) -> Tensor:
        x = self.items(items) + self.positions.weight
        x = self.encoder(x, src_key_padding_mask=items == 0)[:, -1]
        return F.gelu(self.output(x)) @ self.items.weight.T + self.bias


if __name__ == "__main__":
    main()
