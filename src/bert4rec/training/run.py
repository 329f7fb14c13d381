"""A run on disk: the settings it was started with, its weights, what it scored, and how to read them again.

config.json              written first: settings, seed, split, checksums of the data
resume-STAGE.safetensors while a stage is being trained, and never afterwards
selection.safetensors    the best weights on the validation items; they never saw those
model.safetensors        the final weights: refitted on all but the test items, unless told not to
progress.jsonl           loss and validation, step by step
ranks-PART-PROTOCOL.npy  the rank of every target: comparisons need them user by user
result.json              the metrics
items.parquet            item number ↔ id and title
run.json                 written last: size and checksum of everything else
"""

import json
import shlex
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from bert4rec.artefact import read_manifest, verify_files, write_manifest, write_text
from bert4rec.data.dataset import Dataset, Repeats
from bert4rec.data.splits import Part, SplitSpec
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.evaluation.judge import has_ranks, load_ranks, save_ranks
from bert4rec.evaluation.protocol import Ranks, Scorer
from bert4rec.models.model import SequentialModel, make_scorer
from bert4rec.training.checkpoint import load_tensors
from bert4rec.training.config import RunConfig, make_config
from bert4rec.training.device import Placement
from bert4rec.training.specs import MODELS

MANIFEST = "run.json"
SCHEMA = 1
Stage = Literal["selection", "refit"]


@dataclass(frozen=True)
class Plan:
    """What a run is asked to do. Written to config.json before anything else happens."""

    dataset: str
    """Where the dataset was; it may have moved since, `data_checksum` tells it again."""
    dataset_name: str
    data_checksum: str
    candidates_checksum: str
    """Of the stored negatives: runs that met other candidates cannot be compared."""
    num_users: int
    num_items: int
    model: str
    """A name of `models.MODELS`."""
    config: RunConfig
    preset: str | None
    seed: int
    split: SplitSpec
    repeats: Repeats = "exclude"
    """Whether the model is asked about, and recommends, items of a history again: as the dataset has it."""
    refit: bool = True
    """Whether to train again on all but the test items once the number of steps is chosen."""
    test: bool = True
    """Whether to look at the test items in the end; not while settings are still being chosen."""
    variant: str = ""
    """What was changed in the model's code, where an experiment did so; see `train`."""

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
        refit: bool = True,
        test: bool = True,
        variant: str = "",
    ) -> "Plan":
        """A plan for this dataset, cut as it was prepared unless `split` says otherwise."""
        return cls(
            dataset=str(dataset.folder.absolute()),
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
            refit=refit and test,
            test=test,
            variant=variant,
        )

    def check_dataset(self, dataset: Dataset) -> None:
        """Refuse to go on with, or to judge on, other data than the run was made for."""
        if dataset.checksum != self.data_checksum:
            raise DataError(
                f"The run was made for {self.dataset_name} with checksum {self.data_checksum}, "
                f"but {dataset.path} has {dataset.checksum}."
            )
        if dataset.candidates_checksum() != self.candidates_checksum:
            raise DataError(f"{dataset.path} holds other stored candidates than the run was made with.")

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "config": self.config.as_dict()}

    def save(self, folder: Path) -> None:
        write_text(
            folder / "config.json",
            json.dumps({"format": "bert4rec run", "schema": SCHEMA, **self.as_dict()}, indent=2),
        )

    @classmethod
    def load(cls, folder: Path) -> "Plan":
        path = folder / "config.json"
        if not path.is_file():
            raise NotFoundError(f"{folder} has no config.json: this is not a run of bert4rec.")
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            config, split = (
                make_config(values["model"], values.pop("config")),
                SplitSpec(**values.pop("split")),
            )
            del values["format"], values["schema"]
            return cls(**values, config=config, split=split)
        except (AttributeError, ValueError, KeyError, TypeError, UsageError) as error:
            raise DataError(f"{path} is damaged or of another version ({error}).") from error


@dataclass(frozen=True)
class Run:
    """A finished run."""

    path: Path
    plan: Plan
    manifest: dict[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        folder = Path(path)
        if (folder / "config.json").is_file() and not (folder / MANIFEST).is_file():
            dataset = Plan.load(folder).dataset
            command = shlex.join(["bert4rec", "train", dataset, "-o", str(folder), "--resume"])
            raise DataError(f"{folder} is unfinished. Go on with: {command}")
        manifest = read_manifest(folder, MANIFEST, kind="run", schema=SCHEMA)
        return cls(folder, Plan.load(folder), manifest)

    @cached_property
    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "result.json").read_text(encoding="utf-8")))

    @property
    def final_stage(self) -> Stage:
        return "refit" if self.plan.refit else "selection"

    def verify(self) -> None:
        verify_files(self.path, self.manifest)

    def stage_for(self, part: Part) -> Stage:
        """The model that has not seen the targets of this part."""
        return "selection" if part == "valid" else self.final_stage

    def keep_ranks(self, part: Part, ranks: Ranks) -> None:
        """Add the ranks of a part that was not judged before; what the run found is never replaced.

        Unless it was asked about other targets, before repeats were told apart.
        """
        if not has_ranks(self.path, part) or len(load_ranks(self.path, part).full) != len(ranks.full):
            save_ranks(self.path, part, ranks)
            write_manifest(self.path, MANIFEST, {"format": "bert4rec run", "schema": SCHEMA})

    def load_model(self, part: Part, device: torch.device) -> SequentialModel:
        """The model to be judged on `part`, ready to score."""
        if self.plan.variant:
            raise UsageError(
                f"{self.path} holds a variant of {self.plan.model}, for study only: {self.plan.variant}."
            )
        name = "selection.safetensors" if part == "valid" else "model.safetensors"
        tensors, _ = load_tensors(self.path / name)
        plan = self.plan
        model = MODELS[plan.model].build(plan.num_users, plan.num_items, plan.config.model)
        model.load_state_dict(tensors)
        return model.to(device).eval()

    def scorer(self, part: Part, placement: Placement) -> Scorer:
        """The model to be judged on `part`, as evaluation wants it."""
        model = self.load_model(part, placement.device)
        return make_scorer(model, placement.dtype)
