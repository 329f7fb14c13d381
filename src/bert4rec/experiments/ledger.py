"""The folder of results as the runner keeps it: what is there, and how a line is added exactly once.

Several processes, also of several commands, may add at the same time. A line is added under a lock, in one write,
and only if it is not there. A process that dies while it writes leaves half a line, which the next one removes.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec.evaluation.metrics import METRICS, metric_per_user
from bert4rec.evaluation.protocol import Ranks
from bert4rec.experiments.jobs import mark_of
from bert4rec.training.results import ranks_path, read_results
from bert4rec.training.train import code_checksum

Line = dict[str, Any]


@dataclass(frozen=True)
class Ledger:
    """Results of real runs, or of quick ones: the two never share a folder."""

    folder: Path
    quick: bool = False

    @classmethod
    def open(cls, folder: Path, *, quick: bool) -> "Ledger":
        """Quick results go to a folder of their own, below."""
        ledger = cls(folder / "quick" if quick else folder, quick)
        ledger.folder.mkdir(parents=True, exist_ok=True)
        for path in ledger.folder.glob("*.jsonl"):
            with _locked(path) as file:
                _mend(file)
        return ledger

    def lines(self) -> list[Line]:
        return [line for line in read_results(self.folder) if bool(line.get("quick")) == self.quick]

    def marks(self, *, any_code: bool = False) -> set[str]:
        """Of all lines; with `any_code` as if this code had made them."""
        ours = {"versions": {"code": code_checksum()}} if any_code else {}
        return {mark_of({**line, **ours}) for line in self.lines() if "versions" in line}

    def add(self, lines: Sequence[Mapping[str, Any]], ranks: Mapping[str, Ranks] | None = None) -> None:
        """Append what is not there yet. `ranks` are those behind some of the lines, by their marks.

        All lines must be of one data set: it names the file.
        """
        quick = {"quick": True} if self.quick else {}
        marked = {mark_of(line): {**line, **quick} for line in lines}
        for mark, found in (ranks or {}).items():
            _save_ranks(ranks_path(self.folder, marked[mark]), found)
        with _locked(self.folder / _file_name(lines[0]["dataset"])) as file:
            _mend(file)
            os.lseek(file, 0, os.SEEK_SET)
            with os.fdopen(os.dup(file), encoding="utf-8") as reader:
                there = {mark_of(line) for line in map(json.loads, reader) if "versions" in line}
            new = [line for mark, line in marked.items() if mark not in there]
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in new)
            os.write(file, text.encode())
            os.fsync(file)


def standard_errors(ranks: Ranks) -> dict[str, dict[str, float]]:
    """Of the means over test users, so that a report can give intervals where it has no ranks."""
    return {
        protocol: {metric: _standard_error(metric_per_user(found, metric)) for metric in METRICS}
        for protocol, found in vars(ranks).items()
    }


def _standard_error(values: np.typing.NDArray[np.float64]) -> float:
    return float(values.std() / np.sqrt(len(values)))


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _mend(file: int) -> None:
    """Remove half a line at the end; a whole one that only lacks its end gets it."""
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


def _save_ranks(path: Path, ranks: Ranks) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    small = {name: found.astype(np.min_scalar_type(int(found.max()))) for name, found in vars(ranks).items()}
    np.savez_compressed(path, allow_pickle=False, **small)


def _file_name(dataset: str) -> str:
    return re.sub(r"[^\w.-]+", "-", dataset) + ".jsonl"
