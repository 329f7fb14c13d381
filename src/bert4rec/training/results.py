"""What runs leave behind for tables and reports: lines of JSON, and the ranks behind each.

Files of lines merge by plain concatenation, and files of ranks by copying, so runs from several machines add up.
Ranks are what comparisons need, user by user; they are kept small, in a folder `ranks` beside the lines.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec.errors import DataError
from bert4rec.evaluation.protocol import Ranks
from bert4rec.training.judge import load_ranks
from bert4rec.training.run import Run

IDENTITY = ("dataset", "data_checksum", "model", "variant", "config", "seed", "protocol", "stage", "split")
"""What makes a line another result than the next one. The version of the code is told apart separately."""


def key_of(line: Mapping[str, Any]) -> str:
    """A short name for a result, equal on every machine; results of other code have other keys."""
    identity = [line.get(name) for name in IDENTITY] + [line["versions"]["code"]]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def append_results(path: Path, run: Run) -> None:
    """Add the lines of a finished run to a file, and the ranks of the test items to the folder beside it."""
    (path.parent / "ranks").mkdir(parents=True, exist_ok=True)
    lines = run.result["lines"]
    for line in lines:
        if line["split"] != "test":
            continue
        ranks = load_ranks(run.path, "test")
        small = {name: _as_small_as_fits(found) for name, found in vars(ranks).items()}
        np.savez_compressed(ranks_path(path.parent, line), allow_pickle=False, **small)
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def read_results(folder: Path) -> Iterator[dict[str, Any]]:
    """Every line of every file in the folder, in the order of names."""
    for path in sorted(folder.glob("*.jsonl")):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                yield dict(json.loads(text))
            except ValueError as error:
                raise DataError(f"{path}, line {number}: {error}. Remove the line, or mend it.") from error


def read_ranks(folder: Path, line: Mapping[str, Any]) -> Ranks | None:
    """The ranks behind a line, or None where they were not kept."""
    path = ranks_path(folder, line)
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as found:
        return Ranks(found["sampled"].astype(np.int32), found["full"].astype(np.int32))


def ranks_path(folder: Path, line: Mapping[str, Any]) -> Path:
    return folder / "ranks" / f"{key_of(line)}.npz"


def _as_small_as_fits(ranks: np.typing.NDArray[np.int32]) -> np.typing.NDArray[Any]:
    return ranks.astype(np.min_scalar_type(int(ranks.max(initial=0))))
