"""Every run once, told by what decides its outcome and by nothing else."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from bert4rec.paper.experiments import figure3, figure4, table3, table4
from bert4rec.paper.experiments.cases import (
    BERT4REC,
    PAPER_NAMES,
    PLUS,
    QUICK,
    SMALL_DEFAULT,
    Case,
    DatasetFacts,
    family_of,
)
from bert4rec.paper.experiments.index import EXPERIMENTS, complete
from bert4rec.paper.runs.jobs import Job, make_jobs, mark_of
from bert4rec.settings.objectives import Cloze
from bert4rec.tasks.cloze import MaskedItems
from tests.conftest import MakeDataset
from tests.paper.fake import facts_of
from tests.paper.tiny import pretended_job


def run_of(case: Case, name: str) -> str:
    return Job(Path(), facts_of(name), case, 1).mark


@pytest.mark.parametrize("family", PAPER_NAMES)
@pytest.mark.parametrize("quick", [False, True])
def test_every_case_has_sound_settings_on_every_data_set(family: str, quick: bool) -> None:
    facts = DatasetFacts(family, "", "leave-one-out", family)
    for experiment in EXPERIMENTS.values():
        for case in experiment.cases(facts):
            config = case.config(family, quick=quick)
            if quick and config.training:
                assert f"training.steps={config.training.steps}" in QUICK


@pytest.mark.parametrize("name", ["ml-1m", "beauty"])
def test_runs_that_several_experiments_need_are_the_same_run(name: str) -> None:
    facts = facts_of(name)
    default = run_of(SMALL_DEFAULT, name)
    rho, length = {"ml-1m": (0.2, 200), "beauty": (0.6, 50)}[name]
    assert run_of(figure3.width_case("bert4rec", 64, name), name) == default
    assert run_of(figure4.share_cases()[rho], name) == default
    assert run_of(table4.length_cases(facts)[length], name) == default
    assert run_of(figure3.width_case("bert4rec", 256, name), name) == run_of(BERT4REC, name)
    assert run_of(table3.CLOZE, name) == run_of(BERT4REC, name)


def test_whoever_comes_first_measures_for_all() -> None:
    facts = facts_of("beauty")
    (only,) = complete([figure3.width_case("bert4rec", 256, "beauty")], facts)
    assert only.case.measures == ("attention", "selection")
    assert only.required == ()
    (only,) = complete(EXPERIMENTS["figure2"].cases(facts), facts)
    assert only.required == ("attention",)


def test_jobs_go_seed_by_seed_and_none_twice(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([[1, 2, 3, 4, 5, 6]] * 3)
    jobs = make_jobs(list(EXPERIMENTS.values()), [dataset], None, quick=False)
    assert len({job.mark for job in jobs}) == len(jobs)
    trained = [job for job in jobs if job.case.task == "train"]
    assert all(one.seed <= other.seed for one, other in pairwise(trained))
    table2 = make_jobs([EXPERIMENTS["table2"]], [dataset], (7, 8), quick=False)
    assert {job.seed for job in table2} == {7, 8}
    assert len(table2) == 24


def test_a_run_is_told_by_data_settings_seed_and_variant_not_by_its_label() -> None:
    job = pretended_job()
    others = [
        replace(job, seed=2),
        replace(job, quick=True),
        replace(job, facts=replace(job.facts, checksum="4567")),
        replace(job, case=replace(job.case, variant="without norm")),
        replace(job, case=replace(job.case, settings=("model.dim=8",))),
        replace(job, case=replace(job.case, task="speed")),
    ]
    assert len({each.mark for each in (job, *others)}) == len(others) + 1
    assert replace(job, case=replace(job.case, label="another")).mark == job.mark


def test_a_job_reads_itself_back() -> None:
    case = Case("x", "sasrec", ("model.dim=8",), preset="-softmax", measures=("selection",))
    job = Job(Path("some where"), facts_of("beauty"), case, 3, quick=True, required=("selection",))
    assert Job.from_json(job.to_json()) == job


def test_a_job_is_done_when_all_that_is_asked_for_is_there() -> None:
    job = replace(pretended_job(), required=("attention", "selection"))
    result, attention = mark_of(job.identity()), mark_of(job.identity(kind="attention"))
    selection = mark_of(job.identity(stage="selection"))
    assert not job.is_done({result, attention})
    assert job.is_done({result, attention, selection})
    assert replace(job, required=()).is_done({result})
    assert job.is_done({mark_of(job.identity(kind="failure"))})


def test_other_ways_of_asking_are_lines_of_their_own_and_measured_whoever_trains_the_run() -> None:
    (only,) = complete([PLUS], facts_of("beauty"))
    assert (only.case.measures, only.required) == (("asked", "selection"), ())
    job = Job(Path(), facts_of("beauty"), only.case, 1, required=("asked",))
    asked = {mark_of(job.identity(variant=f"asked by {way}")) for way in ("mask", "last", "both")}
    assert job.wanted == {job.mark, *asked}
    assert len(job.wanted) == 4
    by_mask = replace(job, case=replace(job.case, settings=("model.ask=mask",)))
    assert by_mask.wanted > {mark_of(by_mask.identity(variant="asked by both"))}
    assert not by_mask.wanted & job.wanted, "a model that was selected by [mask] has other weights"


def test_one_mask_is_exactly_one() -> None:
    for name in ("ml-1m", "beauty"):
        objective = table3.ONE.config(name).objective
        assert isinstance(objective, Cloze)
        hiding = MaskedItems(objective, mask_number=9)
        length = torch.arange(2, 401).repeat(20)
        samples = hiding.draw(torch.zeros_like(length), length, torch.Generator().manual_seed(0))
        assert (samples.num_targets == 1).all()


def test_presets_are_those_of_the_data_set_or_of_one_like_it(make_dataset: MakeDataset) -> None:
    short, long = make_dataset([[1, 2, 3, 4, 5, 6]] * 3), make_dataset([list(range(60))] * 3)
    assert (family_of(short), family_of(long)) == ("beauty", "ml-1m")
    source = {**short.manifest, "source": {"name": "steam"}}
    assert family_of(replace(short, manifest=source)) == "steam"
    assert family_of(replace(short, manifest={**short.manifest, "name": "synthetic-ml-20m"})) == "ml-20m"
