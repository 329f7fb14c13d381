"""The results in results/ still stand: they are what their ranks say, of the data that `prepare` makes today."""

from pathlib import Path

import pytest

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import make_split
from bert4rec.evaluation.judge import judge
from bert4rec.evaluation.metrics import summarise
from bert4rec.models.model import make_scorer
from bert4rec.models.pop import Pop
from bert4rec.settings.networks import PopConfig
from bert4rec.training.reporting.results import read_ranks, read_results
from tests.cli.test_data_commands import bert4rec

RESULTS = Path(__file__).parents[2] / "results"
LINES = [line for line in read_results(RESULTS) if "metrics" in line and not line.get("kind")]


def test_every_result_is_what_its_ranks_say() -> None:
    judged = 0
    for line in LINES:
        if ranks := read_ranks(RESULTS, line):
            judged += 1
            for protocol, found in vars(ranks).items():
                assert summarise(found) == pytest.approx(line["metrics"][protocol], abs=1e-12)
    assert judged > 100


@pytest.mark.parametrize("name", ["ml-1m", "beauty"])
def test_the_data_and_candidates_are_those_that_are_made_today_and_pop_ranks_them_the_same(
    real_data: Path, tmp_path: Path, name: str
) -> None:
    """POP only counts, so its ranks are equal on every machine: a change of candidates or ranking would show."""
    assert (
        bert4rec(
            "prepare", name, "--from", real_data / name / f"{name}.txt.gz", "-o", tmp_path / "d"
        ).returncode
        == 0
    )
    dataset = Dataset.open(tmp_path / "d")
    lines = [line for line in LINES if line["dataset"] == name]
    of_today = dataset.checksum, dataset.candidates_checksum()
    assert {(line["data_checksum"], line["candidates_checksum"]) for line in lines} == {of_today}
    split = make_split(dataset)
    pop = Pop.fit(dataset, split.training_end("test"), PopConfig("training"))
    found = judge(make_scorer(pop), dataset, split, "test")
    committed = next(
        line
        for line in lines
        if line["model"] == "pop" and line["preset"] == name and line["split"] == "test"
    )
    ranks = read_ranks(RESULTS, committed)
    assert ranks is not None
    assert found.sampled.tolist() == ranks.sampled.tolist()
    assert found.full.tolist() == ranks.full.tolist()
