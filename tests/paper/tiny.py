"""Jobs small enough to be done in a blink."""

from dataclasses import replace
from pathlib import Path

from bert4rec.data.dataset import Dataset
from bert4rec.paper.experiments.cases import Case, DatasetFacts
from bert4rec.paper.runs.jobs import Job

TINY = (
    "model.dim=16",
    "model.heads=2",
    "model.max_length=12",
    "training.batch_size=8",
    "training.steps=8",
    "training.validate_every=4",
)


def tiny_case(label: str = "tiny", model: str = "bert4rec", *settings: str, **more: object) -> Case:
    return replace(Case(label, model, (*TINY, *settings)), **more)  # type: ignore[arg-type]


def tiny_job(dataset: Dataset, case: Case | None = None, seed: int = 1) -> Job:
    case = case or tiny_case()
    return Job(dataset.path, DatasetFacts.of(dataset), case, seed, required=case.measures)


FACTS = DatasetFacts("beauty", "0123", "leave-one-out", "beauty")


def pretended_job(label: str = "some case", *, seed: int = 1, task: str = "train") -> Job:
    """A job that nobody will really do."""
    case = Case(label, "bert4rec", task=task)  # type: ignore[arg-type]
    return Job(Path("nowhere"), FACTS, case, seed)
