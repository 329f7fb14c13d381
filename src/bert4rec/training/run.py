"""A run on disk: what it was asked to do, its weights and its results, and how to use them.

config.json              written first: settings, seed, split, checksums of the data
resume-STAGE.safetensors while a stage is being trained, and never afterwards
selection.safetensors    the best weights on the validation items; they never saw those
model.safetensors        the weights that are tested: refitted on all but the test items, unless `refit=False`
production.safetensors   with `refit="all"` the final weights, trained on everything; otherwise the above are
progress.jsonl           loss and validation, step by step
ranks-PART-PROTOCOL.npy  the rank of every target: comparisons need them user by user
result.json              the metrics, and what the final weights have seen
items.parquet            item number ↔ id and title
run.json                 written last: size and checksum of everything else

Opening a run and reading its results needs no torch; asking its model does.
"""

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bert4rec.artefact import read_manifest, refuse_existing, verify_file, verify_files, write_manifest
from bert4rec.data.dataset import Dataset
from bert4rec.data.negatives import NegativeKind
from bert4rec.data.splits import PARTS, Part, TargetKind, make_split
from bert4rec.data.trained import Trained
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.evaluation.judge import (
    Evaluation,
    Metrics,
    UserRanks,
    has_ranks,
    load_ranks,
    metrics_of,
    save_ranks,
)
from bert4rec.evaluation.protocol import Ranks, Scorer
from bert4rec.extras import require_exporters, require_torch
from bert4rec.training.plan import MANIFEST, SCHEMA, Plan, Stage, open_dataset
from bert4rec.training.reporting.progress_log import ProgressLog, TrainingHistory

if TYPE_CHECKING:
    import torch

    from bert4rec.export.verify import ExportCheck
    from bert4rec.models.model import SequentialModel
    from bert4rec.training.device import Placement
    from bert4rec.training.reporting.watch import Callback, Listener, Track

__all__ = ["MANIFEST", "SCHEMA", "Plan", "Run", "Stage", "Weights"]

