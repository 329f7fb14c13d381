"""How soon short commands are done: `python -m benchmarks.start`.

Each is timed as a process of its own, from its start to its end, in turns with the others and with a Python that only
imports torch, so that whatever else the machine does disturbs all alike; if it is busy, the processor's seconds count.
A run of two steps on the built-in world and its exported model are made once, in bench/start/, and stay there. One
thread, on the CPU. With `--json`, it prints one line.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bert4rec.machine import processor_name

FOLDER = Path("bench") / "start"
DATASET, RUN, MODEL = (str(FOLDER / name) for name in ("dataset", "run", "model"))
BERT4REC = [sys.executable, "-m", "bert4rec"]
TURNS = 15
TORCH = "python -c 'import torch'"
ITEM = "item-00001"
COMMANDS = {
    "bert4rec --help": [*BERT4REC, "--help"],
    "stats": [*BERT4REC, "stats", DATASET],
    "recommend from a run": [*BERT4REC, "recommend", RUN, "--history", ITEM, "--device", "cpu"],
    "recommend from an exported model": [*BERT4REC, "recommend", MODEL, "--history", ITEM],
    TORCH: [sys.executable, "-c", "import torch"],
}


def main() -> None:
    make()
    taken: dict[str, list[tuple[float, float]]] = {what: [] for what in COMMANDS}
    for turn in range(TURNS + 1):
        for what, command in COMMANDS.items():
            both = call(command)
            if turn:  # The first fills the system's caches, and Python's own with bytecode.
                taken[what].append(both)
    middle = {what: [median(each) for each in zip(*times, strict=True)] for what, times in taken.items()}
    if "--json" in sys.argv:
        seconds = {what: round(each, 3) for what, (each, _) in middle.items()}
        print(json.dumps({"cpu": "start", "device": processor_name(), "seconds": seconds}))  # noqa: T201
        return
    table = Table(
        "what", "seconds", "of the processor", "times torch's import", box=None, header_style="bold"
    )
    for what, (seconds, busy) in middle.items():
        table.add_row(what, f"{seconds:.2f}", f"{busy:.2f}", f"{seconds / middle[TORCH][0]:.2f}")
    Console().print(table)


def make() -> None:
    if not Path(DATASET).exists():
        call([*BERT4REC, "prepare", "synthetic", "-o", DATASET])
    if not Path(RUN).exists():
        call([*BERT4REC, "train", DATASET, "-o", RUN, "--set", "training.steps=2", "--no-test"])
    if not Path(MODEL).exists():
        call([*BERT4REC, "export", RUN, "-o", MODEL])


def call(command: list[str]) -> tuple[float, float]:
    """How long a process takes, and how long the processor is busy with it."""
    # Where Python is told to keep no bytecode, it would compile our code anew each time.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began, busy = time.perf_counter(), children_seconds()
    subprocess.run(command, check=True, capture_output=True, env={**environment, "OMP_NUM_THREADS": "1"})
    return time.perf_counter() - began, children_seconds() - busy


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
