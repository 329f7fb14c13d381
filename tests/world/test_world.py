"""The built-in world: its log is as its config says, and its scores are the truth about it."""

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.filters import Filters
from bert4rec.data.histories import histories_before
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.data.splits import leave_one_out
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.world import simulation
from bert4rec.world.shapes import Shape, spread
from bert4rec.world.world import World, WorldConfig, best_scores, like
from tests.world.test_shapes import gini

SMALL = Shape(300, 80, 4_500, (5, 8, 14, 30, 60), (10, 30, 60, 100, 200), "test")
CROWD = Shape(60_000, 6, 240_000, (4, 4), (3, 8), "test")
"""So many users in so small a shop that each short history occurs hundreds of times."""


@pytest.fixture(scope="module")
def default_world() -> World:
    return World.generate(WorldConfig())


def histories_of(world: World) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Everybody's history without the last action, padded with -1 on the left, and the last actions."""
    actions = world.sequences()
    positions = world.offsets[1:, None] - 1 + np.arange(-world.lengths.max() + 1, 0)
    known = positions >= world.offsets[:-1, None]
    return np.where(known, actions[np.maximum(positions, 0)], -1), actions[world.offsets[1:] - 1]


def reciprocal_rank(scores: NDArray[np.float64], targets: NDArray[Any]) -> float:
    of_target = scores[np.arange(len(targets)), targets]
    return float((1 / (scores >= of_target[:, None]).sum(axis=1)).mean())


def test_the_same_config_gives_the_same_log_and_another_seed_another() -> None:
    first, second = (World.generate(WorldConfig(SMALL)).log() for _ in range(2))
    np.testing.assert_array_equal(first.users, second.users)
    np.testing.assert_array_equal(first.items, second.items)
    assert first.times is not None and second.times is not None
    np.testing.assert_array_equal(first.times, second.times)
    assert first.item_columns is not None and second.item_columns is not None
    assert first.item_columns.equals(second.item_columns)
    other = World.generate(WorldConfig(SMALL, seed=2)).log()
    assert not np.array_equal(first.items, other.items)


def test_the_default_world_is_the_one_on_record(default_world: World) -> None:
    # Numbers in the documentation and floors in tests are about this log. If it changes, so must they.
    assert zlib.crc32(default_world.sequences().tobytes()) == 1031860560


def test_users_items_and_actions_are_as_asked(default_world: World) -> None:
    log, shape = default_world.log(), default_world.config.shape
    assert len(log.users) == len(log.items) == shape.num_actions == 40_000
    assert len(np.unique(log.users)) == len(log.user_ids) == shape.num_users == 2_000
    assert len(np.unique(log.items)) == len(log.item_ids) == shape.num_items == 500


def test_the_log_is_in_the_order_of_time_and_everybody_takes_a_second_for_an_action() -> None:
    world = World.generate(WorldConfig(SMALL))
    log = world.log()
    assert log.times is not None
    assert (np.diff(log.times) >= 0).all()
    assert np.datetime64("2022-01-01") <= log.times.min().astype("datetime64[us]")
    assert log.times.max().astype("datetime64[us]") < np.datetime64("2025-01-01")
    by_user = np.argsort(log.users, kind="stable")
    same_user = np.diff(log.users[by_user]) == 0
    assert (np.diff(log.times[by_user])[same_user] >= 1_000_000).all()
    np.testing.assert_array_equal(log.items[by_user], world.sequences())


def test_every_item_has_a_title_of_its_own_and_a_department(default_world: World) -> None:
    columns = default_world.log().item_columns
    assert columns is not None
    assert columns["id"].to_list() == default_world.item_ids
    assert columns["title"].n_unique() == 500
    assert columns["department"].n_unique() == 8
    assert columns.row(0) == ("item-00000", default_world.titles[0], "Clothing")


def test_nobody_has_an_item_twice_unless_repeats_are_asked_for(default_world: World) -> None:
    actions, shape = default_world.sequences(), default_world.config.shape
    users = np.repeat(np.arange(shape.num_users), default_world.lengths)
    assert len(np.unique(users * shape.num_items + actions)) == shape.num_actions


def test_a_user_may_have_the_whole_catalogue() -> None:
    shape = Shape(20, 12, 240, (12, 12), (5, 30), "test")
    actions = World.generate(WorldConfig(shape, departments=3)).sequences().reshape(20, 12)
    np.testing.assert_array_equal(np.sort(actions, axis=1), np.tile(np.arange(12), (20, 1)))