Weights = Literal["selection", "tested", "final"]
"""`selection`: the best weights on the validation items. `tested`: those that the test items are ranked by. `final`:
those that recommend; the same as the tested ones, unless the run was trained for production."""


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run: its settings, its results, its model."""

    path: Path
    """Folder of the run."""
    plan: Plan
    """What the run was asked to do."""
    manifest: dict[str, Any]
    trained_on: Dataset | None = field(default=None, compare=False)
    """The dataset, if it is at hand; see `dataset`."""
    keeper: object = field(default=None, compare=False)
    """Keeps a temporary folder for as long as the run is used."""

    def __repr__(self) -> str:
        part: Part = "test" if self.plan.test else "valid"
        with suppress(OSError, KeyError):  # A folder that was removed must not break a traceback.
            found = (f"{each['NDCG@10']:.4f} {protocol}" for protocol, each in self.metrics[part].items())
            return f"<{self._title}, {part} NDCG@10 {', '.join(found)}>"
        return f"<{self._title}>"

    @property
    def _title(self) -> str:
        where = "" if self.keeper else f" {str(self.path)!r}"
        return f"Run{where}: {self.plan.model} on {self.plan.dataset_name}"

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """Open a finished run.

        Parameters
        ----------
        path
            A folder that `bert4rec.train` wrote.
        """
        folder = Path(path)
        if (folder / "config.json").is_file() and not (folder / MANIFEST).is_file():
            dataset = Plan.load(folder).dataset
            given = f"{dataset!r}, {str(folder)!r}" if dataset else "..."
            raise DataError(f"{folder} is unfinished. Continue it with `train({given}, resume=True)`.")
        manifest = read_manifest(folder, MANIFEST, kind="run", schema=SCHEMA)
        verify_file(folder, manifest, "config.json")
        return cls(folder, Plan.load(folder), manifest)

    @property
    def model(self) -> str:
        """Name of the model, such as bert4rec."""
        return self.plan.model

    @cached_property
    def result(self) -> dict[str, Any]:
        """All that was recorded when the run was finished: a line for each evaluated part."""
        return dict(json.loads((self.path / "result.json").read_text(encoding="utf-8")))

    @property
    def metrics(self) -> dict[str, Metrics]:
        """The metrics as recorded: part → protocol → metric, such as `metrics["test"]["full"]["NDCG@10"]`.

        A run that was made with `test=False` has no "test" until you call `evaluate("test")`.
        """
        recorded = {line["split"]: line["metrics"] for line in self.result["lines"]}
        later = [part for part in PARTS if part not in recorded and has_ranks(self.path, part)]
        return recorded | {part: metrics_of(load_ranks(self.path, part)) for part in later}

    @property
    def history(self) -> TrainingHistory:
        """The validations, as a table: step, loss and the metric that selects, on the validation items."""
        return TrainingHistory(ProgressLog(self.path).entries())

    @property
    def notes(self) -> list[str]:
        """What to know of the training: items it never saw, whether it collapsed, how it stands beside counting, and
        what to try next."""
        return [*self._seen.get("notes", []), *self.result.get("notes", [])]

    @property
    def trained(self) -> Trained | None:
        """What the final weights were trained on, and until when; None for runs of earlier versions."""
        return Trained(**self._seen["trained"]) if self._seen else None

    @property
    def untrained(self) -> list[int]:
        """Numbers of the items that the final weights were never trained on: the model does not know them."""
        return list(self._seen.get("untrained", []))

    @property
    def _seen(self) -> dict[str, Any]:
        return dict(self.result.get("seen", {}))

    @property
    def dataset(self) -> Dataset:
        """The dataset that the run was trained on."""
        return self.dataset_for()

    def dataset_for(self, dataset: Dataset | str | Path | None = None) -> Dataset:
        """The dataset that the run was trained on: `dataset` if given, or from where it was. Other data is refused."""
        if dataset is None:
            dataset = self.trained_on or self._find_dataset()
        opened = open_dataset(dataset)
        self.plan.check_dataset(opened)
        return opened

    def verified_dataset(self, dataset: Dataset | str | Path | None = None) -> Dataset:
        """As `dataset_for`, once every file of it is what was written."""
        data = self.dataset_for(dataset)
        if data.path:
            data.verify()
        return data

    def _find_dataset(self) -> Path:
        if not self.plan.dataset:
            raise NotFoundError(f"{self.path} was trained on a dataset in memory. Pass it as `dataset`.")
        path = Path(self.plan.dataset)
        if not path.is_dir():
            raise NotFoundError(f"The dataset was not found at {path}. Pass `dataset`.")
        return path

    def verify(self) -> None:
        """Hash every file; raises DataError naming the first that was changed."""
        verify_files(self.path, self.manifest)

    @property
    def final_stage(self) -> Stage:
        """Which stage the final weights come from."""
        return self.plan.final_stage

    def ranks(self, split: Part = "test") -> UserRanks:
        """The rank of every user's target, as recorded.

        Parameters
        ----------
        split
            "test" or "valid".
        """
        found = load_ranks(self.path, split)
        try:
            dataset = self.dataset_for()
        except (NotFoundError, DataError):
            return UserRanks(None, found.sampled, found.full)
        targets = make_split(dataset, self.plan.split).targets(split)
        # Old runs do not distinguish repeats, and may have been evaluated on other users.
        users = dataset.users()["id"].gather(targets.users) if len(targets) == len(found.full) else None
        return UserRanks(users, found.sampled, found.full)

    def evaluate(
        self,
        split: Part = "test",
        k: int | Iterable[int] = (1, 5, 10),
        *,
        targets: TargetKind = "next",
        dataset: Dataset | str | Path | None = None,
        negatives: NegativeKind = "popularity",
        device: str = "auto",
        progress: bool | None = None,
    ) -> Evaluation:
        """Evaluate the run beside POP and a Markov chain, by protocol and by slices, and the lists that it gives.

        Validation items are ranked by the weights that never saw them, test items by those of the refit. If a part is
        evaluated for the first time, its ranks are kept in the run's folder, if that can be written to, and
        `run.metrics` shows it.

        Parameters
        ----------
        split
            Which held-out items to evaluate on: "test" or "valid".
        k
            Cut-offs of the metrics: one or several.
        targets
            "next": one item a user, under both protocols. "all": with a split by time, everything that users do in
            the part, each item once and in no order; in full ranking, with recall and precision. Nothing is kept.
        dataset
            The dataset, if it has moved since the training.
        negatives
            Which stored candidates the sampled protocol uses; ranks are kept for "popularity" only.
        device
            "auto", "cpu", "cuda", "cuda:1" or "mps".
        progress
            Whether to show a progress bar; None shows one in notebooks.
        """
        require_torch()
        from bert4rec.training.reporting.run_evaluation import evaluate_run

        return evaluate_run(
            self,
            split,
            k,
            targets=targets,
            dataset=dataset,
            negatives=negatives,
            device=device,
            progress=progress,
        )

    def keep_ranks(self, part: Part, ranks: Ranks) -> None:
        """Add the ranks of a part that was not evaluated before; what the run found is never replaced.

        The exception are old runs, which did not distinguish repeats and were evaluated on other users.
        """
        if not has_ranks(self.path, part) or len(load_ranks(self.path, part).full) != len(ranks.full):
            save_ranks(self.path, part, ranks)
            write_manifest(self.path, MANIFEST, {"format": "bert4rec run", "schema": SCHEMA})

    def file_of(self, weights: Weights) -> str:
        """In which file of the run one of its sets of weights is."""
        if weights == "final" and self.plan.refit == "all":
            return "production.safetensors"
        return "selection.safetensors" if weights == "selection" else "model.safetensors"

    def load_model(self, weights: Weights, device: "torch.device") -> "SequentialModel":
        """The model with one of its sets of weights, ready to score."""
        require_torch()
        from bert4rec.training.checkpoint import load_tensors
        from bert4rec.training.specs import MODELS

        plan = self.plan
        if plan.variant:
            raise UsageError(f"{self.path} holds a variant of {plan.model}, for study only: {plan.variant}.")
        tensors, state = load_tensors(self.path / self.file_of(weights))
        model = MODELS[plan.model].build(plan.num_users, plan.num_items, plan.config.model)
        model.load_state_dict(tensors)
        model.way_to_ask = next(iter(state.get("asked", {})), None)
        return model.to(device).eval()

    def scorer(self, weights: Weights, placement: "Placement") -> Scorer:
        """The model with one of its sets of weights, as evaluation uses it."""
        from bert4rec.models.model import make_scorer

        return make_scorer(self.load_model(weights, placement.device), placement.dtype)

    def refit(
        self,
        folder: str | Path | None = None,
        *,
        all: bool = False,  # noqa: A002 (the public name)
        dataset: Dataset | str | Path | None = None,
        device: str = "auto",
        compile: bool = True,  # noqa: A002 (the public name)
        overwrite: bool = False,
        results: str | Path | None = None,
        track: "Track | None" = None,
        progress: bool | None = None,
        callback: "Callback | None" = None,
        listener: "Listener | None" = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> "Run":
        """Finish what `test=False` or `refit=False` left out: train on all but the test items, then test once.

        Settings, seed and data are those of this run, and its selection is reused: the result is the same as that of
        `train(..., refit=True, test=True)`. What is there already is reused, so the test items are looked at once.

        Parameters
        ----------
        folder
            Folder of the new run; None keeps it in a temporary folder for as long as the new run is used.
        all
            Then train on everything, for production: the result is that of `train(..., refit="all")`.
        dataset
            The dataset, if it has moved since the training.
        device, compile, overwrite, results, track, progress, callback, listener, should_stop
            As in `bert4rec.train`.
        """
        from bert4rec.training.launch import refit_run

        return refit_run(
            self,
            folder,
            for_production=all,
            dataset=self.dataset_for(dataset),
            device=device,
            compile_step=compile,
            overwrite=overwrite,
            results=results,
            track=track,
            progress=progress,
            callback=callback,
            listener=listener,
            should_stop=should_stop,
        )

    def export(
        self,
        folder: str | Path,
        *,
        int8: bool = False,
        approximate: bool = False,
        verify: bool = False,
        samples: bool = False,
        dataset: Dataset | str | Path | None = None,
        overwrite: bool = False,
        force: bool = False,
        callback: "Callable[[ExportCheck], object] | None" = None,
    ) -> Path:
        """Write the final model as a folder that is served, and recommends, without torch.

        That is the one that was trained on everything, if the run was trained with `refit="all"`.

        Parameters
        ----------
        folder
            Folder of the model.
        int8
            Store and multiply the encoder's matrices as whole numbers: faster, a little less exact. Always verified,
            and refused if it costs more than 1% of NDCG@10.
        approximate
            Of 500,000 items and more: also write an index for approximate search, and how much it finds: `recall`.
        verify
            Evaluate the exported model beside the run on the validation items, and refuse it if it is worse.
        samples
            Also write the histories of a few users, so that the service's page can show them. Everybody who may use
            the service will see them.
        dataset
            The dataset to verify on and to take samples from, if it has moved since the training.
        overwrite
            Replace the folder if it exists.
        force
            Export a model even if it recommends the same to everybody.
        callback
            Hears how the exported model compares with the run, if it is verified.
        """
        require_torch()
        require_exporters()
        from bert4rec.export.build_index import check_index
        from bert4rec.export.exporter import check_exportable, export_run
        from bert4rec.export.verify import refuse_worse
        from bert4rec.recommend.onnx_engine import MANIFEST as MODEL_MANIFEST
        from bert4rec.training.specs import MODELS

        target, spec = Path(folder), MODELS[self.plan.model]
        refuse_existing(target, MODEL_MANIFEST, overwrite=overwrite)
        check_exportable(spec.network, spec.title)
        if approximate:
            check_index(self.plan.num_items)
        self.verify()
        if verify or int8:
            refuse_worse(self, self.verified_dataset(dataset), int8=int8, callback=callback)
        wanted = {"int8": int8, "approximate": approximate, "overwrite": overwrite, "force": force}
        export_run(self, target, sampled_from=self.dataset_for(dataset) if samples else None, **wanted)
        return target
