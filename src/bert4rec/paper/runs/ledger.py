"""The folder of results as the runner keeps it: what is there, and how a line is added exactly once."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec.evaluation.metrics import METRICS, metric_per_user
from bert4rec.evaluation.protocol import Ranks
from bert4rec.paper.runs.jobs import mark_of
from bert4rec.training.code_mark import code_checksum
from bert4rec.training.results import append_lines, locked, ranks_path, read_results, write_ranks

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
            with locked(path):
                pass  # Half a line of a process that died is removed.
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
            write_ranks(ranks_path(self.folder, marked[mark]), found)
        with locked(self.folder / _file_name(lines[0]["dataset"])) as file:
            os.lseek(file, 0, os.SEEK_SET)
            with os.fdopen(os.dup(file), encoding="utf-8") as reader:
                there = {mark_of(line) for line in map(json.loads, reader) if "versions" in line}
            append_lines(file, [line for mark, line in marked.items() if mark not in there])


def standard_errors(ranks: Ranks) -> dict[str, dict[str, float]]:
    """Of the means over test users, so that a report can give intervals where it has no ranks."""
    return {
        protocol: {metric: _standard_error(metric_per_user(found, metric)) for metric in METRICS}
        for protocol, found in vars(ranks).items()
    }


def _standard_error(values: np.typing.NDArray[np.float64]) -> float:
    return float(values.std() / np.sqrt(len(values)))


def _file_name(dataset: str) -> str:
    return re.sub(r"[^\w.-]+", "-", dataset) + ".jsonl"
