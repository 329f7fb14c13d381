"""What `prepare` on Spark costs beside polars, on one log and on the same cores: the part of `benchmarks.spark`.

Each engine works in a process of its own, which tells how long it took and how much memory it had at most: Python, and
apart from it Java, which is driver and executors in one where Spark works on a single machine.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import bert4rec

SHAPE = "ml-20m"
MIB = 1024
"""In the units of /proc."""


def measure_prepare(folder: Path, cores: int, shape: str = SHAPE) -> dict[str, Any]:
    """A log of a real data set's shape as Parquet, by the order of time, prepared by both engines."""
    log = folder / "log.parquet"
    world = bert4rec.prepare("synthetic", like=shape)
    world.to_polars().sort("time", maintain_order=True).write_parquet(log)
    found = {engine: _in_a_process(log, folder / engine, engine, cores) for engine in ("polars", "spark")}
    names = sorted(path.name for path in (folder / "polars").iterdir() if path.name != "dataset.json")
    return {
        "shape": shape,
        "actions": world.num_actions,
        **found,
        "ratio": round(found["spark"]["seconds"] / found["polars"]["seconds"], 2),
        "equal": all(
            (folder / "polars" / name).read_bytes() == (folder / "spark" / name).read_bytes()
            for name in names
        ),
    }


def _in_a_process(log: Path, target: Path, engine: str, cores: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.spark_prepare", str(log), str(target), engine, str(cores)]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(json.loads(told))


def main() -> None:
    arguments = argparse.ArgumentParser(description="Prepare one log, and tell time and memory.")
    for name in ("log", "target", "engine", "cores"):
        arguments.add_argument(name)
    asked = arguments.parse_args()
    master = f"local[{asked.cores}]" if asked.engine == "spark" else None
    began = time.perf_counter()
    bert4rec.prepare(asked.log, asked.target, engine=asked.engine, master=master)
    told = {"seconds": round(time.perf_counter() - began, 1), "python MiB": _most_memory(Path("/proc/self"))}
    if java := _java():
        told["java MiB"] = _most_memory(java)
    sys.stdout.write(json.dumps(told) + "\n")


def _most_memory(process: Path) -> int:
    """The most that a process had in memory so far."""
    line = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM"))
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