def test_repeats_have_the_share_that_was_asked_for() -> None:
    world = World.generate(WorldConfig(SMALL, repeat_share=0.3, transition_share=0.3))
    actions = world.sequences()
    users = np.repeat(np.arange(300), world.lengths)
    distinct = len(np.unique(users * 80 + actions))
    can_repeat = SMALL.num_actions - SMALL.num_users
    # One standard deviation is 0.007.
    assert (SMALL.num_actions - distinct) / can_repeat == pytest.approx(0.3, abs=0.03)


def goodness_of_fit(world: World, actions: NDArray[np.int32], position: int) -> float:
    """How far what follows each history of a length is from the scores: about 0 with deviation 1 if they are true."""
    told = np.column_stack([world.tastes, actions.reshape(-1, 4)[:, :position]])
    contexts, users, context_of = np.unique(told, axis=0, return_index=True, return_inverse=True)[:3]
    observed = np.zeros((len(contexts), 6))
    np.add.at(observed, (context_of.ravel(), actions.reshape(-1, 4)[:, position]), 1)
    expected = world.next_item_scores(users, contexts[:, world.tastes.shape[1] :])
    assert (observed[expected == 0] == 0).all()
    freedom_of_cell = 1 - expected
    expected *= observed.sum(axis=1, keepdims=True)
    trusted = expected > 5
    chi_square = ((observed - expected)[trusted] ** 2 / expected[trusted]).sum()
    freedom = freedom_of_cell[trusted].sum()
    assert freedom > 50
    return float((chi_square - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize("repeat_share", [0.0, 0.25])
@pytest.mark.parametrize("position", [2, 3])
def test_what_happens_next_has_the_probability_the_scores_say(repeat_share: float, position: int) -> None:
    world = World.generate(
        WorldConfig(CROWD, departments=2, tastes=1, reach=2, transition_share=0.4, repeat_share=repeat_share)
    )
    assert abs(goodness_of_fit(world, world.sequences(), position)) < 4


def test_the_exact_draw_for_stubborn_users_has_the_same_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "MAX_ROUNDS", 0)
    shape = replace(CROWD, num_users=12_000, num_actions=48_000)
    world = World.generate(WorldConfig(shape, departments=2, tastes=1, reach=2, transition_share=0.4))
    assert abs(goodness_of_fit(world, world.sequences(), position=2)) < 4


def test_false_scores_would_be_found_out() -> None:
    config = WorldConfig(CROWD, departments=2, tastes=1, reach=2, transition_share=0.4)
    world = World.generate(config)
    almost = replace(world, ring=replace(world.ring, transition_share=0.45, noise_share=0.3))
    assert goodness_of_fit(almost, world.sequences(), position=2) > 8


def test_users_in_small_blocks_fare_like_users_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "SEEN_TABLE_BYTES", 80 * 7)
    world = World.generate(WorldConfig(SMALL))
    actions = world.sequences()
    assert set(actions.tolist()) == set(range(80))
    assert len(np.unique(np.repeat(np.arange(300), world.lengths) * 80 + actions)) == SMALL.num_actions


def test_scores_are_probabilities_of_items_not_yet_had(default_world: World) -> None:
    histories, _ = histories_of(default_world)
    scores = default_world.next_item_scores(np.arange(2_000), histories)
    np.testing.assert_allclose(scores.sum(axis=1), 1)
    rows, columns = np.nonzero(histories >= 0)
    assert (scores[rows, histories[rows, columns]] == 0).all()
    unseen = np.ones_like(scores, dtype=bool)
    unseen[rows, histories[rows, columns]] = False
    assert (scores[unseen] > 0).all()


def test_more_padding_changes_nothing(default_world: World) -> None:
    histories, _ = histories_of(default_world)
    padded = np.pad(histories[:50], ((0, 0), (9, 0)), constant_values=-1)
    np.testing.assert_array_equal(
        default_world.next_item_scores(np.arange(50), padded),
        default_world.next_item_scores(np.arange(50), histories[:50]),
    )


