"""A model judged on what users did after its data ended: by ids, with what it does not know told."""

from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import bert4rec
from bert4rec.api.backtest import backtest, rank_by_ids
from bert4rec.cli.evaluate_command import evaluate_command
from bert4rec.cli.options import as_options
from bert4rec.data.dataset import Dataset
from bert4rec.data.filters import Filters
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.data.splits import SplitSpec, make_split
from bert4rec.errors import DataError, UsageError
from bert4rec.logs.log import Log
from tests.conftest import MakeDataset
from tests.recommend.tiny import highest_first
from tests.training.tiny import random_histories, train_tiny

DAY = 86_400_000_000
"""In microseconds."""


def dataset_of(histories: dict[str, list[tuple[str, int]]], folder: Path) -> Dataset:
    """Each user's items and the days on which they were chosen."""
    actions = [(user, item, day) for user, history in histories.items() for item, day in history]
    users, items, days = zip(*actions, strict=True)
    user_ids, item_ids = list(dict.fromkeys(users)), list(dict.fromkeys(items))
    log = Log(
        users=np.array([user_ids.index(user) for user in users], np.uint32),
        items=np.array([item_ids.index(item) for item in items], np.uint32),
        times=np.array(days, np.int64) * DAY,
        user_ids=pl.Series("id", user_ids),
        item_ids=pl.Series("id", item_ids),
    )
    recipe = Recipe(filters=Filters(min_user_actions=1), num_negatives=5, repeats="exclude")
    return prepare(log, folder, name="later", recipe=recipe)


LATER = {
    "ann": [("a", 1), ("b", 2), ("d", 10), ("c", 11)],
    "bob": [("new", 1), ("c", 3), ("newer", 12)],
    "cat": [("new", 2), ("b", 10)],
    "dan": [("a", 10), ("b", 11)],  # nobody knew him before
    "eve": [("a", 1), ("b", 2)],  # does nothing later
}
"""The model knows a, b, c and d, and likes d best: see `HighestFirst`."""


@pytest.fixture
def later(tmp_path: Path) -> Dataset:
    return dataset_of(LATER, tmp_path / "later")


def test_each_users_first_action_since_then_is_asked_for_and_what_is_unknown_is_missed_and_told(
    later: Dataset,
) -> None:
    found = backtest(highest_first(list("abcd")), later, since="1970-01-11", k=[1, 2])
    assert found.ranks
    ranks = dict(found.ranks.to_polars().select("user", "full").iter_rows())
    # ann: d is the best. bob: "newer" is unknown, and comes behind all three others that he has not had. cat: all she
    # did is unknown, so she gets the most popular, of which b is the second.
    assert ranks == {"ann": 0, "bob": 3, "cat": 1}
    assert found.metrics["full"]["HR@1"] == pytest.approx(1 / 3)
    assert found.metrics["full"]["HR@2"] == pytest.approx(2 / 3)
    assert (found.users, found.strangers, found.stranger_share) == (3, 1, 1 / 4)
    assert found.unknown_targets == pytest.approx(1 / 3)
    assert found.unknown_actions == pytest.approx(2 / 5)
    assert found.since == "1970-01-11T00:00:00+00:00"
    assert found.split == "later"
    assert found.as_dict()["unknown_targets"] == found.unknown_targets


def test_all_that_users_do_since_then_can_be_asked_for(later: Dataset) -> None:
    found = backtest(highest_first(list("abcd")), later, since=date(1970, 1, 11), k=2, targets="all")
    # ann: d and c are the two best; cat: b is the second; bob: nothing.
    assert found.metrics["full"]["Recall@2"] == pytest.approx((1 + 1 + 0) / 3)
    assert found.unknown_targets == pytest.approx(1 / 4)
    assert found.ranks is None


