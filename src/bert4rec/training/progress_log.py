"""progress.jsonl of a run: loss and validation, mark by mark."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.artefact import write_text
from bert4rec.errors import DataError
from bert4rec.frames import Tabular
from bert4rec.training.plan import Stage

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, repr=False)
class TrainingHistory(Tabular):
    """How the loss and the validation metric went, step by step."""

    entries: list[dict[str, Any]]
    """One for each validation of the selection and each mark of the refit."""

    def __len__(self) -> int:
        return len(self.entries)

    def to_polars(self) -> "pl.DataFrame":
        """`stage`, `step`, `loss`, `value` (NDCG@10 on the validation items; none in a refit) and `seconds`."""
        import polars as pl

        columns = {
            "stage": pl.String,
            "step": pl.Int64,
            "loss": pl.Float64,
            "value": pl.Float64,
            "seconds": pl.Float64,
        }
        rows = [{name: entry.get(name) for name in columns} for entry in self.entries]
        return pl.DataFrame(rows, schema=columns)


@dataclass(frozen=True)
class ProgressLog:
    """The marks of both stages: step, loss, seconds and, of a validation, its value."""

    folder: Path

    def write(self, stage: Stage, history: list[dict[str, Any]]) -> None:
        """Replace all marks of this stage, behind those of the stage before: a resumed run has each once."""
        before = self.read("selection") if stage == "refit" else []
        entries = [*before, *({"stage": stage, **entry} for entry in history)]
        write_text(self._path, "\n".join(map(json.dumps, entries)))

    def read(self, stage: Stage) -> list[dict[str, Any]]:
        """The marks of a stage; none before its first one."""
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
            return [entry for entry in map(json.loads, lines) if entry["stage"] == stage]
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"{self._path} is damaged ({error}). Start again with `overwrite=True`."
            ) from error

    def validations(self) -> list[dict[str, float]]:
        """How the selection went: step, value, and seconds since the run began."""
        names = ("step", "value", "command_seconds")
        return [{name: entry[name] for name in names} for entry in self.read("selection")]

    def seconds(self) -> float:
        """Of training, until the last mark of the selection."""
        return max((entry["seconds"] for entry in self.read("selection")), default=0.0)

    @property
    def _path(self) -> Path:
        return self.folder / "progress.jsonl"
