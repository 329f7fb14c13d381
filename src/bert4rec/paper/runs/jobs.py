"""One piece of work for the runner: a case, a data set and a seed; and how its results are recognised."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bert4rec.data.dataset import Dataset
from bert4rec.paper.experiments.cases import Case, DatasetFacts, Experiment, Measure
from bert4rec.paper.experiments.index import complete
from bert4rec.training.plan import Plan, select_by_of
from bert4rec.training.reporting.code_mark import code_checksum
from bert4rec.training.reporting.results import key_of


def mark_of(line: Mapping[str, Any]) -> str:
    """What a line of results is about: equal for equal data, settings, seed and code, on any machine."""
    return f"{line.get('kind', 'result')} {key_of(line)}"


@dataclass(frozen=True)
class Job:
    """What a worker has to do."""

    path: Path
    """Of the dataset."""
    facts: DatasetFacts
    case: Case
    seed: int
    quick: bool = False
    required: tuple[Measure, ...] = ()
    """The measures that must be there for the job to be done."""

    @property
    def label(self) -> str:
        task = "speed of " if self.case.task == "speed" else ""
        variant = f", {self.case.variant}" if self.case.variant else ""
        return f"{self.facts.name}: {task}{self.case.model} {self.case.label}{variant}, seed {self.seed}"

    def plan(self, dataset: Dataset) -> Plan:
        return Plan.for_dataset(
            dataset,
            self.case.model,
            self.case.config(self.facts.family, quick=self.quick),
            preset=self.case.preset_for(self.facts.family),
            seed=self.seed,
            split=None,
            variant=self.case.variant,
        )

    def identity(self, *, kind: str = "result", stage: str = "refit", variant: str = "") -> dict[str, Any]:
        """The fields by which a line of results is recognised."""
        return {
            "kind": kind,
            **self.facts.identity,
            "model": self.case.model,
            "variant": variant or self.case.variant,
            "config": self.case.config(self.facts.family, quick=self.quick).as_recorded(),
            "seed": self.seed,
            "stage": stage,
            "split": "test",
            "select_by": select_by_of(self.case.model),
            "versions": {"code": code_checksum()},
        }

    @property
    def mark(self) -> str:
        """The mark of its main result."""
        return mark_of(self.identity(kind="speed" if self.case.task == "speed" else "result"))

    @property
    def wanted(self) -> set[str]:
        """The marks of the lines that must be there for the job to be done."""
        measured = [
            mark_of(self.identity(**fields))
            for measure in self.required
            for fields in self.case.measured_lines(measure)
        ]
        return {self.mark, *measured}

    def is_done(self, marks: set[str]) -> bool:
        """Whether all its lines are among the results, or the same code failed at it before."""
        return self.wanted <= marks or mark_of(self.identity(kind="failure")) in marks

    @property
    def folder_name(self) -> str:
        """The run's folder while it is being trained."""
        return self.mark.replace(" ", "-")

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "path": str(self.path)})

    @classmethod
    def from_json(cls, text: str) -> "Job":
        values = json.loads(text)
        return cls(
            Path(values["path"]),
            DatasetFacts(**values["facts"]),
            Case(**_with_tuples(values["case"])),
            values["seed"],
            values["quick"],
            tuple(values["required"]),
        )


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has only lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def make_jobs(
    experiments: list[Experiment], datasets: list[Dataset], seeds: tuple[int, ...] | None, *, quick: bool
) -> list[Job]:
    """Everything the experiments need, each run once; seed by seed, so that first results of everything come early."""
    jobs: dict[str, Job] = {}
    rounds = sorted({seed for each in experiments for seed in seeds or each.seeds})
    for seed in rounds:
        wanted = [each for each in experiments if seed in (seeds or each.seeds)]
        for dataset in datasets:
            facts = DatasetFacts.of(dataset)
            for run in complete([case for each in wanted for case in each.cases(facts)], facts):
                its_seed = 1 if run.case.task == "speed" else seed
                job = Job(dataset.folder.absolute(), facts, run.case, its_seed, quick, run.required)
                jobs.setdefault(job.mark, job)
    return list(jobs.values())
