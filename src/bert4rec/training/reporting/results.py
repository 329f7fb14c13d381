"""What runs leave behind for tables and reports: lines of JSON, and the ranks behind each.

Files of lines merge by plain concatenation, and files of ranks by copying, so runs from several machines add up.
Ranks are what comparisons need, user by user; they are kept small, in a folder `ranks` beside the lines.

Several processes, also of several commands, may add to a file at the same time: each does so under a lock, in one
write. One that dies while writing leaves half a line, which the next one removes.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec.errors import DataError
from bert4rec.evaluation.criterion import USUAL
from bert4rec.evaluation.judge import load_ranks
from bert4rec.evaluation.protocol import Ranks
from bert4rec.training.run import Run

JUDGED = ("dataset", "data_checksum", "candidates_checksum", "protocol")
"""What must be the same for two results to be comparable."""
IDENTITY = (*JUDGED, "model", "variant", "config", "seed", "stage", "split")
"""What makes a line a result of its own. The version of the code is compared separately."""


def key_of(line: Mapping[str, Any]) -> str:
    """A short name for a result, equal on every machine; results of other code have other keys."""
    identity = [line.get(name) for name in IDENTITY] + [line["versions"]["code"]]
    # Lines from before there was a choice keep their keys.
    if (select_by := line.get("select_by", USUAL)) != USUAL:
        identity.append(select_by)
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def append_results(path: Path, run: Run) -> None:
    """Add the lines of a finished run to a file, and the ranks of the test items to the folder beside it."""
    lines = run.result["lines"]
    for line in lines:
        if line["split"] == "test":
            write_ranks(ranks_path(path.parent, line), load_ranks(run.path, "test"))
    with locked(path) as file:
        append_lines(file, lines)


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Open a file for this process alone; it is created if needed, and has complete lines only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        _complete_lines(file)
        yield file
    finally:
        os.close(file)


def append_lines(file: int, lines: Iterable[Mapping[str, Any]]) -> None:
    """Add lines in one write; they are on disk when this returns."""
    os.write(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
    os.fsync(file)


def _complete_lines(file: int) -> None:
    """Remove half a line at the end; a complete one that only lacks its line end gets it."""
    size = os.fstat(file).st_size
    text = os.pread(file, size, 0)
    if not text or text.endswith(b"\n"):
        return
    last = text.rfind(b"\n") + 1
    try:
        json.loads(text[last:])
        os.write(file, b"\n")
    except ValueError:
        os.ftruncate(file, last)


def read_results(folder: Path) -> Iterator[dict[str, Any]]:
    """Every line of every file in the folder, in the order of names."""
    for path in sorted(folder.glob("*.jsonl")):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                yield dict(json.loads(text))
            except ValueError as error:
                raise DataError(f"{path}, line {number}: {error}. Remove or correct the line.") from error


def read_ranks(folder: Path, line: Mapping[str, Any]) -> Ranks | None:
    """The ranks behind a line, or None if they were not kept."""
    path = ranks_path(folder, line)
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as found:
        return Ranks(found["sampled"].astype(np.int32), found["full"].astype(np.int32))


def ranks_path(folder: Path, line: Mapping[str, Any]) -> Path:
    """Where the ranks behind a line are kept."""
    return folder / "ranks" / f"{key_of(line)}.npz"


def write_ranks(path: Path, ranks: Ranks) -> None:
    """Write both in one small file, each in the smallest type that holds it. The file is always complete or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    small = {
        name: found.astype(np.min_scalar_type(int(found.max(initial=0))))
        for name, found in vars(ranks).items()
    }
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with unfinished.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **small)
    unfinished.replace(path)
