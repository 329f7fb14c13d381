"""The circle of production on the built-in world, step by step, with real commands and a real server.

`python -m benchmarks.production` prints one JSON object: the seconds of each step and of all of them. A model is
trained on the log, its users are imported, it is served, users act on old items and on a new one, the next model is
trained and takes over, and recommends the new item; somebody asks for recommendations all the time.
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

from bert4rec.data.dataset import Dataset
from bert4rec.machine import usable_cores

BERT4REC = (sys.executable, "-m", "bert4rec")
NEW = "brand-new"
USERS = 400
"""How many of the 2,000 users choose the new item."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--minutes", default="1", help="for each of the two trainings")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = go_round(Path(folder), given.minutes)
    line = {"kind": "circle", "minutes": float(given.minutes), "cores": usable_cores(), **found}
    sys.stdout.write(json.dumps(line) + "\n")


def go_round(folder: Path, minutes: str) -> dict[str, Any]:
    """The seconds of each step, how many requests were made meanwhile, and how many of them failed."""
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
        threading.Thread(target=lambda: list(lines), daemon=True).start()
        try:
            yield found[1]
        finally:
            process.terminate()


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


if __name__ == "__main__":
    main()
