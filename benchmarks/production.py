"""What production costs on this machine, each part with the real thing; `python -m benchmarks.production [PART …]`.

circle   the whole circle on the built-in world, step by step, with commands and a server: a model is trained on the
         log, its users are imported, it is served, users act on old items and on a new one, the next model is trained
         and takes over, and recommends the new item; somebody asks for recommendations all the time
auto     `bert4rec auto` on the built-in world
import   ten million actions into an SQLite store (`benchmarks.stores`)
filters  requests with filters beside the same without, alone (`benchmarks.rules`)

Prints one JSON object, for results/speed-production.jsonl.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import rules
from bert4rec import __version__
from bert4rec.data.dataset import Dataset
from bert4rec.machine import usable_cores

BERT4REC = (sys.executable, "-m", "bert4rec")
NEW = "brand-new"
USERS = 400
"""How many of the 2,000 users choose the new item."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("part", nargs="*", choices=[*PARTS, []], help="all of them, if none is named")
    chosen = arguments.parse_args().part or list(PARTS)
    line: dict[str, Any] = {"production": {"cores": usable_cores(), "version": __version__}}
    for part in chosen:
        with tempfile.TemporaryDirectory() as folder:
            line[part] = PARTS[part](Path(folder))
        sys.stderr.write(f"{part}: {json.dumps(line[part])}\n")
    sys.stdout.write(json.dumps(line) + "\n")


def measure_auto(folder: Path) -> dict[str, Any]:
    began = time.perf_counter()
    command = [*BERT4REC, "auto", "synthetic", "-o", "out"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    users = Dataset.open(folder / "out" / "dataset").num_users
    return {"users": users, "minutes": 10, "seconds": round(time.perf_counter() - began, 1)}


def measure_import(_: Path) -> dict[str, Any]:
    """In a process of its own, whose memory is nothing but that."""
    stores = [sys.executable, "-m", "benchmarks.stores"]
    found = subprocess.run(stores, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(found))


def measure_filters(folder: Path) -> dict[str, Any]:
    """The time of a request with each kind of filter, as a share of the time without."""
    rules.make(folder / "model", rules.NUM_ITEMS)
    histories = np.random.default_rng(2).integers(1, rules.NUM_ITEMS + 1, (rules.HISTORIES, rules.LENGTH))
    found = rules.measure_alone(folder / "model", histories.tolist())
    usual = found.pop("no rule")
    return {
        "items": rules.NUM_ITEMS,
        "milliseconds": round(1000 * usual, 3),
        "shares": {name: round(seconds / usual, 2) for name, seconds in found.items()},
    }


def go_round(folder: Path, minutes: str = "1") -> dict[str, Any]:
    """The seconds of each step, how many requests were made meanwhile, and how many of them failed. Each of the two
    trainings has so many minutes."""
    began = time.perf_counter()
    seconds: dict[str, float] = {}

    def timed(step: str, action: Callable[[], object]) -> None:
        since = time.perf_counter()
        action()
        seconds[step] = round(time.perf_counter() - since, 1)
        sys.stderr.write(f"{step}: {seconds[step]} s\n")

    def run(*words: str) -> Callable[[], object]:
        return lambda: subprocess.run([*BERT4REC, *words], cwd=folder, check=True, capture_output=True)

    refresh = ("refresh", "history.db", "-o", "production", "--minutes", minutes)
    timed("prepare", run("prepare", "synthetic", "-o", "dataset"))
    timed("import", run("store", "import", "history.db", "dataset"))
    timed("first model", run(*refresh, "--items", "dataset/items.parquet"))
    dataset = Dataset.open(folder / "dataset")
    old = dataset.items()["id"][0]
    with serving(folder) as address, Customer(address, dataset.users()["id"][0]) as customer:
        timed("events", lambda: send_events(address, dataset, old))
        timed("next model", run(*refresh, "--items", "dataset/items.parquet"))
        timed("switch", lambda: until_recommended(address, old))
    return {
        "minutes": float(minutes),
        "seconds": seconds,
        "total": round(time.perf_counter() - began, 1),
        "requests": customer.asked,
        "failed": customer.failed,
    }


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a service that follows the link."""
    command = [*BERT4REC, "serve", "production/current", "--watch", "--port", "0"]
    with subprocess.Popen(
        [*command, "--store", "sqlite:///history.db", "--drain", "0"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stderr
        lines = iter(process.stderr.readline, "")
        found = next(filter(None, (re.search(r"Serving on (\S+)", line) for line in lines)))
        rest = threading.Thread(target=lambda: list(lines))  # a full pipe would hold up the service
        rest.start()
        try:
            yield found[1]
        finally:
            process.terminate()
            rest.join()


def ask(address: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return dict(json.load(response))


def send_events(address: str, dataset: Dataset, old: str) -> None:
    now = datetime.now(UTC) - timedelta(hours=1)
    for place, user in enumerate(dataset.users()["id"].head(USERS).to_list()):
        events = [
            {
                "event_id": f"{user}-{item}",
                "user_id": user,
                "item_id": item,
                "timestamp": (now + timedelta(seconds=2 * place + later)).isoformat(),
            }
            for later, item in enumerate((old, NEW))
        ]
        ask(address, "/v1/events", {"events": events})


def until_recommended(address: str, old: str) -> None:
    while NEW not in [item["item_id"] for item in ask(address, "/v1/recommend", {"history": [old]})["items"]]:
        time.sleep(0.05)


class Customer:
    """Asks for recommendations all the time."""

    def __init__(self, address: str, user: str) -> None:
        self._address, self._user = address, user
        self.asked = self.failed = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        while not self._is_over.wait(0.01):
            self.asked += 1
            try:
                ask(self._address, "/v1/recommend", {"user_id": self._user})
            except OSError:
                self.failed += 1

    def __enter__(self) -> "Customer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


PARTS = {"circle": go_round, "auto": measure_auto, "import": measure_import, "filters": measure_filters}


if __name__ == "__main__":
    main()
