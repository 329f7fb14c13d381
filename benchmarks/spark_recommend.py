"""What bulk answers on Spark cost beside one machine, on the same cores; `python -m benchmarks.spark_recommend`.

Answers to a million users of ML-1m's shape, from file to file, by an exported model of random weights: `recommend` with
as many threads as Spark has cores. The answers are compared, to the last bit. Prints one JSON object.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bert4rec import __version__
from bert4rec.machine import usable_cores

BERT4REC = (sys.executable, "-m", "bert4rec")
SHAPE, USERS_AT_ONCE = "ml-1m", 50_000


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--users", type=int, default=1_000_000)
    arguments.add_argument("--cores", type=int, default=min(2, usable_cores()))
    asked = arguments.parse_args()
    with TemporaryDirectory(prefix="bert4rec-") as scratch:
        found = measure_recommend(Path(scratch), asked.users, asked.cores)
    line = {"scale": "spark recommend", "cores": asked.cores, "version": __version__, **found}
    sys.stdout.write(json.dumps(line) + "\n")


def measure_recommend(folder: Path, users: int, cores: int) -> dict[str, Any]:
    import polars as pl

    model, source = make_model_and_users(folder, users)
    command = [*BERT4REC, "recommend", str(model), "--force", "--input", str(source), "-o"]
    one, spark = folder / "one.parquet", folder / "spark"
    seconds = {
        "one machine": seconds_of([*command, str(one), "--threads", str(cores)]),
        "Spark": seconds_of([*command, str(spark), "--engine", "spark", "--master", f"local[{cores}]"]),
    }
    answers = [pl.scan_parquet(each).sort("user", "rank").collect() for each in (one, spark / "*.parquet")]
    return {
        "users": users,
        "seconds": {name: round(taken, 1) for name, taken in seconds.items()},
        "ratio": round(seconds["Spark"] / seconds["one machine"], 2),
        "equal": answers[0].equals(answers[1]),
    }


def make_model_and_users(folder: Path, users: int) -> tuple[Path, Path]:
    """An exported model, and a file with a list of items for each user: those of the shape, again and again."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.recommend import numbered, random_model
    from bert4rec.api.bench import synthetic_dataset
    from bert4rec.data.histories import training_histories
    from bert4rec.export.exporter import export_model

    dataset = synthetic_dataset(SHAPE)
    model, source = folder / "model", folder / "users.parquet"
    export_model(random_model(SHAPE, dataset.num_items), numbered(dataset.num_items), model, name=SHAPE)
    everybody = training_histories(dataset, dataset.offsets[1:])
    schema = pa.schema([("user", pa.int64()), ("items", pa.list_(pa.int32()))])
    with pq.ParquetWriter(source, schema) as writer:
        for first in range(0, users, USERS_AT_ONCE):
            ids = np.arange(first, min(users, first + USERS_AT_ONCE))
            some = everybody[ids % len(everybody)]
            offsets = np.concatenate([[0], np.cumsum(some.lengths)]).astype(np.int32)
            lists = pa.ListArray.from_arrays(offsets, some.flat()[1])
            writer.write_table(pa.table([pa.array(ids), lists], schema=schema))
    return model, source


def seconds_of(command: list[str]) -> float:
    """Of a process of its own, from its start to its end."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
