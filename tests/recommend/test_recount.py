"""Evaluation asks what `recommend` is asked: counted again from recommendations, the metrics are the same."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bert4rec.cli.recommend_command import recommend_command
from bert4rec.data.dataset import Dataset, Repeats
from bert4rec.data.filters import Filters
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.data.splits import make_split
from bert4rec.evaluation.metrics import summarise
from bert4rec.export.exporter import export_run
from bert4rec.recommend.bulk import Request, recommend_file
from bert4rec.recommend.catalogue import Id
from bert4rec.recommend.recommender import Recommender
from bert4rec.recommend.rules.rules import Rules
from bert4rec.service.app import create_app
from bert4rec.training.run import Run
from tests.conftest import MakeDataset, log_of
from tests.service.application import TestClient, settings_for
from tests.training.tiny import train_tiny

USERS, ITEMS, LENGTH = 120, 40, 14
RNG = np.random.default_rng(3)
FAVOURITES = [RNG.choice(RNG.choice(ITEMS, 5, replace=False), LENGTH).tolist() for _ in range(USERS)]
"""Everybody plays five favourites at random."""
NEVER_AGAIN = [RNG.permutation(ITEMS)[:LENGTH].tolist() for _ in range(USERS)]
SOME_AGAIN = [
    [*history[:-1], history[0]] if user % 3 else history for user, history in enumerate(NEVER_AGAIN)
]
"""Two of three test items were in the history."""
Recount = Callable[[Path, Dataset], list[list[Id]]]


def answers_one_by_one(model: Path, dataset: Dataset) -> list[list[Id]]:
    """Everybody's recommendations, all of them, with whatever `recommend` does where nothing is said."""
    recommender = load(model)
    return [
        [item.item_id for item in recommender.recommend(asked, ITEMS).items] for asked in questions(dataset)
    ]


def load(model: Path) -> Recommender:
    """From some of these histories nothing can be learned but one order of items for everybody."""
    return Recommender.load(model, force=model.name == "model")


def answers_from_a_file(model: Path, dataset: Dataset) -> list[list[Id]]:
    asked = pl.DataFrame({"user": range(len(questions(dataset))), "items": questions(dataset)})
    source, target = (
        model.parent / f"{model.name}-users.parquet",
        model.parent / f"{model.name}-answers.parquet",
    )
    asked.write_parquet(source)
    recommend_file(load(model), Request(source, target, Rules(k=ITEMS)), overwrite=True)
    found = pl.read_parquet(target).group_by("user", maintain_order=True).agg("item")
    return found["item"].to_list()


def questions(dataset: Dataset) -> list[list[Id]]:
    targets, ids = make_split(dataset).test, dataset.items()["id"].to_list()
    return [
        [ids[number - 1] for number in dataset.sequences[dataset.offsets[user] : position]]
        for user, position in zip(targets.users, targets.positions, strict=True)
    ]


@dataclass(frozen=True)
class Case:
    """Histories, and how they are judged where nobody says whether repeats are kept."""

    histories: list[list[int]]
    rule: Repeats
    judged: int


CASES = {
    "never again": Case(NEVER_AGAIN, "exclude", USERS),
    "some again": Case(SOME_AGAIN, "exclude", USERS // 3),
    "favourites": Case(FAVOURITES, "keep", USERS),
}


@pytest.fixture(scope="module", params=CASES)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Case, Dataset, Run]:
    """A run, and beside it the model that was exported from it."""
    case, folder = CASES[request.param], tmp_path_factory.mktemp("recount")
    recipe = Recipe(Filters(min_user_actions=1), num_negatives=5)
    dataset = prepare(log_of(case.histories), folder / "dataset", name="recounted", recipe=recipe)
    run = train_tiny(dataset, folder / "run", "training.steps=60", "model.layers=1")
    export_run(run, folder / "model", force=True)
    return case, dataset, run


@pytest.mark.parametrize("model", ["run", "model"])
@pytest.mark.parametrize("recount", [answers_one_by_one, answers_from_a_file])
def test_metrics_counted_through_recommend_are_those_of_the_evaluation(
    trained: tuple[Case, Dataset, Run], recount: Recount, model: str
) -> None:
    case, dataset, run = trained
    targets, ids = make_split(dataset).test, dataset.items()["id"].to_list()
    answers = [ids[number - 1] for number in dataset.sequences[targets.positions]]
    found = recount(run.path.parent / model, dataset)
    ranks = [recommended.index(answer) for recommended, answer in zip(found, answers, strict=True)]
    assert (dataset.repeats, len(ranks)) == (case.rule, case.judged)
    assert summarise(np.array(ranks, np.int32)) == pytest.approx(run.result["lines"][-1]["metrics"]["full"])


@pytest.mark.parametrize("exclude_seen", [None, True, False])
def test_the_service_leaves_out_what_was_seen_unless_repeats_are_kept_or_the_request_says_otherwise(
    trained: tuple[Case, Dataset, Run], tmp_path: Path, exclude_seen: bool | None
) -> None:
    case, dataset, run = trained
    asked = {} if exclude_seen is None else {"exclude_seen": exclude_seen}
    with TestClient(create_app(settings_for(run.path.parent / "model", tmp_path, force=True))) as client:
        answer = client.post(
            "/v1/recommend", json={"history": questions(dataset)[0], "k": ITEMS, **asked}
        ).json()
        (model,) = client.get("/v1/models").json()["models"]
    leaves_out = (case.rule == "exclude") if exclude_seen is None else exclude_seen
    seen = set(questions(dataset)[0])
    assert seen.isdisjoint(item["item_id"] for item in answer["items"]) == leaves_out
    assert model["exclude_seen"] == (case.rule == "exclude")


@pytest.mark.parametrize(("exclude_seen", "left"), [(None, ITEMS), (True, ITEMS - 5)])
def test_models_that_know_only_their_users_obey_the_data_too(
    make_dataset: MakeDataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    exclude_seen: bool | None,
    left: int,
) -> None:
    histories = [[user % 8 * 5 + place % 5 for place in range(LENGTH)] for user in range(USERS)]
    run = train_tiny(make_dataset(histories), tmp_path / "run", model="pop")
    recommend_command(run.path, user="user-0", k=ITEMS, json=True, exclude_seen=exclude_seen)
    assert len(json.loads(capsys.readouterr().out)["items"]) == left


def test_nobody_who_plays_favourites_at_random_is_guessed_more_often_than_can_be(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    """One of five at the best, and chance: with 120 users, four standard errors are 0.15."""
    run = train_tiny(make_dataset(FAVOURITES), tmp_path / "run", "training.steps=200")
    assert run.result["lines"][-1]["metrics"]["full"]["HR@1"] < 0.2 + 0.15
