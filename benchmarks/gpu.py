"""Everything about speed that is measured on a GPU: `make bench-gpu`.

Each measurement is a process of its own, which has the card to itself. Lines for results/ go to a file for each part in
bench/gpu/, or in the folder that `--into` names; what failed is told in the end, and the rest goes on. Prepared
datasets of MovieLens 1M and Beauty (`--ml-1m`, `--beauty`) add how soon a training there takes its first step, and is
as good as the paper. `--only` takes some of the parts.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TRAIN = ["bert4rec", "bench", "train", "--json"]
ALONE = ["--no-plain"]
PEERS = ["--peer", "hf"]
MILLION = ["--like", "beauty", "--items", "1000000"]
TEN_MILLION = ["--like", "beauty", "--items", "10000000", "--dim", "128"]
TRAININGS = (
    ["--like", "ml-1m", *PEERS],
    ["--like", "ml-1m", "--dim", "256", *PEERS],
    ["--like", "beauty", *PEERS],
    [*MILLION, *ALONE],
    ["--like", "ml-1m", "--batch-size", "2048", *ALONE],
    ["--like", "ml-1m", "--dim", "256", "--batch-size", "1024", *ALONE],
    ["--like", "beauty", "--batch-size", "2048", *ALONE],
    [*MILLION, "--batch-size", "2048", *ALONE],
    [*TEN_MILLION, *ALONE],
    [*TEN_MILLION, "--negatives", "0", *ALONE],
    ["--like", "ml-20m", "--dim", "256", *ALONE],
    ["--like", "steam", *ALONE],
)
Parts = dict[str, tuple[str, list[list[str]]]]


def parts(ml_1m: Path | None, beauty: Path | None, steps: int) -> Parts:
    """Name → the file of results/ that the lines are for, and the modules to run with their arguments."""
    data = {preset: str(folder) for preset, folder in (("ml-1m", ml_1m), ("beauty", beauty)) if folder}
    sampled = ["--items", "1000000", "--users", "1000000", "--seeds", "1", "--steps", str(steps)]
    return {
        "train": ("speed-training", [[*TRAIN, *each] for each in TRAININGS]),
        "profile": ("speed-training", [["benchmarks.profile_step", "--json"]]),
        "joint": ("speed-training", [["benchmarks.joint_step", "--json"]]),
        "first-step": (
            "speed-training",
            [["benchmarks.first_step", folder, "--preset", preset] for preset, folder in data.items()],
        ),
        "recommend": ("speed-recommend", [["benchmarks.recommend", "cuda", "--json"]]),
        "streamed": ("speed-scale", [["benchmarks.streamed"]]),
        "sampled": ("speed-scale", [["benchmarks.sampled", *sampled]]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--into", type=Path, default=Path("bench") / "gpu")
    parser.add_argument("--ml-1m", type=Path)
    parser.add_argument("--beauty", type=Path)
    parser.add_argument("--sampled-steps", type=int, default=20_000)
    parser.add_argument("--only", nargs="+", choices=sorted(parts(None, None, 0)))
    given = parser.parse_args()
    if given.only and "first-step" in given.only and not (given.ml_1m or given.beauty):
        parser.error("first-step needs a prepared dataset: --ml-1m FOLDER or --beauty FOLDER")
    given.into.mkdir(parents=True, exist_ok=True)
    failed = []
    for name, (file, modules) in parts(given.ml_1m, given.beauty, given.sampled_steps).items():
        if given.only and name not in given.only:
            continue
        found: list[Any] = []
        for arguments in modules:
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True, check=False
            )
            what = f"{' '.join(arguments)}: {time.perf_counter() - began:.0f} s"
            print(what, flush=True)  # noqa: T201
            if done.returncode:
                failed.append(what)
                continue
            found += objects(done.stdout)
            path = given.into / f"{file}.{name}.jsonl"
            path.write_text("".join(f"{json.dumps(each)}\n" for each in found), encoding="utf-8")
    if failed:
        sys.exit("\n".join(["These failed:", *failed]))


def objects(text: str) -> Iterator[Any]:
    """What was printed as JSON, one object after the other, each on one line or on many."""
    while text := text.lstrip():
        found, end = json.JSONDecoder().raw_decode(text)
        yield found
        text = text[end:]


if __name__ == "__main__":
    main()
