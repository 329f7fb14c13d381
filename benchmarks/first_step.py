"""How soon a training takes its first step: `python -m benchmarks.first_step DATASET --preset ml-1m`.

A process of its own imports the library, opens the dataset and trains until the device has done one step: first with an
empty cache of compiled code, then again with what the first time has left there. What is imported was imported before,
so that Python has its bytecode, as on any machine that is in use. Prints one line for results/speed-training.jsonl;
seconds count from the start of the process.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TURNS = "cold", "warm"
IMPORTS = "import bert4rec.api.runs, bert4rec.training.launch, torch, triton.language"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--model", default="bert4rec")
    parser.add_argument("--preset")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--began", type=float, help="of the process that is measured, which this then is")
    given = parser.parse_args()
    if given.began is not None:
        print(json.dumps(first_step(given)))  # noqa: T201
        return
    with TemporaryDirectory() as cache:
        subprocess.run([sys.executable, "-c", IMPORTS], check=True, env=environment(cache))
        found = {turn: in_a_process(cache) for turn in TURNS}
    line = {
        "first_step": given.preset or given.dataset.name,
        "model": given.model,
        "device": found["warm"]["device"],
        "seconds": {turn: each["seconds"] for turn, each in found.items()},
    }
    print(json.dumps(line))  # noqa: T201


def in_a_process(cache: str) -> dict[str, Any]:
    """The same command once more, which finds in `cache` what was compiled for it, and nothing else."""
    command = [sys.executable, "-m", "benchmarks.first_step", *sys.argv[1:], "--began", str(time.monotonic())]
    done = subprocess.run(command, check=True, env=environment(cache), stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout))


def environment(cache: str) -> dict[str, str]:
    left_out = "_CACHE_DIR", "PYTHONDONTWRITEBYTECODE"
    kept = {name: each for name, each in os.environ.items() if not name.endswith(left_out)}
    return {**kept, "XDG_CACHE_HOME": cache}


def first_step(given: argparse.Namespace) -> dict[str, Any]:
    import torch

    import bert4rec
    from bert4rec.training.device import place
    from bert4rec.training.loop import Interrupted

    marks: list[float] = []

    def is_done() -> bool:
        """Asked before every step."""
        if marks and torch.cuda.is_available():
            torch.cuda.synchronize()
        marks.append(time.monotonic())
        return len(marks) > 1

    settings = {"model": given.model, "preset": given.preset, "device": given.device}
    with suppress(Interrupted):
        bert4rec.train(given.dataset, **settings, should_stop=is_done, progress=False)
    return {"device": place(given.device).name, "seconds": round(marks[1] - given.began, 2)}


if __name__ == "__main__":
    main()
