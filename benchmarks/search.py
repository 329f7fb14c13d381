"""A million items on one core: `python -m benchmarks.search`, plain search beside one by whole numbers first.

One exported model (d = 64, random weights), loaded with `quantised=False` and as usual, takes turns with itself. Item
vectors are random, or lie in clusters and have lengths that vary, as those of trained models do. In the end both are
asked about the same histories, 10,000 of them unless a number is given, and every item and score must be equal; that
takes ten minutes or more. With `--json`, it prints a line for each kind of vectors.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.recommend import K, Line, numbered, random_model, seconds_each
from bert4rec.api.bench import synthetic_dataset
from bert4rec.data.histories import Histories, training_histories
from bert4rec.export.exporter import export_model
from bert4rec.models.bert4rec import BERT4Rec
from bert4rec.recommend.onnx_engine import OnnxEngine, read_model
from bert4rec.recommend.recommender import Question, Recommender
from bert4rec.training.device import Placement

NUM_ITEMS, HISTORIES = 1_000_000, 10_000
CLUSTERS, SPREAD = 2000, 0.5


def main() -> None:
    torch.set_num_threads(1)
    asked = [int(each) for each in sys.argv[1:] if each.isdigit()]
    dataset = synthetic_dataset("beauty", NUM_ITEMS)
    everybody = training_histories(dataset, dataset.offsets[1:])[: asked[0] if asked else HISTORIES]
    lines = []
    for vectors, arrange in (("random", None), ("clustered", put_in_clusters)):
        model = random_model("beauty", NUM_ITEMS)
        if arrange:
            arrange(model)
        lines.append({"cpu": "search", "vectors": vectors, **measure(model, everybody)})
    if "--json" in sys.argv:
        print("\n".join(map(json.dumps, lines)))  # noqa: T201
        return
    table = Table("", *(line["vectors"] for line in lines), box=None, header_style="bold")
    for what in list(lines[0])[2:]:
        table.add_row(what.replace("_", " "), *(shown(line[what]) for line in lines))
    Console().print(table)


def put_in_clusters(model: BERT4Rec) -> None:
    """Vectors around common centres, some several times as long as others."""
    rng = np.random.default_rng(1)
    table, _ = model.item_vectors()
    centres = rng.standard_normal((CLUSTERS, table.shape[1]))
    vectors = centres[rng.integers(0, CLUSTERS, len(table))] + SPREAD * rng.standard_normal(table.shape)
    lengths = rng.gamma(9, 1 / 9, (len(table), 1))
    with torch.no_grad():
        table.copy_(torch.from_numpy(0.02 * lengths * vectors))


def measure(model: BERT4Rec, everybody: Histories) -> Line:
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        export_model(model, numbered(NUM_ITEMS), folder, name="large", with_attention=False)
        line: Line = {"items": NUM_ITEMS, "device": Placement(torch.device("cpu"), None).name}
        line["more_memory_mb"] = memory_mb(folder, quantised=True) - memory_mb(folder, quantised=False)
        plain, quantised = Recommender.load(folder, quantised=False), Recommender.load(folder)
        calls = [
            ask_each(plain, everybody),
            ask_each(quantised, everybody),
            encode_each(quantised, everybody),
        ]
        names = ("plain_ms", "quantised_ms", "of_these_encoder_ms")
        line |= dict(zip(names, (1000 * each for each in seconds_each(*calls)), strict=True))
        line["times"] = line["plain_ms"] / line["quantised_ms"]
        same = [answers_alike(plain, quantised, history) for history in rows_of(everybody)]
    return {**line, "histories": len(same), "equal_answers": sum(same)}


def memory_mb(folder: Path, *, quantised: bool) -> float:
    """What a loaded model holds for itself; files that are mapped into memory are shared, and not counted."""
    before = own_mb()
    engine = OnnxEngine(folder, read_model(folder), threads=1, quantised=quantised)
    taken = own_mb() - before
    del engine
    return taken


def own_mb() -> float:
    (kilobytes,) = re.findall(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(kilobytes) / 1000


def rows_of(histories: Histories) -> list[NDArray[np.int32]]:
    return [histories[row : row + 1].flat()[1] for row in range(len(histories))]


def ask_each(recommender: Recommender, histories: Histories) -> Callable[[], object]:
    """Ask about one history after another, a new one at each call."""
    rows, number = rows_of(histories[:200]), iter(range(10**9))

    def ask() -> object:
        history = rows[next(number) % len(rows)]
        return recommender.top([Question(history, K, history)])

    return ask


def encode_each(recommender: Recommender, histories: Histories) -> Callable[[], object]:
    engine, number = recommender.ranker.engine, iter(range(10**9))
    recent = histories[:200].newest(engine.max_history)

    def encode() -> object:
        row = next(number) % len(recent)
        return engine.queries(recent[row : row + 1])

    return encode


def answers_alike(one: Recommender, other: Recommender, history: NDArray[np.int32]) -> bool:
    question = [Question(history, K, history)]
    ((numbers, scores),), ((other_numbers, other_scores),) = one.top(question), other.top(question)
    return np.array_equal(numbers, other_numbers) and np.array_equal(scores, other_scores)


def shown(found: object) -> str:
    if isinstance(found, float):
        return f"{found:,.2f}"
    return f"{found:,}" if isinstance(found, int) else str(found)


if __name__ == "__main__":
    main()
