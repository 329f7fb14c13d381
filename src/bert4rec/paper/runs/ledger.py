"""The folder of results as the runner keeps it: what is in it, and how a line is added exactly once."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec.data.dataset import Dataset
from bert4rec.data.stats import statistics
from bert4rec.evaluation.metrics import METRICS, metric_per_user
from bert4rec.evaluation.protocol import Ranks
from bert4rec.paper.experiments.cases import DatasetFacts
from bert4rec.paper.experiments.figure2 import wanted_titles
from bert4rec.paper.runs.jobs import mark_of
from bert4rec.training.reporting.code_mark import code_checksum
from bert4rec.training.reporting.results import append_lines, locked, ranks_path, read_results, write_ranks

Line = dict[str, Any]
ANY_CODE = {"versions": {"code": ""}}
"""For lines that do not depend on the code: statistics and titles."""


@dataclass(frozen=True)
class Ledger:
    """Results of real runs, or of quick ones: the two never share a folder."""

    folder: Path
    quick: bool = False

    @classmethod
    def open(cls, folder: Path, *, quick: bool) -> "Ledger":
        """Quick results go to a subfolder of their own."""
        ledger = cls(folder / "quick" if quick else folder, quick)
        ledger.folder.mkdir(parents=True, exist_ok=True)
        for path in ledger.folder.glob("*.jsonl"):
            with locked(path):
                pass  # This removes the unfinished line of a process that died.
        return ledger

    def lines(self) -> list[Line]:
        return [line for line in read_results(self.folder) if bool(line.get("quick")) == self.quick]

    def marks(self, *, any_code: bool = False) -> set[str]:
        """The marks of all lines; with `any_code` as if this version of the code had made them."""
        ours = {"versions": {"code": code_checksum()}} if any_code else {}
        return {mark_of({**line, **ours}) for line in self.lines() if "versions" in line}

    def add(self, lines: Sequence[Mapping[str, Any]], ranks: Mapping[str, Ranks] | None = None) -> None:
        """Append the lines that are not there yet. `ranks` are those behind some of the lines, by mark.

        All lines must be of one data set, which names the file.
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
    """Of the means over test users, so that a report can give intervals without ranks."""
    return {
        protocol: {metric: _standard_error(metric_per_user(found, metric)) for metric in METRICS}
        for protocol, found in vars(ranks).items()
    }


def _standard_error(values: np.typing.NDArray[np.float64]) -> float:
    return float(values.std() / np.sqrt(len(values)))


def _file_name(dataset: str) -> str:
    return re.sub(r"[^\w.-]+", "-", dataset) + ".jsonl"


def describe(dataset: Dataset, ledger: Ledger) -> None:
    """Record what a report shows of the data set itself: statistics, and titles of items whose attention was measured.

    So a report needs no data. Titles need polars; without it they are left for another machine.
    """
    facts = DatasetFacts.of(dataset)
    head = {**facts.identity, **ANY_CODE}
    lines: list[dict[str, Any]] = [
        {**head, "kind": "statistics", "family": facts.family, "statistics": statistics(dataset)}
    ]
    measured = [
        line
        for line in ledger.lines()
        if line.get("kind") == "attention" and line["data_checksum"] == facts.checksum
    ]
    wanted = sorted(wanted_titles(measured))
    titles = _titles(dataset, wanted)
    if titles:
        # The items stand where other lines have their settings: other items are another line.
        lines.append({**head, "kind": "titles", "config": {"items": wanted}, "titles": titles})
    ledger.add(lines)


def _titles(dataset: Dataset, items: list[int]) -> dict[str, str]:
    if not items:
        return {}
    try:
        table = dataset.items()
    except (ImportError, OSError):
        return {}
    if "title" not in table.columns:
        return {}
    titles = table["title"].to_list()
    return {str(item): titles[item - 1] for item in items if titles[item - 1]}
