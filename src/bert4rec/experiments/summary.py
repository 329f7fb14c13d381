"""The table of results in the README: `python -m bert4rec.experiments.summary README.md results` writes it."""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bert4rec.errors import DataError

BEGIN, END = "<!-- results: written by a command, do not edit -->", "<!-- end of results -->"
PAPER_NAMES = {"ml-1m": "ML-1m", "beauty": "Beauty", "steam": "Steam", "ml-20m": "ML-20m"}
PROTOCOLS = {"sampled": "100 popularity negatives", "full": "full ranking"}
SHOWN = ("HR@10", "NDCG@10", "MRR")


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Every line of training results below `folder`, whatever machine wrote it."""
    lines = [
        json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]
    return [line for line in lines if "metrics" in line]


def make_table(lines: Sequence[dict[str, Any]]) -> str:
    """Markdown: mean and standard deviation over seeds, beside the paper's numbers where it has them."""
    paper = json.loads((resources.files("bert4rec") / "experiments" / "paper.json").read_text())[
        "table2_overall"
    ]
    rows = [
        f"| | protocol | {' | '.join(SHOWN)} | seeds | training | device |",
        "|---|---|" + "---|" * (len(SHOWN) + 3),
    ]
    for dataset, runs in sorted(_systems(lines).items(), reverse=True):
        title = PAPER_NAMES.get(dataset[0], dataset[0])
        if title in paper:
            printed = [f"{paper[title][metric]['BERT4Rec']:.4f}" for metric in SHOWN]
            rows.append(_row(title, "paper, 100 popularity negatives", printed))
        seconds = f"{mean(run['train_seconds'] for run in runs):.0f} s"
        for protocol, name in PROTOCOLS.items():
            cells = [_spread([run["metrics"][protocol][metric] for run in runs]) for metric in SHOWN]
            rows.append(
                _row(
                    f"{title}, `{dataset[1]}`",
                    f"ours, {name}",
                    cells,
                    str(len(runs)),
                    seconds,
                    runs[0]["device"],
                )
            )
    return "\n".join(rows)


def _systems(lines: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Final results by data set and preset; a seed that was run twice counts once, other settings are refused."""
    groups: dict[tuple[str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
    for line in lines:
        if line["split"] == "test" and line["stage"] == "refit":
            runs = groups[line["dataset"], str(line["preset"])]
            other = next(iter(runs.values()), line)
            if any(line[key] != other[key] for key in ("config", "data_checksum", "protocol")):
                raise DataError(
                    f"Results of {line['dataset']}, {line['preset']} mix different settings or data."
                )
            runs[line["seed"]] = line
    return {system: list(runs.values()) for system, runs in groups.items()}


def update(readme: Path, folder: Path) -> None:
    """Replace the table between the two marks."""
    text = readme.read_text(encoding="utf-8")
    table = f"{BEGIN}\n{make_table(read_results(folder))}\n{END}"
    readme.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: table, text, flags=re.DOTALL), encoding="utf-8")


def _spread(values: Sequence[float]) -> str:
    return f"**{mean(values):.4f}** ± {stdev(values):.4f}" if len(values) > 1 else f"**{values[0]:.4f}**"


def _row(
    dataset: str, protocol: str, cells: Sequence[str], seeds: str = "", seconds: str = "", device: str = ""
) -> str:
    return f"| {' | '.join([dataset, protocol, *cells, seeds, seconds, device])} |"


if __name__ == "__main__":
    update(Path(sys.argv[1]), Path(sys.argv[2]))
