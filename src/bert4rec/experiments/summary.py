"""The tables of results in the README: `python -m bert4rec.experiments.summary README.md results` writes them."""

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bert4rec.errors import DataError

END = "<!-- end -->"
PAPER_NAMES = {"ml-1m": "ML-1m", "beauty": "Beauty", "steam": "Steam", "ml-20m": "ML-20m"}
PROTOCOLS = {"sampled": "100 popularity negatives", "full": "full ranking"}
SHOWN = ("HR@10", "NDCG@10", "MRR")


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Every line of results below `folder`, whatever machine wrote it."""
    return [
        json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]


def make_tables(folder: Path) -> dict[str, str]:
    """The mark that a table begins with in the README → the table."""
    lines = read_lines(folder)
    return {
        "<!-- quality: written by a command, do not edit -->": quality_table(
            [x for x in lines if "metrics" in x]
        ),
        "<!-- speed: written by a command, do not edit -->": speed_table(
            [x for x in lines if "samples_per_second" in x]
        ),
    }


def quality_table(lines: Sequence[dict[str, Any]]) -> str:
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


def speed_table(lines: Sequence[dict[str, Any]]) -> str:
    """Markdown: training samples a second, beside the paper's and a plain loop's in the same process."""
    paper = _paper()["table4_max_length_d64"]
    rows = [
        "| shape | d | batch | device | samples/s | times the plain loop | times the paper |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        table = paper.get(PAPER_NAMES[line["shape"]])
        known = table and line["dim"] == 64
        theirs = (
            table["samples_per_second_gtx1080ti"][table["N"].index(line["max_length"])] if known else None
        )
        cells = [
            f"{PAPER_NAMES[line['shape']]}, {line['items']:,} items, N={line['max_length']}",
            str(line["dim"]),
            str(line["batch_size"]),
            line["device"],
            f"{line['samples_per_second']:,.0f}",
            f"{line['ratio']:.1f}" if "ratio" in line else "",
            f"{line['samples_per_second'] / theirs:,.1f}" if theirs else "",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def update(readme: Path, folder: Path) -> None:
    """Replace every table between its mark and the next end."""
    text = readme.read_text(encoding="utf-8")
    for begin, table in make_tables(folder).items():
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{table}\n{END}{rest.partition(END)[2]}"
    readme.write_text(text, encoding="utf-8")


def _paper() -> dict[str, Any]:
    return dict(json.loads((resources.files("bert4rec") / "experiments" / "paper.json").read_text()))


def _spread(values: Sequence[float]) -> str:
    return f"**{mean(values):.4f}** ± {stdev(values):.4f}" if len(values) > 1 else f"**{values[0]:.4f}**"


def _row(
    dataset: str, protocol: str, cells: Sequence[str], seeds: str = "", seconds: str = "", device: str = ""
) -> str:
    return f"| {' | '.join([dataset, protocol, *cells, seeds, seconds, device])} |"


if __name__ == "__main__":
    update(Path(sys.argv[1]), Path(sys.argv[2]))
