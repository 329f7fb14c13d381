"""What the settings are worth that follow from the data: `python -m benchmarks.defaults data/beauty data/ml-1m`.

Every data set is learned with the rule of `settings/defaults.py`, with the rule changed in one place at a time, and
with every other model's own default. Only validation items are looked at. Each training adds a line of JSON to the
results; what is there already is not trained again, unless the rule has changed since. Lines whose trial is "search"
are of trials that looked for better settings.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bert4rec.data.dataset import Dataset
from bert4rec.paper.reporting.summary_defaults import RULE
from bert4rec.settings.defaults import DataFacts, default_settings
from bert4rec.settings.presets import Values
from bert4rec.settings.sections import DEFAULT_MODEL, SECTIONS

MOST_SEEDS = 5
OTHERS = "its own default"
KEPT = ("model", "seed", "device", "command_seconds", "metrics", "config")
"""Of the line that `bert4rec train` prints."""


@dataclass(frozen=True)
class Trial:
    """One training that looks at validation items only."""

    dataset: Path
    model: str
    name: str
    settings: Values
    seed: int

    def line(self, *, compile_step: bool) -> dict[str, Any]:
        settings = [
            f"--set={section}.{key}={value}"
            for section, values in self.settings.items()
            for key, value in values.items()
        ]
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "bert4rec", "train", str(self.dataset), "-o", f"{folder}/run"]
            command += ["--model", self.model, "--seed", str(self.seed), "--no-test", "--json", *settings]
            command += [] if compile_step else ["--no-compile"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{self} failed:\n{done.stderr}")
        (line,) = json.loads(done.stdout)
        return {"dataset": self.dataset.name, "trial": self.name} | {key: line[key] for key in KEPT}

    def is_of(self, line: dict[str, Any]) -> bool:
        """Whether the line is of this trial, by whatever rule."""
        names = (line["dataset"], line["model"], line["trial"], line["seed"])
        return names == (self.dataset.name, self.model, self.name, self.seed)

    def has_made(self, line: dict[str, Any]) -> bool:
        return self.is_of(line) and all(
            line["config"][section].items() >= values.items() for section, values in self.settings.items()
        )


def changed(rule: Values) -> dict[str, Values]:
    """Name of a change → all settings of the rule with it."""
    model, objective, training = rule["model"], rule["objective"], rule["training"]
    found = {RULE: rule}

    def add(name: str, section: str, **values: Any) -> None:
        found[name] = {**rule, section: {**rule[section], **values}}

    for word, sign in {"more": 1, "less": -1}.items():
        dropout = round(max(0.0, model["hidden_dropout"] + 0.1 * sign), 2)
        add(f"{word} dropout", "model", hidden_dropout=dropout, embedding_dropout=dropout)
        add(f"{word} width", "model", dim=int(model["dim"] * 2.0**sign))
        masks = round(objective["mask_probability"] + 0.15 * sign, 2)
        add(f"{word} masks", "objective", mask_probability=masks)
        weight = objective["next_item_weight"] * 2.0**sign
        add(f"{word} weight on next items", "objective", next_item_weight=weight)
        rate = round(training["learning_rate"] * 1.5**sign, 6)
        add(f"{word} learning rate", "training", learning_rate=rate)
        steps = {key: int(training[key] * 2.0**sign) for key in ("steps", "warmup_steps", "validate_every")}
        add(f"{word} steps", "training", **steps)
    return found


def trials(path: Path, seeds: int) -> Iterator[Trial]:
    rule = default_settings(DEFAULT_MODEL, DataFacts.of(Dataset.open(path)))
    for seed in range(1, seeds + 1):
        for name, settings in changed(rule).items():
            yield Trial(path, DEFAULT_MODEL, name, settings, seed)
        for model in sorted(SECTIONS.keys() - {DEFAULT_MODEL}):
            yield Trial(path, model, OTHERS, {}, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("datasets", nargs="+", type=Path)
    parser.add_argument("--only", nargs="*", help="changes, or models; all of them otherwise")
    parser.add_argument("--seeds", type=int, choices=range(1, MOST_SEEDS + 1), default=1)
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--results", type=Path, default=Path("results/tuning/defaults.jsonl"))
    given = parser.parse_args()
    text = given.results.read_text(encoding="utf-8") if given.results.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    known = [trial for path in given.datasets for trial in trials(path, MOST_SEEDS)]
    # What an older rule has given would be averaged with what this one gives.
    is_stale = [
        any(trial.is_of(line) and not trial.has_made(line) for trial in known if trial.settings)
        for line in lines
    ]
    lines = [line for line, stale in zip(lines, is_stale, strict=True) if not stale]
    if any(is_stale):
        given.results.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    wanted = [
        trial
        for trial in known
        if trial.seed <= given.seeds
        and (not given.only or trial.name in given.only or trial.model in given.only)
        and not any(map(trial.has_made, lines))
    ]

    console = Console()

    def learn(trial: Trial) -> None:
        line = trial.line(compile_step=not given.no_compile)
        with given.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        console.print(*(line[key] for key in ("dataset", "model", "trial", "seed")))

    with ThreadPoolExecutor(given.jobs) as pool:
        for done in [pool.submit(learn, trial) for trial in wanted]:
            done.result()


if __name__ == "__main__":
    main()
