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
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        if line["split"] == "test" and line["stage"] == "refit":
            groups[line["dataset"], line["model"]].append(line)
    rows = [
        f"| | protocol | {' | '.join(SHOWN)} | seeds | training | device |",
        "|---|---|" + "---|" * (len(SHOWN) + 3),
    ]
    for (dataset, _), runs in sorted(groups.items(), reverse=True):
        printed = paper[PAPER_NAMES[dataset]]
        rows.append(
            _row(
                PAPER_NAMES[dataset],
                "paper, 100 popularity negatives",
                [f"{printed[m]['BERT4Rec']:.4f}" for m in SHOWN],
            )
        )
        seconds = f"{mean(run['train_seconds'] for run in runs):.0f} s"
        for protocol, name in PROTOCOLS.items():
            cells = [_spread([run["metrics"][protocol][metric] for run in runs]) for metric in SHOWN]
            rows.append(_row("", f"ours, {name}", cells, str(len(runs)), seconds, runs[0]["device"]))
    return "\n".join(rows)


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
