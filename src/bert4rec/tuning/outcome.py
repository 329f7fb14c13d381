"""What a search has found, and the files it leaves: settings.toml, trials.jsonl, outcome.json."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bert4rec.artefact import write_text
from bert4rec.frames import Tabular

if TYPE_CHECKING:
    import polars as pl

State = Literal["complete", "pruned", "failed"]
SETTINGS, TRIALS, OUTCOME, FIGURE = "settings.toml", "trials.jsonl", "outcome.json", "tuning.png"


@dataclass(frozen=True)
class TuningTrial:
    """One training of a search."""

    number: int
    """0 is the default."""
    state: State
    """A trial is pruned if it is behind, collapses or is too slow, and failed if its process was killed."""
    value: float | None
    """The metric on the validation items at its best; of a pruned trial as far as it came."""
    changes: dict[str, Any]
    """Settings that differ from the default."""
    seconds: float
    """How long it took."""
    minute: float
    """When it ended, since the search began."""
    note: str = ""
    """Why it was given up."""


@dataclass(frozen=True, repr=False)
class Tuning(Tabular):
    """What a search for settings has found. As a table, it has a row for each trial."""

    path: Path
    """Folder of the search."""
    dataset: str
    """Name of the dataset."""
    data_checksum: str
    model: str
    metric: str
    """What was searched by, on the validation items."""
    minutes: float
    """How long the search took."""
    steps: tuple[int, int]
    """Of the default, in a trial and in a whole training."""
    trials: list[TuningTrial]
    best: int
    """Number of the best trial; 0 if none was better than the default."""
    settings: dict[str, dict[str, Any]]
    """What `settings.toml` holds, section by section: the best settings, or the default if those were not found to be
    better. While the search goes on, and if it was interrupted, the best so far."""
    changes: dict[str, Any]
    """In which settings that differs from the default."""
    worth: dict[str, Any] | None
    """The best less the default: `difference`, `low`, `high` (the 95% interval), `p_value`, and `seeds`, how many
    trainings of each were compared. None if there were not two of each."""
    importance: dict[str, float]
    """How much each setting decided whether a trial was among the best; the shares sum to 1. Empty after few trials."""
    sentence: str
    """What the search is worth, and how sure that is."""

    def __repr__(self) -> str:
        return f"<Tuning {str(self.path)!r}: {self.model} on {self.dataset}. {self.sentence}>"

    @property
    def file(self) -> Path:
        """The settings, for `train(..., config=...)`."""
        return self.path / SETTINGS

    @property
    def select_by(self) -> str | None:
        """What `train` must be told to select by as the search did; None if the model does so anyway."""
        from bert4rec.training.plan import select_by_of

        return None if self.metric == select_by_of(self.model) else self.metric

    @property
    def figure(self) -> Path:
        """A picture of the search, and of what mattered."""
        return self.path / FIGURE

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        return {**asdict(self), "path": str(self.path), "file": str(self.file)}

    def to_polars(self) -> "pl.DataFrame":
        """A row for each trial: `number`, `state`, `value`, `seconds`, `minute`, `note` and the settings it changed."""
        import polars as pl

        keys = dict.fromkeys(key for trial in self.trials for key in trial.changes)
        rows = [
            {
                **{name: value for name, value in asdict(trial).items() if name != "changes"},
                **{key: trial.changes.get(key) for key in keys},
            }
            for trial in self.trials
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def write(self) -> None:
        """Write settings.toml, complete and with how it was found above it, and trials.jsonl."""
        tried = f"{len(self.trials)} trial{'s' * (len(self.trials) > 1)} in {self.minutes:.3g} minutes"
        select_by = f', select_by="{self.select_by}"' if self.select_by else ""
        head = [
            f"Settings of {self.model} for {self.dataset} (checksum {self.data_checksum}), found by `bert4rec tune`.",
            f"{tried}, by {self.metric} on the validation items; the test items were not looked at.",
            self.sentence,
            f'Use them with `bert4rec.train(dataset, model="{self.model}", config="{SETTINGS}"{select_by})`.',
        ]
        write_text(self.file, "\n".join([*(f"# {line}" for line in head), "", to_toml(self.settings)]))
        write_text(self.path / TRIALS, "\n".join(json.dumps(asdict(trial)) for trial in self.trials))

    def finish(self) -> None:
        """Write outcome.json, which a finished search has."""
        write_text(self.path / OUTCOME, json.dumps(self.as_dict(), indent=2))


def to_toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Settings as `train(..., config=...)` reads them: numbers and texts below the names of their sections."""
    return "\n\n".join(
        "\n".join([f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())])
        for section, values in sections.items()
    )
