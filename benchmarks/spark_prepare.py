"""What `prepare` on Spark costs beside polars, on one log and on the same cores; `python -m benchmarks.spark_prepare`.

Each engine works in a process of its own, which tells how long it took and how much memory it had at most: Python, and
apart from it Java, which is driver and executors in one where Spark works on a single machine. With `--users`, a log of
so many users is prepared on Spark alone, with an executor that is a process of its own as on a cluster, which tells
what the driver holds. Prints one JSON object.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import polars as pl

import bert4rec
from bert4rec.machine import usable_cores

SHAPE = "ml-20m"
ACTIONS_PER_USER, ITEMS, FIRST_MOMENT = 3, 10_007, 1_400_000_000
"""Of a log of very many users. A prime number of items, so that they are drawn alike."""
EXECUTOR_MIB = 4096
MIB = 1024
"""In the units of /proc."""


def measure_prepare(folder: Path, cores: int, shape: str = SHAPE) -> dict[str, Any]:
    """A log of a real data set's shape as Parquet, by the order of time, prepared by both engines."""
    log = folder / "log.parquet"
    world = bert4rec.prepare("synthetic", like=shape)
    world.to_polars().sort("time", maintain_order=True).write_parquet(log)
    found = {
        engine: _in_a_process(log, folder / engine, engine, f"local[{cores}]")
        for engine in ("polars", "spark")
    }
    names = sorted(path.name for path in (folder / "polars").iterdir() if path.name != "dataset.json")
    return {
        "like": shape,
        "actions": world.num_actions,
        **found,
        "ratio": round(found["spark"]["seconds"] / found["polars"]["seconds"], 2),
        "equal": all(
            (folder / "polars" / name).read_bytes() == (folder / "spark" / name).read_bytes()
            for name in names
        ),
    }


def measure_driver(folder: Path, cores: int, users: int) -> dict[str, Any]:
    """A log of very many users with a few actions each, prepared on Spark: what its driver holds."""
    log = folder / "log.parquet"
    _write_users(log, users)
    found = _in_a_process(log, folder / "spark", "spark", f"local-cluster[1,{cores},{EXECUTOR_MIB}]")
    return {"users": users, "actions": users * ACTIONS_PER_USER, **found}


def _write_users(log: Path, users: int) -> None:
    """By the order of time, so that a user's actions lie far apart."""
    rounds = (
        pl.LazyFrame({"user": pl.int_range(users, eager=True)}).with_columns(
            item=(pl.col("user") * 7919 + place * 104_729) % ITEMS,
            time=FIRST_MOMENT + place * users + pl.col("user"),
        )
        for place in range(ACTIONS_PER_USER)
    )
    pl.concat(rounds).sink_parquet(log)


def _in_a_process(log: Path, target: Path, engine: str, master: str) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.spark_prepare",
        "--only",
        engine,
        str(log),
        str(target),
        master,
    ]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(json.loads(told))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--shape", default=SHAPE, help="ml-1m, beauty, steam or ml-20m")
    arguments.add_argument("--cores", type=int, default=min(2, usable_cores()))
    arguments.add_argument(
        "--only", nargs=4, metavar=("ENGINE", "LOG", "FOLDER", "MASTER"), help="of one engine"
    )
    arguments.add_argument("--users", type=int, help="instead: so many users, 3 actions each, on Spark alone")
    asked = arguments.parse_args()
    if asked.only:
        told = _prepare(*asked.only)
    else:
        with TemporaryDirectory(prefix="bert4rec-") as scratch:
            facts = {"scale": "spark prepare", "cores": asked.cores, "version": bert4rec.__version__}
            if asked.users:
                told = (
                    facts
                    | {"scale": "spark driver"}
                    | measure_driver(Path(scratch), asked.cores, asked.users)
                )
            else:
                told = facts | measure_prepare(Path(scratch), asked.cores, asked.shape)
    sys.stdout.write(json.dumps(told) + "\n")


def _prepare(engine: str, log: str, folder: str, master: str) -> dict[str, Any]:
    """Time and memory of this very process, with all that the command tells of the dataset.

    Pages of mapped files are in VmHWM as long as nobody else wants the memory; `own MiB` is without them.
    """
    began = time.perf_counter()
    with _watched() as own:
        if engine == "spark":
            dataset = bert4rec.prepare(
                log, folder, engine="spark", master=master, min_user_actions=ACTIONS_PER_USER
            )
        else:
            dataset = bert4rec.prepare(log, folder, min_user_actions=ACTIONS_PER_USER)
        seconds = round(time.perf_counter() - began, 1)
        dataset.statistics()
        dataset.warnings()
    told = {"seconds": seconds, "python MiB": _most_memory(Path("/proc/self")), "own MiB": max(own)}
    java = _java()
    return told if java is None else told | {"java MiB": _most_memory(java)}


@contextmanager
def _watched() -> Iterator[list[int]]:
    """The memory of this process without pages of files, in MiB, looked at a hundred times a second."""
    found, is_over = [0], Event()

    def watch() -> None:
        while not is_over.wait(0.01):
            found.append(_memory(Path("/proc/self"), "RssAnon"))

    thread = Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def _most_memory(process: Path) -> int:
    """The most that a process had in memory so far."""
    return _memory(process, "VmHWM")


def _memory(process: Path, kind: str) -> int:
    line = next(line for line in (process / "status").read_text().splitlines() if line.startswith(kind))
    return int(line.split()[1]) // MIB


def _java() -> Path | None:
    """Spark's Java, which this process has started; it is still there."""
    own = str(Path("/proc/self").resolve().name)
    for process in Path("/proc").glob("[0-9]*"):
        facts = dict(
            line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line
        )
        if facts["Name"].strip() == "java" and facts["PPid"].strip() == own:
            return process
    return None


if __name__ == "__main__":
    main()
