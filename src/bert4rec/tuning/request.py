"""What a search is asked for, and in which folder. Needs neither torch nor Optuna, so that slips are told at once."""

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bert4rec.artefact import refuse_existing, write_text
from bert4rec.data.dataset import Dataset
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.settings.config import GivenSettings, Settings, parse_settings
from bert4rec.settings.defaults import DataFacts
from bert4rec.settings.objectives import RunConfig
from bert4rec.training.plan import Plan, flat
from bert4rec.tuning.outcome import OUTCOME

if TYPE_CHECKING:
    from bert4rec.training.device import Placement

MANIFEST = "tune.json"
SCHEMA = 1


@dataclass(frozen=True)
class Request:
    """Which model is tuned for which data, and what stays as it is. Written to tune.json before anything else."""

    plan: Plan
    """Of a training with the default settings, which the search starts from."""
    fixed: tuple[str, ...]
    """Settings that the user has chosen."""

    @classmethod
    def for_dataset(
        cls, dataset: Dataset, model: str, settings: Settings, seed: int, select_by: str | None = None
    ) -> "Request":
        given = GivenSettings.read(model, settings=settings)
        default = given.complete(DataFacts.of(dataset))
        if default.training is None:
            raise UsageError(f"{model} is not trained, so there is nothing to tune. Choose another `model`.")
        plan = Plan.for_dataset(
            dataset,
            model,
            default,
            preset=None,
            seed=seed,
            split=None,
            refit=False,
            test=False,
            select_by=select_by,
        )
        return cls(plan, tuple(flat(given.values)))

    @property
    def given(self) -> GivenSettings:
        """The settings that the user has chosen, with their values."""
        kept = {
            section: {key: value for key, value in values.items() if f"{section}.{key}" in self.fixed}
            for section, values in self.plan.config.as_dict().items()
        }
        return GivenSettings(self.plan.model, None, kept)

    def as_trained(self, dataset: Dataset, placement: "Placement", *, compile_step: bool) -> "Request":
        """From the settings that `train` takes on this machine: on a CPU, it plans for some minutes."""
        from bert4rec.budget.time_plan import plan_minutes, usual_minutes

        minutes = usual_minutes(self.given, placement)
        if minutes is None:
            return self
        whole, began = replace(self.plan, refit=True, test=True), time.perf_counter()
        planned, _ = plan_minutes(
            minutes,
            whole,
            self.given,
            dataset,
            placement,
            compile_step=compile_step,
            began=began,
            is_asked=False,
        )
        return self.starting_from(planned.config)

    @property
    def size(self) -> str:
        """Of a training with the default settings, in a few words."""
        config = self.plan.config
        assert config.training
        return f"{config.training.steps:,} steps, width {config.model.width}"

    def starting_from(self, default: RunConfig) -> "Request":
        """The same search around another default."""
        return replace(self, plan=replace(self.plan, config=default))

    def refuse_changes(
        self, settings: Settings, *, model: str | None, seed: int | None, select_by: str | None
    ) -> None:
        """Refuse to resume with anything else than the search was begun with; None was not given."""
        settings = settings if isinstance(settings, Mapping) else list(settings)
        for key in flat(parse_settings(settings)):
            if key not in self.fixed:
                raise UsageError(
                    f"`resume=True` goes on with the search as it was begun, and that was without `{key}` among its "
                    "`settings`. Leave it out, or start again with `overwrite=True`."
                )
        self.plan.refuse_changes(settings=settings, model=model, seed=seed, select_by=select_by)

    def save(self, folder: Path) -> None:
        """Write tune.json."""
        content = {"format": "bert4rec tuning", "schema": SCHEMA, "fixed": self.fixed}
        write_text(folder / MANIFEST, json.dumps({**content, "plan": self.plan.as_dict()}, indent=2))

    @classmethod
    def load(cls, folder: Path) -> "Request":
        """Read tune.json."""
        path = folder / MANIFEST
        if not path.is_file():
            raise NotFoundError(f"{folder} has no {MANIFEST}: this is not a search of bert4rec.")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(Plan.from_dict(content["plan"]), tuple(content["fixed"]))
        except (AttributeError, ValueError, KeyError, TypeError, UsageError) as error:
            raise DataError(f"{path} is damaged or of another version ({error}).") from error


def refuse_search(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that a new search must not be written to."""
    if (folder / MANIFEST).exists() and not (folder / OUTCOME).exists() and not overwrite:
        raise UsageError(
            f"{folder} holds an unfinished search. Continue it with `resume=True`, or start again with "
            "`overwrite=True`."
        )
    refuse_existing(folder, MANIFEST, overwrite=overwrite)


def clear_search(folder: Path) -> None:
    """Make room for a new search. The folder itself stays, because it is locked."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