def test_the_mean_reciprocal_rank_is_that_of_ranking_one_by_one(default_world: World) -> None:
    histories, targets = histories_of(default_world)
    scores = default_world.next_item_scores(np.arange(2_000), histories)
    by_hand = 0.0
    for user in range(200):
        one = default_world.next_item_scores(np.array([user]), histories[user : user + 1])[0]
        ranking = sorted(range(500), key=lambda item, one=one: -one[item])  # type: ignore[misc]
        by_hand += 1 / (1 + ranking.index(int(targets[user])))
    assert reciprocal_rank(scores[:200], targets[:200]) == pytest.approx(by_hand / 200)


def test_the_truth_keeps_its_promise(default_world: World) -> None:
    """The ten likeliest items hold the next one as often as their probabilities say."""
    histories, targets = histories_of(default_world)
    scores = default_world.next_item_scores(np.arange(2_000), histories)
    best = np.argsort(-scores, axis=1)[:, :10]
    promised = np.take_along_axis(scores, best, axis=1).sum(axis=1)
    hits = (best == targets[:, None]).any(axis=1)
    deviation = np.sqrt((promised * (1 - promised)).sum()) / 2_000
    assert abs(hits.mean() - promised.mean()) < 3.5 * deviation


def test_no_other_scorer_does_as_well_as_the_truth(default_world: World) -> None:
    histories, targets = histories_of(default_world)
    users = np.arange(2_000)
    truth = default_world.next_item_scores(users, histories)
    best = reciprocal_rank(truth, targets)
    rng = np.random.default_rng(0)
    popularity = np.where(truth > 0, np.bincount(default_world.sequences(), minlength=500), 0.0)
    others = {
        "popularity": popularity,
        "chance": np.where(truth > 0, rng.random(truth.shape), 0),
        "another user's taste": default_world.next_item_scores(np.roll(users, 1), histories),
        "without the last item": default_world.next_item_scores(users, histories[:, :-1]) * (truth > 0),
        "slightly perturbed": truth * np.exp(0.5 * rng.normal(size=truth.shape)),
        "strongly perturbed": truth * np.exp(2 * rng.normal(size=truth.shape)),
    }
    results = {name: reciprocal_rank(scores, targets) for name, scores in others.items()}
    assert all(result < best for result in results.values()), (best, results)
    assert results["popularity"] < best / 4


def test_sequences_matter_in_the_default_world(default_world: World) -> None:
    """Counting what follows what gets a learner most of the way, and far beyond popularity."""
    histories, targets = histories_of(default_world)
    actions = default_world.sequences()
    learnable = np.ones(len(actions), dtype=bool)
    learnable[default_world.offsets[1:] - 1] = False
    learnable[default_world.offsets[:-1]] = False
    followers = np.zeros((500, 500))
    places = np.flatnonzero(learnable)
    np.add.at(followers, (actions[places - 1], actions[places]), 1)
    popularity = np.bincount(actions[learnable], minlength=500) / learnable.sum()
    truth = default_world.next_item_scores(np.arange(2_000), histories)
    learned = np.where(truth > 0, (followers + 5 * popularity)[histories[:, -1]], 0)
    best, floor = (
        reciprocal_rank(truth, targets),
        reciprocal_rank(np.where(truth > 0, popularity, 0), targets),
    )
    assert 0.85 * best < reciprocal_rank(learned, targets) < best
    assert reciprocal_rank(learned, targets) > 5 * floor


@pytest.mark.parametrize(
    "config", [WorldConfig(), WorldConfig(SMALL, 3, 2, 4, 5, 0.1, 0.2, 0.3, seed=7), like("beauty", seed=3)]
)
def test_a_config_survives_a_json_file(config: WorldConfig) -> None:
    assert WorldConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_every_field_of_the_config_changes_the_log() -> None:
    base = WorldConfig(SMALL)
    changed = {
        "shape": replace(SMALL, count_quantiles=(10, 20)),
        "departments": 4,
        "tastes": 1,
        "successors": 1,
        "reach": 2,
        "transition_share": 0.5,
        "taste_share": 0.1,
        "repeat_share": 0.05,
        "seed": 2,
    }
    assert set(changed) == set(base.to_json())
    actions = World.generate(base).sequences()
    for name, value in changed.items():
        other = World.generate(replace(base, **{name: value})).sequences()  # type: ignore[arg-type]
        assert not np.array_equal(other, actions), name


