"""What is recommended, what never is, and what is said about it."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.models.bert4rec import BERT4Rec
from bert4rec.models.history_batch import PaddedHistories
from bert4rec.recommend.catalogue import Id
from bert4rec.recommend.recommender import POPULAR, Recommendation, Recommender
from bert4rec.recommend.torch_engine import TorchEngine
from bert4rec.settings.networks import ModelConfig
from bert4rec.training.device import Placement
from tests.conftest import MakeDataset
from tests.recommend.tiny import highest_first, untrained_run
from tests.training.tiny import random_histories

CPU = Placement(torch.device("cpu"), None)


def ids_of(found: Recommendation) -> list[Id]:
    return [item.item_id for item in found.items]


@pytest.fixture
def shop() -> Recommender:
    """Items a to f: f is always the best, a the most popular."""
    return highest_first(list("abcdef"), [f"Title {letter}" for letter in "abcdef"])


def test_the_best_items_come_first_with_title_and_score(shop: Recommender) -> None:
    found = shop.recommend(["a", "b"], k=2)
    assert [(item.item_id, item.title, item.score) for item in found.items] == [
        ("f", "Title f", 12.0),
        ("e", "Title e", 10.0),
    ]
    assert (found.used, found.unknown_items, found.fallback) == (2, [], None)


def test_seen_items_are_left_out_unless_told_otherwise(shop: Recommender) -> None:
    assert ids_of(shop.recommend(["f", "d"], k=3)) == ["e", "c", "b"]
    assert ids_of(shop.recommend(["f", "d"], k=3, exclude_seen=False)) == ["f", "e", "d"]


def test_denied_items_are_never_recommended_and_allowed_ones_only(shop: Recommender) -> None:
    assert ids_of(shop.recommend(["a"], k=2, deny=["f", "e"])) == ["d", "c"]
    assert ids_of(shop.recommend(["a"], allow=["b", "e", "a"])) == ["e", "b"]
    assert ids_of(shop.recommend(["a"], allow=["b", "e"], deny=["e"])) == ["b"]
    assert ids_of(shop.recommend(["a"], allow=[])) == []


def test_unknown_items_are_skipped_and_named_wherever_they_stand(shop: Recommender) -> None:
    found = shop.recommend(["x", "a", "y", "x"], k=1, allow=["f", "z"], deny=["y"])
    assert (ids_of(found), found.used, found.unknown_items) == (["f"], 1, ["x", "y", "z"])


@pytest.mark.parametrize("history", [[], ["x", "y"]])
def test_without_a_known_item_the_popular_ones_are_the_answer_and_that_is_said(
    history: list[str], shop: Recommender
) -> None:
    found = shop.recommend(history, k=2, deny=["a"])
    assert [(item.item_id, item.score) for item in found.items] == [("b", 5.0), ("c", 4.0)]
    assert (found.fallback, found.used, found.unknown_items) == (POPULAR, 0, history)


def test_fewer_items_than_asked_for_where_no_more_may_be_recommended(shop: Recommender) -> None:
    assert ids_of(shop.recommend(["f", "e", "d"], k=100)) == ["c", "b", "a"]
    assert ids_of(shop.recommend(list("abcdef"))) == []
    assert ids_of(shop.recommend([], k=100)) == list("abcdef")


def test_more_items_than_there_are_cost_nothing(shop: Recommender) -> None:
    histories = Histories.from_lists([[1], [2], []])
    numbers, scores = shop.ranker.top_rows(histories, histories, 10**12)
    assert numbers.tolist() == [[6, 5, 4, 3, 2, 0], [6, 5, 4, 3, 1, 0], [1, 2, 3, 4, 5, 6]]
    assert scores[0].tolist() == [6, 5, 4, 3, 2, -np.inf]
    many, fewer = (shop.recommend_many([["a"], []], k=k) for k in (10**12, 6))
    assert list(many) == list(fewer)


def test_the_model_looks_at_the_newest_items_but_none_of_the_older_ones_is_recommended(
    shop: Recommender,
) -> None:
    found = shop.recommend(["f", "e", "d", "a", "a"], k=2)
    assert (ids_of(found), found.used) == (["c", "b"], shop.max_history)
    assert found.items[0].score == 3 * shop.max_history


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"exclude_seen": False},
        {"deny": ["f", "z"]},
        {"allow": ["b", "e", "f", "z"]},
        {"allow": ["b", "e"], "deny": ["b"], "exclude_seen": False},
    ],
)
def test_many_histories_get_the_same_answers_as_one_after_the_other(
    options: dict[str, Any], shop: Recommender
) -> None:
    histories = [["a"], [], ["b", "x", "c"], ["y"], ["b", "e", "f"]]
    found = shop.recommend_many(histories, k=3, **options)
    alone = [shop.recommend(each, k=3, **options) for each in histories]
    assert list(found) == alone
    assert (len(found), found[-1], found[1:3]) == (5, alone[-1], alone[1:3])


def test_ids_may_be_numbers() -> None:
    shop = highest_first(["10", "20", "30"])
    assert ids_of(shop.recommend([10, 30])) == ["20"]
    assert list(shop.recommend_many([[10], [30]], k=1)) == [
        shop.recommend(["10"], k=1),
        shop.recommend(["30"], k=1),
    ]


def test_ids_come_back_as_the_log_had_them_and_unknown_ones_as_they_were_given() -> None:
    shop = highest_first(["10", "20", "30"], whole_numbers=True)
    found = shop.recommend(["10", 99, "x", np.int64(98), 97.0, 99])
    assert ids_of(found) == [30, 20]
    assert found.unknown_items == [99, "x", 98, 97]
    assert [type(each) for each in found.unknown_items] == [int, str, int, int]
    assert json.loads(json.dumps(asdict(found)))["items"][0]["item_id"] == 30
    assert shop.explain([10], 20).contributions[0].item_id == 10
    assert ids_of(shop.similar("10", k=2)) in ([20, 30], [30, 20])


def test_mistakes_in_the_question_are_named(shop: Recommender) -> None:
    for ask in (shop.recommend, lambda text: shop.rank(text, ["a"]), lambda text: shop.rank(["a"], text)):
        with pytest.raises(UsageError, match="list of item ids; found the text 'abc'"):
            ask("abc")
    for option in ("allow", "deny"):
        with pytest.raises(UsageError, match="found the text 'abc'"):
            shop.recommend(["a"], **{option: "abc"})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="found the text 'abc'"):
        shop.explain("abc", "a")
    with pytest.raises(UsageError, match="`k`: expected a whole number of at least 1; found 0"):
        shop.recommend(["a"], k=0)
    with pytest.raises(UsageError, match="at least 1; found -1"):
        shop.similar("a", k=-1)


def test_named_items_are_ranked_seen_or_not(shop: Recommender) -> None:
    found = shop.rank(["a", "c"], ["c", "e", "b", "x", "e"])
    assert [(item.item_id, item.score) for item in found.items] == [("e", 10.0), ("c", 6.0), ("b", 4.0)]
    assert found.unknown_items == ["x"]
    assert ids_of(shop.rank([], ["e", "b"])) == ["b", "e"]


def test_similar_items_point_in_the_same_direction() -> None:
    shop = highest_first(list("abcd"))
    shop.ranker.engine.rows = np.array([[1, 0], [0, 2], [3, 0.1], [0, 0]], np.float32)
    found = shop.similar("a")
    assert ids_of(found) == ["c", "b", "d"]
    assert [item.score for item in found.items] == pytest.approx([0.9994, 0, 0], abs=1e-4)
    assert ids_of(shop.similar("b", k=1)) == ["c"]
    with pytest.raises(NotFoundError, match="Unknown item 'z'"):
        shop.similar("z")


def test_an_unknown_item_is_answered_by_the_one_that_was_meant_or_by_how_ids_look() -> None:
    shop = highest_first(["sku-1", "sku-2"], ["Heat", "Toy Story"])
    for ask in (shop.similar, lambda item: shop.explain(["sku-1"], item)):
        with pytest.raises(NotFoundError, match=r"Unknown item 'skv-1'\. Did you mean sku-1 \(Heat\)\?"):
            ask("skv-1")
        with pytest.raises(
            NotFoundError, match=r"Unknown item 'toy story'\. Did you mean sku-2 \(Toy Story\)\?"
        ):
            ask("toy story")
        with pytest.raises(NotFoundError, match=r"Unknown item '7'\. A known item is 'sku-1'\."):
            ask(7)


def test_a_catalogue_of_another_model_is_refused() -> None:
    shop = highest_first(list("abcd"))
    with pytest.raises(DataError, match="4 items, its catalogue 3"):
        Recommender(shop.ranker.engine, highest_first(list("abc")).catalogue, name="", version="")


NUM_ITEMS = 300


@pytest.fixture(scope="module")
def model() -> BERT4Rec:
    generator = torch.Generator().manual_seed(1)
    network = BERT4Rec(NUM_ITEMS, ModelConfig(dim=8, layers=2, heads=2, max_length=6), generator).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return network


def recommender_of(model: BERT4Rec) -> Recommender:
    shop = highest_first([str(number) for number in range(1, NUM_ITEMS + 1)])
    return Recommender(TorchEngine(model, CPU), shop.catalogue, name="random", version="1")


HISTORIES = st.lists(st.lists(st.integers(1, NUM_ITEMS), min_size=1, max_size=12), min_size=1, max_size=5)


@settings(deadline=None)
@given(histories=HISTORIES, k=st.sampled_from([1, 3, 10, NUM_ITEMS]))
def test_the_answer_is_that_of_sorting_every_score(
    histories: list[list[int]], k: int, model: BERT4Rec
) -> None:
    for history, found in zip(histories, recommender_of(model).recommend_many(histories, k=k), strict=True):
        asked = PaddedHistories(torch.tensor([history[-5:]], dtype=torch.int64))
        with torch.inference_mode():
            scores = model.scores(model.queries(asked))[0].numpy()
        scores[history] = -np.inf
        numbers = [int(item.item_id) for item in found.items]
        assert len(set(numbers)) == len(numbers) == min(k, NUM_ITEMS - len(set(history)))
        # Scores, not numbers, in their order: two items may be as good as equal.
        np.testing.assert_allclose(scores[numbers], -np.sort(-scores)[: len(numbers)], atol=1e-4)
        np.testing.assert_allclose([item.score for item in found.items], scores[numbers], atol=1e-4)


@settings(deadline=None, max_examples=40)
@given(history=st.lists(st.integers(1, NUM_ITEMS), min_size=1, max_size=9), item=st.integers(1, NUM_ITEMS))
def test_an_effect_is_how_much_the_score_falls_without_the_action(
    history: list[int], item: int, model: BERT4Rec
) -> None:
    recommender = recommender_of(model)
    found = recommender.explain(history, item)
    used = history[-recommender.max_history :]
    (ranked,) = recommender.rank(used, [item]).items
    assert found.item.score == pytest.approx(ranked.score, abs=1e-4)
    assert [each.item_id for each in found.contributions] == [str(each) for each in used]
    for place, contribution in enumerate(found.contributions):
        rest = used[:place] + used[place + 1 :]
        if rest:
            (without,) = recommender.rank(rest, [item]).items
            assert contribution.effect == pytest.approx(ranked.score - without.score, abs=1e-3)


def test_attention_is_what_the_asked_place_looks_at(model: BERT4Rec) -> None:
    found = recommender_of(model).explain([7, 8, 9], 10).attention
    with torch.inference_mode():
        maps = model.attention_maps(torch.tensor([[7, 8, 9, model.mask_number]]))
    assert found is not None
    np.testing.assert_allclose(found, maps[0, :, :, -1], atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-5)


def test_without_a_known_item_there_is_nothing_to_explain(shop: Recommender) -> None:
    found = shop.explain(["x"], "c")
    assert (found.item.score, found.contributions, found.attention) == (4.0, [], None)
    assert (found.unknown_items, found.fallback) == (["x"], POPULAR)
    known = shop.explain(["x", "a"], "c")
    assert (known.unknown_items, known.fallback) == (["x"], None)
    with pytest.raises(NotFoundError, match="Unknown item 'z'"):
        shop.explain(["a"], "z")


def test_a_model_that_has_diverged_says_so() -> None:
    network = BERT4Rec(NUM_ITEMS, ModelConfig(dim=8, heads=2, max_length=6)).eval()
    torch.nn.init.constant_(network.projection.weight, torch.nan)
    with pytest.raises(DataError, match="diverged"):
        recommender_of(network).recommend(["1"])


def test_a_history_is_answered_alike_alone_and_among_longer_ones(model: BERT4Rec) -> None:
    recommender = recommender_of(model)
    rng = np.random.default_rng(1)
    histories = Histories.from_lists([rng.integers(1, NUM_ITEMS + 1, n % 9 + 1).tolist() for n in range(100)])
    numbers, scores = recommender.ranker.top_rows(histories, histories, 5)
    for row in range(0, 100, 7):
        one = histories[row : row + 1]
        alone, alone_scores = recommender.ranker.top_rows(one, one, 5)
        assert alone[0].tolist() == numbers[row].tolist()
        np.testing.assert_allclose(alone_scores[0], scores[row], atol=1e-4)


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> Dataset:
    return make_dataset(random_histories())


@pytest.mark.parametrize("name", ["bert4rec", "sasrec", "gru4rec", "gru4rec+"])
def test_a_run_agrees_with_its_own_scorer(name: str, dataset: Dataset, tmp_path: Path) -> None:
    settings = {"dim": 16, "max_length": 8} if "gru" in name else {}
    run = untrained_run(dataset, tmp_path / "run", name, **settings)
    recommender = Recommender.load(run.path)
    users = np.arange(dataset.num_users)
    histories = Histories.from_lists([dataset.history(user).tolist() for user in range(dataset.num_users)])
    scores = np.asarray(run.scorer("final", CPU)(users, histories))
    numbers, found = recommender.ranker.top_rows(histories, Histories.from_lists([[]] * len(users)), 4)
    np.testing.assert_allclose(found, -np.sort(-scores, axis=1)[:, :4], atol=1e-4)
    np.testing.assert_allclose(np.take_along_axis(scores, numbers, axis=1), found, atol=1e-4)


USER_MODELS: dict[str, dict[str, Any]] = {
    "bpr-mf": {"dim": 8},
    "ncf": {"dim": 8},
    "fpmc": {"dim": 8},
    "caser": {"dim": 8, "max_length": 3},
}


@pytest.mark.parametrize("name", USER_MODELS)
def test_a_model_that_knows_only_its_users_says_how_to_ask_it(
    name: str, dataset: Dataset, tmp_path: Path
) -> None:
    recommender = Recommender.load(untrained_run(dataset, tmp_path / "run", name, **USER_MODELS[name]).path)
    with pytest.raises(UsageError, match=r" cannot compare items.* Use a model such as BERT4Rec"):
        recommender.similar("item-1")
    asked: list[Callable[[], object]] = [
        lambda: recommender.recommend(["item-1"]),
        lambda: recommender.rank(["item-1"], ["item-2"]),
        lambda: recommender.explain(["item-1"], "item-2"),
        lambda: recommender.recommend_many([["item-1"]]),
    ]
    for ask in asked:
        with pytest.raises(UsageError, match=r"only for users of its dataset: use `recommend_user\(\)`"):
            ask()


@pytest.mark.parametrize("name", USER_MODELS)
def test_a_model_that_knows_only_its_users_answers_for_all_of_them(
    name: str, dataset: Dataset, tmp_path: Path
) -> None:
    run = untrained_run(dataset, tmp_path / "run", name, **USER_MODELS[name])
    recommender = Recommender.load(run.path)
    histories = Histories.from_lists([dataset.history(user).tolist() for user in range(dataset.num_users)])
    scores = np.array(run.scorer("final", CPU)(np.arange(dataset.num_users), histories).numpy(), np.float64)
    scores[:, 0] = -np.inf
    rows, items = histories.flat()
    scores[rows, items] = -np.inf
    found = recommender.recommend_many(dataset, k=5)
    ids = dataset.items()["id"].to_list()
    for user, answer in zip(dataset.users()["id"], found, strict=True):
        mine = scores[found.users.to_list().index(user)]
        best = np.argsort(-mine, kind="stable")[:5]
        assert ids_of(answer) == [ids[number - 1] for number in best if mine[number] > -np.inf]
        alone = recommender.recommend_user(user, k=5, dataset=dataset)
        assert ids_of(answer) == ids_of(alone)
        assert [each.score for each in answer.items] == pytest.approx(
            [each.score for each in alone.items], abs=1e-4
        )
        assert (answer.used, answer.unknown_items) == (alone.used, alone.unknown_items)
        assert answer.fallback is None


ALL_MODELS: dict[str, dict[str, Any]] = {
    "pop": {"actions": "training"},
    **USER_MODELS,
    "gru4rec": {"dim": 16, "max_length": 8},
    "gru4rec+": {"dim": 16, "max_length": 8},
    "sasrec": {},
    "bert4rec": {},
}


@pytest.mark.parametrize("name", ALL_MODELS)
@pytest.mark.parametrize(
    "options", [{}, {"exclude_seen": False, "deny": ["item-3"]}, {"allow": ["item-1", "item-2"]}]
)
def test_every_way_to_ask_a_model_gives_the_same_answer(
    name: str, options: dict[str, Any], dataset: Dataset, tmp_path: Path
) -> None:
    recommender = Recommender.load(untrained_run(dataset, tmp_path / "run", name, **ALL_MODELS[name]).path)
    ids = dataset.items()["id"]
    users = dataset.users()["id"].to_list()
    histories = [ids.gather(dataset.history(number) - 1).to_list() for number in range(len(users))]
    asked = [
        list(recommender.recommend_many(dataset, k=5, **options)),
        [recommender.recommend_user(user, k=5, dataset=dataset, **options) for user in users],
    ]
    if name not in USER_MODELS:
        asked += [
            list(recommender.recommend_many(histories, k=5, **options)),
            [recommender.recommend(history, k=5, **options) for history in histories],
        ]
    for answers in zip(*asked, strict=True):
        for other in answers[1:]:
            assert ids_of(other) == ids_of(answers[0])
            assert replace(other, items=[]) == replace(answers[0], items=[])
            scores = ([item.score for item in answer.items] for answer in (other, answers[0]))
            assert next(scores) == pytest.approx(next(scores), abs=1e-4)


def test_popularity_is_what_the_model_counted_not_what_the_log_holds(
    dataset: Dataset, tmp_path: Path
) -> None:
    run = untrained_run(dataset, tmp_path / "run", "pop", actions="training")
    recommender = Recommender.load(run.path)
    actions = [item for number in range(dataset.num_users) for item in dataset.history(number)[:-1].tolist()]
    counted = {recommender.catalogue.id_of(item): float(actions.count(item)) for item in actions}
    for found in (
        recommender.recommend(["item-1"], k=9),
        recommender.recommend_many([["item-1"], ["item-2"]], k=9)[0],
        recommender.rank(["item-1"], dataset.items()["id"].to_list()),
    ):
        assert (found.used, found.fallback) == (0, None)
        assert [item.score for item in found.items] == [counted[item.item_id] for item in found.items]
    explained = recommender.explain(["item-1"], "item-2")
    assert (explained.item.score, explained.contributions, explained.fallback) == (
        counted["item-2"],
        [],
        None,
    )
    with pytest.raises(UsageError, match="no item vectors that can be compared"):
        recommender.similar("item-1")


def test_a_recommender_is_shown_in_one_line(shop: Recommender) -> None:
    assert repr(shop) == "Recommender('highest first', version 1, 6 items)"


def test_an_unknown_user_of_sequences_in_memory_is_named(shop: Recommender) -> None:
    dataset = Dataset.from_sequences(np.array([1, 2, 2, 1], np.int32), np.array([0, 2, 4]))
    with pytest.raises(NotFoundError, match=r"Unknown user 'nobody'\. A known user is"):
        shop.recommend_user("nobody", dataset=dataset)


def test_a_user_of_the_dataset_is_a_history_to_models_that_take_one(dataset: Dataset, tmp_path: Path) -> None:
    recommender = Recommender.load(untrained_run(dataset, tmp_path / "run").path)
    ids = dataset.items()["id"]
    history = ids.gather(dataset.history(3) - 1).to_list()
    assert recommender.recommend_user("user-3", k=4) == recommender.recommend(history, k=4)
    assert (
        recommender.recommend_many(dataset, k=4)[3].items[0].item_id
        == ids_of(recommender.recommend(history, k=1))[0]
    )
    with pytest.raises(NotFoundError, match=r"Unknown user 'usr-3'\. Did you mean 'user-3'\?"):
        recommender.recommend_user("usr-3")


def test_a_model_that_knows_users_refuses_another_dataset(
    dataset: Dataset, make_dataset: MakeDataset, tmp_path: Path
) -> None:
    recommender = Recommender.load(untrained_run(dataset, tmp_path / "run", "bpr-mf", dim=8).path)
    other = make_dataset(random_histories(seed=5))
    for ask in (recommender.recommend_many, lambda data: recommender.recommend_user("user-1", dataset=data)):
        with pytest.raises(DataError, match="The run was made for"):
            ask(other)


def test_what_is_neither_a_run_nor_a_model_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"is a dataset; expected a run or an exported model"):
        Recommender.load(dataset.folder)
    with pytest.raises(NotFoundError, match=r"does not exist; expected a run or an exported model"):
        Recommender.load(tmp_path / "nowhere")


def test_a_changed_run_is_refused_by_the_name_of_the_file(dataset: Dataset, tmp_path: Path) -> None:
    run = untrained_run(dataset, tmp_path / "run")
    weights = run.path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"model\.safetensors has changed"):
        Recommender.load(run.path)
