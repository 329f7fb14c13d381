"""What a run is asked to do, and which folder it may be written to. Needs no torch."""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from bert4rec.artefact import refuse_existing, write_text
from bert4rec.data.dataset import Dataset, Repeats
from bert4rec.data.splits import SplitSpec
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.evaluation.criterion import USUAL, Criterion
from bert4rec.settings.config import RunConfig, Settings, make_config, read_config
from bert4rec.settings.sections import SECTIONS

MANIFEST = "run.json"
SCHEMA = 1
Stage = Literal["selection", "refit", "production"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""In their order."""
Refit = Literal["all"] | bool
"""Whether to train again on all but the test items; "all": and then, for production, on everything."""


@dataclass(frozen=True)
class Plan:
    """What a run is asked to do. Written to config.json before anything else happens."""

    dataset: str
    """Where the dataset was, or empty if it was in memory. It may have moved since; `data_checksum` identifies it."""
    dataset_name: str
    data_checksum: str
    candidates_checksum: str
    """Of the stored negatives: runs that met other candidates cannot be compared."""
    num_users: int
    num_items: int
    model: str
    """Name of the model, such as bert4rec."""
    config: RunConfig
    """All settings."""
    preset: str | None
    """Name of the preset that the settings started from."""
    seed: int
    split: SplitSpec
    repeats: Repeats = "exclude"
    """Whether the model is asked about, and recommends, items of a history again: as the dataset has it."""
    refit: Refit = True
    """Whether to train again on all but the test items once the number of steps is chosen, and on everything."""
    test: bool = True
    """Whether to look at the test items in the end; not while settings are still being chosen."""
    variant: str = ""
    """What was changed in the model's code, if an experiment changed something; see `train`."""
    select_by: str = USUAL
    """By what the best weights are chosen on the validation items, as `Criterion` spells it."""

    @classmethod
    def for_dataset(
        cls,
        dataset: Dataset,
        model: str,
        config: RunConfig,
        *,
        preset: str | None,
        seed: int,
        split: SplitSpec | None,
        refit: Refit = True,
        test: bool = True,
        variant: str = "",
        select_by: str | None = None,
    ) -> "Plan":
        """A plan for this dataset, split as it was prepared, and chosen by what the model goes by, unless given."""
        if split is not None and not isinstance(split, SplitSpec):
            raise UsageError(
                f'`split` must be a SplitSpec, such as SplitSpec("time", test_from="2024-06-01"); found {split!r}.'
            )
        if refit not in (True, False, "all"):
            raise UsageError(f'`refit` must be True, False or "all"; found {refit!r}.')
        if refit == "all" and not test:
            raise UsageError(
                '`refit="all"` requires the test: nothing else tells how good the model is. Leave out `test=False`.'
            )
        return cls(
            dataset=str(dataset.path.absolute()) if dataset.path else "",
            dataset_name=dataset.name,
            data_checksum=dataset.checksum,
            candidates_checksum=dataset.candidates_checksum(),
            num_users=dataset.num_users,
            num_items=dataset.num_items,
            model=model,
            config=config,
            preset=preset,
            seed=seed,
            split=split or SplitSpec(**dataset.manifest["split"]),
            repeats=dataset.repeats,
            refit=refit if test else False,
            test=test,
            variant=variant,
            select_by=select_by_of(model, select_by),
        )

    @property
    def final_stage(self) -> Stage:
        """Which stage recommends in the end."""
        return "production" if self.refit == "all" else self.tested_stage

    @property
    def tested_stage(self) -> Stage:
        """Which stage is judged on the test items."""
        return "refit" if self.refit else "selection"

    @property
    def criterion(self) -> Criterion:
        """What `select_by` says."""
        return Criterion.parse(self.select_by)

    def check_dataset(self, dataset: Dataset) -> None:
        """Refuse to go on with, or to evaluate on, other data than the run was made for."""
        where = dataset.path or "the dataset in memory"
        if dataset.checksum != self.data_checksum:
            raise DataError(
                f"The run was made for {self.dataset_name} with checksum {self.data_checksum}, "
                f"but {where} has {dataset.checksum}."
            )
        if dataset.candidates_checksum() != self.candidates_checksum:
            raise DataError(f"{where} has other stored candidates than the run was made with.")

    def refuse_changes(
        self, *, config: str | Path | None = None, settings: Settings | None = None, **given: object
    ) -> None:
        """Refuse to resume with anything else than the run was started with.

        Parameters
        ----------
        config, settings
            As in `train`; they must change no setting of the run.
        given
            `model`, `preset`, `seed`, `split`, `refit`, `test` or `select_by` as in `train`; None was not given.
        """
        if isinstance(select_by := given.get("select_by"), str):
            given["select_by"] = str(Criterion.parse(select_by))
        if given.get("refit") is True:
            given["refit"] = self.test
        for name, value in given.items():
            if value is not None and value != getattr(self, name):
                raise _changed(f"{name}={getattr(self, name)!r}", f"{name}={value!r}", name)
        ours = flat(self.config.as_dict())
        file = read_config(self.model, config) if config else {}
        changed = make_config(self.model, self.config.as_dict(), flat(file))
        theirs = flat(make_config(self.model, changed.as_dict(), settings or ()).as_dict())
        for key, value in theirs.items():
            if value != ours[key]:
                kept, found = (f"settings={ {key: each}!r}" for each in (ours[key], value))
                raise _changed(kept, found, "settings")

    def tag(self, stage: Stage) -> str:
        """Identifies the weights of a stage: everything that decides them, and nothing else."""
        decisive = replace(self, dataset="", preset=None).as_dict()
        decisive["config"] = self.config.as_recorded()
        # The candidates tell, and runs that were begun before it was recorded can go on.
        del decisive["repeats"]
        if self.select_by == USUAL:  # As it was for all, before there was a choice.
            del decisive["select_by"]
        return hashlib.sha256(json.dumps([stage, decisive], sort_keys=True).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "config": self.config.as_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Plan":
        """What `as_dict` gave, read back from JSON."""
        config = make_config(values["model"], values["config"])
        return cls(**{**values, "config": config, "split": SplitSpec(**values["split"])})

    def save(self, folder: Path) -> None:
        """Write config.json."""
        content = {"format": "bert4rec run", "schema": SCHEMA, **self.as_dict()}
        write_text(folder / "config.json", json.dumps(content, indent=2))

    @classmethod
    def load(cls, folder: Path) -> "Plan":
        """Read config.json."""
        path = folder / "config.json"
        if not path.is_file():
            raise NotFoundError(f"{folder} has no config.json: this is not a run of bert4rec.")
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            del values["format"], values["schema"]
            return cls.from_dict(values)
        except (AttributeError, ValueError, KeyError, TypeError, UsageError) as error:
            raise DataError(f"{path} is damaged or of another version ({error}).") from error


def select_by_of(model: str, given: str | None = None) -> str:
    """By what the best weights of a model are chosen, in its usual spelling."""
    return str(Criterion.parse(SECTIONS[model].select_by if given is None else given))


def flat(sections: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """`{"model.dim": 128}` from `{"model": {"dim": 128}}`."""
    return {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}


def _changed(kept: str, found: str, parameter: str) -> UsageError:
    return UsageError(
        f"`resume=True` keeps the settings of the run, which has `{kept}`; found `{found}`. "
        f"Leave out `{parameter}`, or start again with `overwrite=True`."
    )


def open_dataset(dataset: Dataset | str | Path) -> Dataset:
    """The dataset itself, or the one in this folder."""
    if isinstance(dataset, Dataset):
        return dataset
    if not isinstance(dataset, str | Path):
        raise UsageError(
            f"`dataset` must be a dataset or its folder; found {type(dataset).__name__}. Make one with `prepare()`."
        )
    return Dataset.open(dataset)


def is_begun(folder: Path) -> bool:
    """Whether there is something to resume. A process that was killed early may leave nothing but what it had begun to
    write under another name."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return folder.is_file() or not all(re.match(r"\..*\.unfinished-", name) for name in names)


def refuse_run(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that a new run must not be written to."""
    if (folder / "config.json").exists() and not (folder / MANIFEST).exists() and not overwrite:
        raise UsageError(
            f"{folder} holds an unfinished run. Continue it with `resume=True`, or start again with `overwrite=True`."
        )
    refuse_existing(folder, "config.json", overwrite=overwrite)


def clear_run(folder: Path, *, overwrite: bool) -> None:
    """Make room for a new run if that is allowed. The folder itself stays, because it may be locked."""
    left = list(folder.iterdir()) if folder.is_dir() else []
    if left or folder.is_file():
        refuse_run(folder, overwrite=overwrite)
    for path in left:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
