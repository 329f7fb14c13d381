"""Millions of items on the cores that there are: `python -m benchmarks.large_catalogue --items 10000000`.

A model is made (SASRec, d = 128), exported with an index, and served by two workers: once with approximate search, once
with exact search by whole numbers. One connection asks, so that latencies are those of a service that is not busy. It
prints a line of JSON. Of ten million items, it takes half an hour, 16 GiB of memory and 12 GB of disk in `--folder`;
whether they are found in its caches decides the times, so nothing else should be running.

The weights are not trained, but arranged as training arranges them: vectors lie in clusters of very different sizes,
clusters lie near each other in departments, and popular items have longer vectors. A query is the direction of the last
item, of the mean of the history, and some noise. Histories are of items drawn by popularity.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.load import closed_loop, post
from benchmarks.serving.servers import CORES, THIS, Server, Version, serving
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.onnx_engine import read_facts

DIM, MAX_LENGTH, WORKERS = 128, 50, 2
HISTORIES, LENGTH, SECONDS = 1000, 20, 30.0
ITEMS_OF_CLUSTER, DEPARTMENTS = 250, 64
AT_ONCE = 2**17
WORDS = ("red", "green", "small", "large", "old", "new", "tea", "cup", "lamp", "chair", "book", "shoe")
Line = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, help="where to write the model, which is removed again")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of asking, with each kind of search")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.make:
        print(json.dumps(make(asked.make, asked.items)))  # noqa: T201
        return
    with TemporaryDirectory(dir=asked.folder) as scratch:
        print(json.dumps(measure(Path(scratch) / "model", asked.items, asked.seconds)))  # noqa: T201


def measure(folder: Path, items: int, seconds: float) -> Line:
    """In a process that never held the model, so that what it takes is its own."""
    program = [sys.executable, "-m", "benchmarks.large_catalogue", "--make", str(folder), f"--items={items}"]
    made: Line = json.loads(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
    began = time.perf_counter()
    catalogue = Catalogue.read(folder / "catalogue.json")
    assert catalogue.number_of(f"i{items}") == items
    opened = time.perf_counter() - began
    facts = read_facts(folder)
    sizes = {name: about["bytes"] for name, about in facts["files"].items()}
    line: Line = {
        "scale": "large catalogue",
        "items": items,
        "dim": DIM,
        "cores": len(CORES),
        "workers": WORKERS,
        **made,
        "folder_mb": round(sum(sizes.values()) / 1e6),
        "index_mb": round(sum(size for name, size in sizes.items() if name.endswith(".faiss")) / 1e6),
        "index": facts["approximate"],
        "catalogue_open_ms": round(1000 * opened, 1),
    }
    requests = [post("/v1/recommend", {"history": history}) for history in histories(items)]
    version = Version("this", THIS)
    for name, option in (("approximate", "--approximate"), ("exact_int8", "--quantised")):
        with serving(version, folder, option, f"--workers={WORKERS}", cores=CORES) as server:
            closed_loop(server.port, requests, connections=2, seconds=seconds / 3)
            outcome = closed_loop(server.port, requests, connections=1, seconds=seconds)
            line[name] = {
                "ready_seconds": round(server.ready_seconds, 1),
                "requests": len(outcome.latencies),
                "failed": outcome.failed,
                **{f"p{percent}_ms": round(outcome.percentile(percent), 2) for percent in (50, 99)},
                **memory_of(server),
                "search_title_ms": round(1000 * seconds_of_search(server), 1),
            }
    return line


def make(folder: Path, items: int) -> Line:
    """Export a model with an index; what the export took."""
    import torch

    from bert4rec.export.exporter import export_model
    from bert4rec.models.sasrec import SASRec
    from bert4rec.settings.networks import ModelConfig

    config = ModelConfig(dim=DIM, layers=2, heads=4, max_length=MAX_LENGTH)
    with torch.device("meta"):  # the table is filled below
        model = SASRec(items, config)
    model = model.to_empty(device="cpu").eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("query_key_value.weight"):
                # Attention adds the mean of the history to the last item.
                parameter.normal_(0, 0.02, generator=generator)[2 * DIM :] = torch.eye(DIM)
            elif name.endswith("attention_output.weight"):
                parameter.copy_(torch.eye(DIM))
            elif parameter.dim() == 1:
                parameter.fill_(float(name.endswith("norm.weight")))
            elif name != "item_table.weight":
                parameter.normal_(0, 0.02, generator=generator)
    model.item_bias.zero_()
    arrange(model.item_table.weight.detach().numpy())
    numbers = range(1, items + 1)
    catalogue = Catalogue(
        ids=[f"i{number}" for number in numbers],
        titles=[f"{WORDS[n % 12]} {WORDS[n // 12 % 12]} {n}" for n in numbers],
        counts=np.maximum(1, (items / np.arange(1, items + 1)).astype(np.int64)),
    )
    before = peak_mb()
    began = time.perf_counter()
    export_model(model, catalogue, folder, name="large", approximate=True)
    return {
        "export_seconds": round(time.perf_counter() - began),
        "export_peak_mb": round(peak_mb()),
        "of_which_model_mb": round(before),
    }


def arrange(table: NDArray[np.float32]) -> None:
    """Vectors in clusters in departments, the longer the more popular. Row 0 is padding."""
    rng = np.random.default_rng(1)
    num_clusters = max(DEPARTMENTS, len(table) // ITEMS_OF_CLUSTER)
    departments = rng.standard_normal((DEPARTMENTS, DIM), np.float32)
    own = rng.standard_normal((num_clusters, DIM), np.float32)
    centres = 0.7 * (departments[rng.integers(0, DEPARTMENTS, num_clusters)] + own)
    sizes = rng.pareto(1.2, num_clusters) + 1
    for first in range(0, len(table), AT_ONCE):
        some = table[first : first + AT_ONCE]
        chosen = rng.choice(num_clusters, len(some), p=sizes / sizes.sum())
        vectors = centres[chosen] + 0.6 * rng.standard_normal(some.shape, np.float32)
        rank = np.arange(first, first + len(some)) + 1
        lengths = (0.5 + 1.2 * rank**-0.12) * rng.gamma(20, 1 / 20, len(some))
        some[:] = vectors * (lengths / np.linalg.norm(vectors, axis=1))[:, None]
    table[0] = 0


def histories(items: int) -> list[list[str]]:
    rng = np.random.default_rng(3)
    numbers = np.minimum(items ** rng.random((HISTORIES, LENGTH)), items).astype(int)
    return [[f"i{number}" for number in row] for row in numbers.tolist()]


def seconds_of_search(server: Server) -> float:
    """For a title that no item has, so that all are looked through."""
    began = time.perf_counter()
    server.get("/v1/items?query=unheard")
    return time.perf_counter() - began


def memory_of(server: Server) -> Line:
    """Of all processes together: what is resident, where what they share counts once, and what is theirs alone."""
    rows = [Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in server.pids]
    sizes = [{row.split(":")[0]: int(row.split()[1]) for row in each[1:]} for each in rows]
    return {
        f"{name.lower()}_mb": round(sum(each[name] for each in sizes) * 1024 / 1e6)
        for name in ("Pss", "Anonymous")
    }


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main()
