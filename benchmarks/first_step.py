"""How soon a training takes its first step, and how soon it is as good as the paper.

`python -m benchmarks.first_step DATASET --preset ml-1m` starts a process that imports the library, opens the dataset
and trains until a validation passes the paper's number for that data set, or the one that `--level` names: first with
an empty cache of compiled code, then again with what the first time has left there. What is imported was imported
before, so that Python has its bytecode, as on any machine that is in use. Prints one line for
results/speed-training.jsonl; seconds count from the start of the process. Without a level, training ends with the
first step.
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

GOAL = "NDCG@10"
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
    parser.add_argument("--level", type=float, help=f"{GOAL} on the validation items")
    parser.add_argument("--began", type=float, help="of the process that is measured, which this then is")
    given = parser.parse_args()
    if given.began is not None:
        print(json.dumps(measured(given)))  # noqa: T201
        return
    level = given.level or level_of_paper(given.preset)
    with TemporaryDirectory() as cache:
        subprocess.run([sys.executable, "-c", IMPORTS], check=True, env=environment(cache))
        found = {turn: in_a_process(cache, level) for turn in TURNS}
    line = {
        "first_step": given.preset or given.dataset.name,
        "model": given.model,
        "device": found["warm"]["device"],
        "seconds": {turn: each["first step"] for turn, each in found.items()},
        "level": level,
        "seconds_to_level": {turn: each["level"] for turn, each in found.items()},
    }
    print(json.dumps(line))  # noqa: T201


def level_of_paper(preset: str | None) -> float | None:
    # Not imported by the process that is measured.
    from bert4rec.paper.experiments.cases import BERT4REC, PAPER_NAMES
    from bert4rec.paper.reporting.printed import printed

    return printed("table2_overall", PAPER_NAMES.get(preset), GOAL, BERT4REC.label) if preset else None


def in_a_process(cache: str, level: float | None) -> dict[str, Any]:
    """The same command once more, which finds in `cache` what was compiled for it, and nothing else."""
    command = [sys.executable, "-m", "benchmarks.first_step", *sys.argv[1:]]
    command += ["--level", str(level)] if level else []
    began = ["--began", str(time.monotonic())]
    done = subprocess.run(
        [*command, *began], check=True, env=environment(cache), stdout=subprocess.PIPE, text=True
    )
    return dict(json.loads(done.stdout))


def environment(cache: str) -> dict[str, str]:
    left_out = "_CACHE_DIR", "PYTHONDONTWRITEBYTECODE"
    kept = {name: each for name, each in os.environ.items() if not name.endswith(left_out)}
    return {**kept, "XDG_CACHE_HOME": cache}


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Seconds until the first step is done and until the level is passed; None if it never is."""
    import torch

    import bert4rec
    from bert4rec.training.device import place
    from bert4rec.training.loop import Interrupted
    from bert4rec.training.reporting.watch import TrainingStatus

    steps, passed = list[float](), list[float]()

    def is_done() -> bool:
        """Asked before every step."""
        if len(steps) < 2:
            if steps and torch.cuda.is_available():
                torch.cuda.synchronize()
            steps.append(time.monotonic() - given.began)
        return len(steps) == 2 and not given.level

    def is_good(status: TrainingStatus) -> bool:
        if given.level and (status.value or 0.0) >= given.level:
            passed.append(time.monotonic() - given.began)
        return bool(passed)

    settings = {"model": given.model, "preset": given.preset, "device": given.device, "select_by": GOAL}
    with suppress(Interrupted):
        bert4rec.train(
            given.dataset,
            **settings,
            refit=False,
            test=False,
            should_stop=is_done,
            callback=is_good,
            progress=False,
        )
    return {
        "device": place(given.device).name,
        "first step": round(steps[1], 2),
        "level": round(passed[0], 2) if passed else None,
    }


if __name__ == "__main__":
    main()
