"""`python -m benchmarks.serving`: requests a second, latency, overload, start and memory of the service.

The shape of the Beauty data set: 54,542 items, d=64, N=50, full histories, random weights. The server has one
core to itself and the load comes from another. What batching gains is measured against the same service with the
model called inside the handler, in the same run, turn by turn.
"""

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.load import Outcome, closed_loop, paced, post

FOLDER = Path("bench")
NUM_ITEMS, DIM, MAX_LENGTH = 54_542, 64, 50
CONNECTIONS = 32
ROUNDS, SECONDS = 3, 4.0
OVERLOAD = 4


def main() -> None:
    model = FOLDER / "serving-model"
    if not model.exists():
        subprocess.run([sys.executable, "-m", "benchmarks.serving", "make", str(model)], check=True)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rng = np.random.default_rng(1)
    requests = [
        post(
            "/v1/recommend",
            {"history": [f"i{item}" for item in rng.integers(1, NUM_ITEMS + 1, MAX_LENGTH - 1)]},
        )
        for _ in range(1000)
    ]
    found: dict[str, object] = {"import_seconds": round(import_seconds(), 2)}
    turns: dict[str, list[Outcome]] = {"serve": [], "serve-unbatched": []}
    with TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for kind, outcomes in turns.items():
                with server(kind, model, Path(folder)) as (port, pid):
                    load(port, requests, 1.0)
                    began = processor_seconds(pid)
                    outcomes.append(load(port, requests, SECONDS))
                    outcomes[-1].processor_seconds = processor_seconds(pid) - began
        found |= {name.replace("-", "_"): summary(outcomes) for name, outcomes in turns.items()}
        pairs = list(zip(*turns.values(), strict=True))
        found["ratio"] = [round(one.per_second / other.per_second, 2) for one, other in pairs]
        # The same as far as possible without the neighbours: how much of the server's core each request took.
        found["ratio_by_processor_time"] = [
            round(one.per_processor_second / other.per_processor_second, 2) for one, other in pairs
        ]
        with server("serve", model, Path(folder)) as (port, pid):
            batched = [each.per_second for each in turns["serve"]]
            found["alone_p50_ms"] = round(load(port, requests, 1.0, connections=1).percentile(50), 2)
            found["overload"] = overload(port, requests, statistics.median(batched))
            found["events_per_second"] = round(events_per_second(port))
            found["resident_mb"] = round(resident_mb(pid))
    print(json.dumps(found))  # noqa: T201


def load(port: int, requests: list[bytes], seconds: float, connections: int = CONNECTIONS) -> Outcome:
    return asyncio.run(closed_loop(port, requests, connections=connections, seconds=seconds))


def summary(outcomes: list[Outcome]) -> dict[str, object]:
    return {
        "requests_per_second": [round(each.per_second) for each in outcomes],
        "requests_per_processor_second": [
            round(each.per_processor_second) for each in outcomes if each.processor_seconds > 0
        ],
        "p50_ms": [round(each.percentile(50), 1) for each in outcomes],
        "p99_ms": [round(each.percentile(99), 1) for each in outcomes],
        "failed": sum(each.unanswered + each.statuses.total() - each.statuses[200] for each in outcomes),
    }


def overload(port: int, requests: list[bytes], capacity: float) -> dict[str, object]:
    """Four times what the service can do, from a thousand clients, then the usual load again."""
    flood = asyncio.run(paced(port, requests, connections=1000, seconds=3, per_second=OVERLOAD * capacity))
    after = load(port, requests, 2.0)
    return {
        "offered_per_second": round(OVERLOAD * capacity),
        "statuses": dict(flood.statuses),
        "unanswered": flood.unanswered,
        "answered_per_second": round(flood.per_second),
        "p99_ms_of_answers": round(flood.percentile(99)),
        "afterwards": summary([after]),
    }


def events_per_second(port: int) -> float:
    """Requests with one new event each, every one on disk before it is acknowledged."""
    requests = [
        post(
            "/v1/events",
            {
                "events": [
                    {
                        "event_id": f"{time.time_ns()}-{number}",
                        "user_id": f"u{number % 100}",
                        "item_id": "i1",
                        "timestamp": "2026-01-01T00:00:00Z",
                    }
                ]
            },
        )
        for number in range(20_000)
    ]
    outcome = load(port, requests, 2.0)
    return outcome.statuses[202] / outcome.seconds


def import_seconds() -> float:
    program = (
        "import time; t = time.perf_counter(); import bert4rec.service.server; print(time.perf_counter() - t)"
    )
    command = [sys.executable, "-c", program]
    return min(float(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(3))


def processor_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    (kilobytes,) = re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(kilobytes) / 1000


@contextmanager
def server(kind: str, model: Path, folder: Path) -> Iterator[tuple[int, int]]:
    """Port and process id of a server with the first core to itself."""
    command = [sys.executable, "-m", "benchmarks.serving", kind, str(model), str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        match = None
        for line in process.stderr:
            if match := re.search(r"Serving on http://127.0.0.1:(\d+)", line):
                break
        assert match, f"{kind} did not start"
        try:
            yield int(match[1]), process.pid
        finally:
            process.terminate()


def run_server(model: Path, folder: Path, *, batched: bool) -> None:
    from bert4rec.recommend.recommender import Question
    from bert4rec.service import serve, served_models
    from bert4rec.service.batcher import Batcher
    from bert4rec.service.served_models import TopItems

    class InTheHandler(Batcher[Question, TopItems]):
        """What a service without batching does: the model is called where the request is handled."""

        async def ask(self, question: Question) -> TopItems:
            (answer,) = self._work([question])
            assert not isinstance(answer, Exception)
            return answer

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if not batched:
        setattr(served_models, "Batcher", InTheHandler)  # noqa: B010
    serve(model, port=0, store=f"sqlite:///{folder / 'history.db'}")


def make(target: Path) -> None:
    import torch

    from bert4rec.export.exporter import export_model
    from bert4rec.models.bert4rec import BERT4Rec
    from bert4rec.recommend.catalogue import Catalogue
    from bert4rec.settings.networks import ModelConfig

    model = BERT4Rec(NUM_ITEMS, ModelConfig(dim=DIM, max_length=MAX_LENGTH), torch.Generator().manual_seed(1))
    numbers = range(1, NUM_ITEMS + 1)
    catalogue = Catalogue(
        ids=[f"i{number}" for number in numbers],
        titles=[f"Item number {number} of a catalogue" for number in numbers],
        counts=np.arange(NUM_ITEMS, 0, -1, dtype=np.int64),
    )
    export_model(model, catalogue, target, name="beauty-shape")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            main()
        case ["make", target]:
            make(Path(target))
        case [kind, model, folder]:
            run_server(Path(model), Path(folder), batched=kind == "serve")