def test_on_its_own_test_items_a_run_and_its_export_are_judged_as_evaluate_judges(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    histories = random_histories()
    times = [DAY * time for history in histories for time in range(len(history))]
    dataset = make_dataset(histories, times=times, num_negatives=10)
    run = train_tiny(dataset, tmp_path / "run", split=SplitSpec("time", "1970-01-10", "1970-01-08"))
    assert run.trained
    assert run.trained.until == "1970-01-09T00:00:00+00:00"
    expected = run.evaluate(dataset=dataset, device="cpu")
    run.export(tmp_path / "model")
    for model in (run, run.path, tmp_path / "model", bert4rec.load(tmp_path / "model")):
        found = backtest(model, dataset, device="cpu")
        assert found.since == "1970-01-09T00:00:00.000001+00:00"
        assert (found.model, found.stage, found.users) == ("bert4rec", "refit", expected.users)
        for name in ("metrics", "lists", "slices", "pop", "markov"):
            assert getattr(found, name) == getattr(expected, name)
        assert (found.unknown_targets, found.strangers) == (0, 0)


def test_targets_of_a_dataset_in_another_order_are_ranked_by_ids(tmp_path: Path) -> None:
    """The same users and items, met in another order, so that all numbers differ."""
    histories = {
        f"user-{place}": [(f"item-{item}", day) for day, item in enumerate(history, start=1)]
        for place, history in enumerate(random_histories())
    }
    one = dataset_of(histories, tmp_path / "one")
    other = dataset_of(dict(reversed(histories.items())), tmp_path / "other")
    assert one.items()["id"].to_list() != other.items()["id"].to_list()
    run = train_tiny(one, tmp_path / "run")
    found = []
    for dataset in (one, other):
        targets = make_split(dataset).test
        ranks = rank_by_ids(run, dataset, targets, device="cpu").full
        found.append(
            dict(zip(dataset.users()["id"].gather(targets.users).to_list(), ranks.tolist(), strict=True))
        )
    assert found[0] == found[1]
    assert list(found[0].values()) == run.ranks("test").full.tolist()


def test_what_cannot_be_judged_is_refused_in_a_sentence(
    later: Dataset, make_dataset: MakeDataset, tmp_path: Path
) -> None:
    model = highest_first(list("abcd"))
    with pytest.raises(UsageError, match="does not tell when its data ended"):
        backtest(model, later)
    with pytest.raises(UsageError, match="'soon' is not a date"):
        backtest(model, later, since="soon")
    with pytest.raises(
        DataError, match=r"did anything after the model's data ended.*newest action is of 1970-01-13"
    ):
        backtest(model, later, since="1971")
    with pytest.raises(DataError, match="acts both before 1970-01-02 and from then on"):
        backtest(model, dataset_of({"ann": [("a", 1), ("b", 1)]}, tmp_path / "short"), since="1970-01-02")
    with pytest.raises(
        DataError, match=r"none of the 6 items of .*: their ids are such as 'b', its own such as 'w'"
    ):
        backtest(highest_first(list("wxyz")), later, since="1970-01-11")
    with pytest.raises(DataError, match="has no times"):
        backtest(highest_first(["item-1"]), make_dataset([[0, 1, 2]]), since="1970-01-11")
    pairs = train_tiny(make_dataset(random_histories()), tmp_path / "pairs", model="bpr-mf")
    with pytest.raises(UsageError, match="BPR-MF cannot be judged on another dataset"):
        backtest(pairs, later, since="1970-01-11", device="cpu")
    with pytest.raises(bert4rec.NotFoundError, match=r"is a dataset; expected a run or an exported model"):
        backtest(later.folder, later)


def test_a_model_that_saw_what_it_is_asked_for_is_told_of(later: Dataset, tmp_path: Path) -> None:
    run = train_tiny(later, tmp_path / "run", model="pop", refit="all")
    assert run.trained
    assert run.trained.until == "1970-01-13T00:00:00+00:00"
    found = backtest(run, later, since="1970-01-11", device="cpu")
    assert any("has seen some of what it is asked for" in warning for warning in found.warnings)


def test_the_command_judges_a_model_on_later_data_and_says_what_that_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the run was trained on ends before day 10."""
    earlier = {user: [each for each in history if each[1] < 10] for user, history in LATER.items()}
    earlier |= {f"user-{place}": [(item, place % 7) for item in "abc"] for place in range(5)}
    dataset = dataset_of({user: each for user, each in earlier.items() if each}, tmp_path / "earlier")
    later = dataset_of(LATER, tmp_path / "later")
    run = train_tiny(dataset, tmp_path / "run", model="pop", refit="all")
    with pytest.raises(DataError) as refused:
        run.evaluate(dataset=later)
    assert as_options(str(refused.value)).endswith("use bert4rec evaluate RUN --data DATASET.")
    with pytest.raises(UsageError, match=r"has no test items. Leave out `split`"):
        evaluate_command(run.path, data=later.folder, split="test", device="cpu")
    with pytest.raises(UsageError, match="`since` applies to a backtest"):
        evaluate_command(run.path, since="2024", device="cpu")
    evaluate_command(run.path, data=later.folder, device="cpu")
    printed = capsys.readouterr()
    assert "later, full (production)" in printed.out
    told = " ".join(printed.err.split())
    assert "Backtest: what 3 users did after 1970-01-05, when the model's data ended." in told
    assert "1 user (25.0% of those who act since then) did nothing before" in told
    evaluate_command(run.path, device="cpu")
    assert "These are the numbers of the refit" in " ".join(capsys.readouterr().err.split())


def test_the_command_asks_for_data_to_judge_an_exported_model_on(exported_model: Path) -> None:
    with pytest.raises(UsageError, match="has no dataset of its own"):
        evaluate_command(exported_model)
