"""progress.jsonl of a run: loss and validation, mark by mark."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.artefact import write_text
from bert4rec.errors import DataError
from bert4rec.frames import Tabular
from bert4rec.training.plan import STAGES, Stage

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, repr=False)
class TrainingHistory(Tabular):
    """How the loss and the validation metric went, step by step."""

    entries: list[dict[str, Any]]
    """One for each validation of the selection and each mark of later stages; of attempts that were given up, too."""

    def __len__(self) -> int:
        return len(self.entries)

    def to_polars(self) -> "pl.DataFrame":
        """`stage`, `attempt`, `step`, `loss`, `value` (on the validation items; none in later stages) and `seconds`."""
        import polars as pl

        columns = {
            "stage": pl.String,
            "attempt": pl.Int64,
            "step": pl.Int64,
            "loss": pl.Float64,
            "value": pl.Float64,
            "seconds": pl.Float64,
        }
        rows = [{name: entry.get(name) for name in columns} for entry in self.entries]
        return pl.DataFrame(rows, schema=columns)


@dataclass(frozen=True)
class ProgressLog:
    """The marks of all stages, attempt by attempt: step, loss, seconds and, of a validation, its value."""

    folder: Path

    def write(self, stage: Stage, attempt: int, history: list[dict[str, Any]]) -> None:
        """Replace all marks of this attempt, behind those of what came before: a resumed run has each once."""

        def is_before(mark: dict[str, Any]) -> bool:
            return (STAGES.index(mark["stage"]), mark["attempt"]) < (STAGES.index(stage), attempt)

        marks = [{"stage": stage, "attempt": attempt, **entry} for entry in history]
        marks = [*filter(is_before, self.entries()), *marks]
        write_text(self._path, "\n".join(map(json.dumps, marks)))

    def entries(self) -> list[dict[str, Any]]:
        """All marks, in the order of time."""
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
            # Older versions made one attempt, and did not say so.
            return [{"stage": mark["stage"], "attempt": 1, **mark} for mark in map(json.loads, lines)]
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"{self._path} is damaged ({error}). Start again with `overwrite=True`."
            ) from error

    def read(self, stage: Stage) -> list[dict[str, Any]]:
        """The marks of a stage, of its last attempt; none before its first one."""
        marks = [mark for mark in self.entries() if mark["stage"] == stage]
        return [mark for mark in marks if mark["attempt"] == marks[-1]["attempt"]]

    def validations(self) -> list[dict[str, float]]:
        """How the selection went: step, value, and seconds since the run began."""
        names = ("step", "value", "command_seconds")
        return [{name: mark[name] for name in names} for mark in self.read("selection")]

    def seconds(self) -> float:
        """Of training, until the last mark of the selection."""
        return max((mark["seconds"] for mark in self.read("selection")), default=0.0)

    @property
    def _path(self) -> Path:
        return self.folder / "progress.jsonl"