@pytest.mark.parametrize(
    "make",
    [
        lambda: WorldConfig(transition_share=0.8, taste_share=0.3),
        lambda: WorldConfig(transition_share=0.6, taste_share=0.4),
        lambda: WorldConfig(taste_share=-0.1),
        lambda: WorldConfig(departments=0),
        lambda: WorldConfig(departments=99),
        lambda: WorldConfig(tastes=0),
        lambda: WorldConfig(seed=-1),
        lambda: World.generate(WorldConfig(replace(SMALL, num_actions=300 * 81))),
    ],
    ids=[
        "too much",
        "no noise",
        "negative",
        "none",
        "too many",
        "no taste",
        "seed",
        "longer than the catalogue",
    ],
)
def test_impossible_worlds_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        make()


@pytest.mark.parametrize("values", [{}, {"shape": {}}, {**WorldConfig().to_json(), "colour": "blue"}])
def test_a_foreign_description_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="not a description of a synthetic world"):
        WorldConfig.from_json(values)


@pytest.mark.parametrize(("name", "tolerance"), [("ml-1m", 0.01), ("beauty", 0.025)])
def test_a_world_like_a_data_set_has_its_shape(name: str, tolerance: float) -> None:
    world = World.generate(like(name))
    shape = world.config.shape
    actions = world.sequences()
    assert len(actions) == shape.num_actions
    assert len(world.lengths) == shape.num_users
    counts = np.sort(np.bincount(actions, minlength=shape.num_items)).astype(np.float64)
    assert len(counts) == shape.num_items
    assert counts[0] >= 1
    wanted = spread(shape.count_quantiles, shape.num_items)
    assert gini(counts) == pytest.approx(gini(wanted), abs=tolerance)
    # The share of all actions that would have to move to another item for the counts to be as wanted.
    assert np.abs(counts / counts.sum() - wanted / wanted.sum()).sum() / 2 < tolerance
    lengths = spread(shape.length_quantiles, shape.num_users)
    assert np.abs(np.sort(world.lengths) - lengths).sum() < 0.02 * shape.num_actions


def test_a_world_like_an_unknown_data_set_is_refused() -> None:
    with pytest.raises(NotFoundError, match="netflix"):
        like("netflix")


def prepared(world: World, folder: Path, filters: Filters = Filters()) -> Dataset:
    return prepare(
        world.log(),
        folder,
        name="synthetic",
        recipe=Recipe(filters=filters, num_negatives=5),
        source={"world": world.config.to_json()},
    )


def test_the_truth_survives_renumbering(tmp_path: Path) -> None:
    world = World.generate(WorldConfig(SMALL))
    dataset = prepared(world, tmp_path / "dataset", Filters(min_user_actions=7))
    assert 0 < dataset.num_users < 300
    targets = leave_one_out(dataset).test
    scores = best_scores(dataset)(targets.users, histories_before(dataset, targets.users, targets.positions))
    assert scores.shape == (len(targets), dataset.num_items + 1)
    assert scores.dtype == np.float32
    assert (scores[:, 0] == -np.inf).all()
    item_ids = dataset.items()["id"].to_list()
    user_ids = dataset.users()["id"].to_list()
    all_histories, all_targets = histories_of(world)
    for row in (0, 17, len(targets) - 1):
        user = world.user_ids.index(user_ids[targets.users[row]])
        assert item_ids[dataset.sequences[targets.positions[row]] - 1] == world.item_ids[all_targets[user]]
        truth = world.next_item_scores(np.array([user]), all_histories[user : user + 1])[0]
        expected = [truth[world.item_ids.index(item)] for item in item_ids]
        np.testing.assert_allclose(scores[row, 1:], expected, rtol=1e-6)


def test_the_best_ranking_of_other_data_is_unknown(make_dataset: Callable[..., Dataset]) -> None:
    with pytest.raises(DataError, match="not made from the built-in world"):
        best_scores(make_dataset([[1, 2, 3], [3, 2, 1]]))


def test_a_dataset_with_ids_its_world_does_not_know_is_refused(tmp_path: Path) -> None:
    world = World.generate(WorldConfig(SMALL))
    log = replace(world.log(), item_ids=pl.Series([f"thing-{number}" for number in range(80)]))
    dataset = prepare(
        log,
        tmp_path / "dataset",
        name="odd",
        recipe=Recipe(num_negatives=5),
        source={"world": world.config.to_json()},
    )
    with pytest.raises(DataError, match="'thing-"):
        best_scores(dataset)
