"""The built-in world: a shop's catalogue and log whose generating process is known.

A user's next item is one of the user's earlier actions (with probability `repeat_share`) or a new one. A new item
comes by transition from one of the last items, by the user's taste for departments, or by chance: `Ring` draws it and
computes how likely it is; if the user already has it, another one is drawn. So the true probabilities of the next item
are known (`World.next_item_scores`), and in the long run no model can rank better.

The first action of a user is drawn without a transition. Half of the users begin with an item that the other half
never had, as long as there is one, so the whole catalogue occurs in the log.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories
from bert4rec.errors import DataError, UsageError
from bert4rec.logs.log import Log
from bert4rec.world.ring import Ring
from bert4rec.world.shapes import Shape, named_shape, spread_whole, weights_for_counts
from bert4rec.world.simulation import Cohort, Simulation
from bert4rec.world.titles import DEPARTMENTS, invent_titles

SMALL_SHOP = Shape(
    num_users=2_000,
    num_items=500,
    num_actions=40_000,
    length_quantiles=(5, 9, 14, 20, 27, 36, 50, 75, 120),
    count_quantiles=(10, 25, 45, 70, 105, 160, 240, 350, 500),
    source="made up: large enough to learn from, small enough to wait for",
)
"""The shape of the default world."""

OPENING, WINDOW = 1_640_995_200, 3 * 365 * 86_400
"""The log begins in 2022 and spans three years; both in seconds."""


@dataclass(frozen=True)
class WorldConfig:
    """Everything that determines a world: equal configs make equal worlds and equal logs."""

    shape: Shape = SMALL_SHOP
    departments: int = 8
    tastes: int = 3
    """Favourite departments per user, drawn by popularity; one drawn twice counts twice."""
    successors: int = 2
    """Steps per department: the first is twice as likely as the second, and so on."""
    reach: int = 1
    """A transition starts from one of this many last actions; the newest is twice as likely as the one before."""
    transition_share: float = 0.65
    taste_share: float = 0.25
    repeat_share: float = 0.0
    seed: int = 1

    @property
    def noise_share(self) -> float:
        """What the other shares leave up to 1."""
        return 1 - self.transition_share - self.taste_share - self.repeat_share

    def __post_init__(self) -> None:
        if min(self.transition_share, self.taste_share, self.repeat_share) < 0 or self.noise_share < 1e-9:
            raise UsageError(
                "`transition_share`, `taste_share` and `repeat_share` must not be negative, and their sum must be "
                f"below 1; got {self.transition_share}, {self.taste_share} and {self.repeat_share}."
            )
        if not 1 <= self.departments <= min(len(DEPARTMENTS), self.shape.num_items):
            raise UsageError(
                f"`departments` must be between 1 and {len(DEPARTMENTS)} and not above the number of items; got "
                f"{self.departments} for {self.shape.num_items} items."
            )
        if min(self.tastes, self.successors, self.reach) < 1 or self.seed < 0:
            raise UsageError("`tastes`, `successors` and `reach` must be at least 1, and `seed` at least 0.")

    def to_json(self) -> dict[str, Any]:
        """A dictionary of plain values, from which `from_json` makes an equal config."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "WorldConfig":
        """Read what `to_json` wrote, also after it went through a JSON file."""
        try:
            shape: dict[str, Any] = dict(values["shape"])
            for name in ("length_quantiles", "count_quantiles"):
                shape[name] = tuple(shape[name])
            return cls(**{**values, "shape": Shape(**shape)})
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"This is not a description of a synthetic world: {error}.") from error


def like(name: str, seed: int = 1) -> WorldConfig:
    """A world with the shape of ml-1m, ml-20m, beauty or steam.

    It has exactly as many users, items and actions, and nearly the same distributions of lengths and popularity.
    Nothing but the shape is taken from the data set.
    """
    return WorldConfig(shape=named_shape(name), reach=2, transition_share=0.5, seed=seed)


@dataclass(frozen=True)
class World:
    """A catalogue, its users and their hidden parameters. Users and items are numbered from 0."""

    config: WorldConfig
    ring: Ring
    tastes: NDArray[np.int64]
    """[users, tastes]: everybody's favourite departments."""
    lengths: NDArray[np.int64]
    """How many actions each user has in the log."""

    @classmethod
    def generate(cls, config: WorldConfig) -> "World":
        """Make the world that the config describes, in a fraction of a second; the log is drawn on request."""
        rng = _generator(config, stream=0)
        shape = config.shape
        ring = _make_ring(config, rng)
        tastes = np.searchsorted(
            ring.department_edges[1:-1], rng.random((shape.num_users, config.tastes)), "right"
        )
        lengths = spread_whole(
            shape.length_quantiles, shape.num_users, total=shape.num_actions, ceiling=shape.num_items
        )
        return cls(config, ring, tastes, rng.permutation(lengths))

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """User u's actions are sequences()[offsets[u] : offsets[u + 1]]."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def item_ids(self) -> list[str]:
        return [f"item-{number:05d}" for number in range(self.config.shape.num_items)]

    @cached_property
    def user_ids(self) -> list[str]:
        return [f"user-{number:05d}" for number in range(self.config.shape.num_users)]

    @cached_property
    def titles(self) -> list[str]:
        """A title for each item, all different."""
        return invent_titles(np.diff(self.ring.first_items).tolist(), _generator(self.config, stream=1))

    def sequences(self) -> NDArray[np.int32]:
        """Everybody's actions as item numbers, user by user, oldest first: the same at every call."""
        rng = _generator(self.config, stream=2)
        num_items = self.config.shape.num_items
        actions = np.full(self.config.shape.num_actions, num_items, dtype=np.int32)
        simulation = Simulation(self.ring, self.config.reach, self.config.repeat_share, actions)
        early, late = np.array_split(rng.permutation(self.config.shape.num_users), 2)
        simulation.run(rng, self._cohort(early, np.empty(0, dtype=np.int64)))
        counts = np.bincount(actions, minlength=num_items + 1)[:num_items]
        untouched = rng.permutation(np.flatnonzero(counts == 0))
        simulation.run(rng, self._cohort(late, untouched))
        return actions

    def _cohort(self, users: NDArray[np.int64], first_items: NDArray[np.int64]) -> Cohort:
        """These users, the foremost of whom begin with `first_items`."""
        padded = np.full(len(users), -1)
        padded[: len(first_items)] = first_items[: len(users)]
        return Cohort(self.offsets[users], self.lengths[users], self.tastes[users], padded)

    def log(self) -> Log:
        """The log as a shop would have written it: all users' actions in the order of time, with titles."""
        import polars as pl

        times = _draw_times(_generator(self.config, stream=3), self.offsets)
        order = np.argsort(times, kind="stable")
        users = np.repeat(np.arange(len(self.lengths), dtype=np.uint32), self.lengths)
        departments = [DEPARTMENTS[number].name for number in self.ring.department_of]
        return Log(
            users=users[order],
            items=self.sequences()[order].astype(np.uint32),
            times=times[order],
            user_ids=pl.Series("user", self.user_ids),
            item_ids=pl.Series("item", self.item_ids),
            item_columns=pl.DataFrame({"id": self.item_ids, "title": self.titles, "department": departments}),
        )

    def next_item_scores(
        self, users: NDArray[np.int64], histories: NDArray[np.integer]
    ) -> NDArray[np.float64]:
        """[users, items]: the probability of each item to be the user's next action. Rows add up to 1.

        `histories` are complete, in item numbers of this world, newest last, filled with -1 on the left.
        """
        recent = histories[:, ::-1][:, : self.config.reach]
        result = self.ring.probabilities(self.tastes[users], recent)
        rows, columns = np.nonzero(histories >= 0)
        items = histories[rows, columns]
        result[rows, items] = 0
        # A user who has had every item can only repeat one.
        result /= np.maximum(result.sum(axis=1, keepdims=True), 1e-300)
        repeat_share = self.config.repeat_share
        if repeat_share:
            lengths = (histories >= 0).sum(axis=1)
            result *= np.where(lengths > 0, 1 - repeat_share, 1)[:, None]
            np.add.at(result, (rows, items), repeat_share / lengths[rows])
        return result


def best_scores(dataset: Dataset) -> Callable[[NDArray[np.int64], Histories], NDArray[np.float32]]:
    """The true probabilities as a scorer for a dataset that was prepared from a world's log.

    The world is re-created from the config in the dataset's manifest. Users and items are numbered as in the dataset;
    scores are [users, num_items + 1], with minus infinity for padding. The ranking is the best possible if the dataset
    has all actions of its users; if some were filtered out, the rest is taken for the whole history.
    """
    description = dataset.manifest["source"].get("world")
    if description is None:
        raise DataError(
            f"{dataset.path} was not made from the built-in world, so the best possible ranking is unknown."
        )
    world = World.generate(WorldConfig.from_json(description))
    user_of = _numbers_of(dataset.users()["id"].to_list(), world.user_ids, dataset)
    item_of = _numbers_of(dataset.items()["id"].to_list(), world.item_ids, dataset)
    item_or_padding = np.concatenate([[-1], item_of])

    def scores(users: NDArray[np.int64], histories: Histories) -> NDArray[np.float32]:
        padded = histories.padded(int(histories.lengths.max(initial=0)))
        truth = world.next_item_scores(user_of[users], item_or_padding[padded])
        result = np.full((len(users), len(item_or_padding)), -np.inf, dtype=np.float32)
        result[:, 1:] = truth[:, item_of]
        return result

    return scores


def _numbers_of(ids: list[str], known: list[str], dataset: Dataset) -> NDArray[np.int64]:
    numbers = {name: number for number, name in enumerate(known)}
    unknown = next((name for name in ids if name not in numbers), None)
    if unknown is not None:
        raise DataError(
            f"{dataset.path} has the unknown id {unknown!r}: it is not in its built-in world. Re-create the folder."
        )
    return np.array([numbers[name] for name in ids], dtype=np.int64)


def _generator(config: WorldConfig, *, stream: int) -> np.random.Generator:
    """A random generator for each purpose, so that none depends on what another has drawn."""
    return np.random.Generator(np.random.PCG64([config.seed, stream]))


def _make_ring(config: WorldConfig, rng: np.random.Generator) -> Ring:
    shape, new_share = config.shape, 1 - config.repeat_share
    favourites = np.arange(config.tastes + 1)  # how often a department may be among a user's tastes
    one_in = config.departments
    odds = [
        comb(config.tastes, n) * (one_in - 1) ** (config.tastes - n) / one_in**config.tastes
        for n in favourites
    ]
    # A transition stays in its department, so in the long run only taste and noise decide where a user is.
    affinities = config.taste_share * favourites * one_in / config.tastes + config.noise_share
    affinities /= config.taste_share + config.noise_share
    weights = weights_for_counts(
        shape, affinities=affinities, shares=np.array(odds), repeat_share=config.repeat_share
    )
    # Without the jitter, items of equal counts would be equally likely: ties that no ranking could break.
    weights = rng.permutation(weights) * (0.95 + 0.1 * rng.random(shape.num_items))
    edges = np.concatenate([[0], np.cumsum(weights)]) / weights.sum()
    edges[-1] = 1
    first_items = np.arange(config.departments + 1) * shape.num_items // config.departments
    steps = 0.1 + 0.8 * rng.random((config.departments, config.successors))
    return Ring(
        edges=edges,
        first_items=first_items,
        steps=steps * np.diff(edges[first_items])[:, None],
        transition_share=config.transition_share / new_share,
        taste_share=config.taste_share / new_share,
        noise_share=config.noise_share / new_share,
    )


def _draw_times(rng: np.random.Generator, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Microseconds since 1970 for every action, rising by a second or more from one to the user's next.

    People come back every few days and do a handful of things within minutes.
    """
    lengths = np.diff(offsets)
    size = int(offsets[-1])
    pauses = np.where(rng.random(size) < 0.2, 4 * 86_400.0, 60.0)
    pauses *= -np.log1p(-rng.random(size))
    elapsed = np.cumsum(pauses)
    elapsed -= np.repeat(elapsed[offsets[:-1]], lengths)
    last = elapsed[offsets[1:] - 1]
    room = 0.9 * WINDOW
    shrink = np.minimum(1, room / np.maximum(last, 1))
    opening = OPENING + rng.random(len(lengths)) * (WINDOW - last * shrink)
    elapsed *= np.repeat(shrink, lengths)
    elapsed += np.repeat(opening, lengths)
    seconds = elapsed.astype(np.int64)
    seconds += np.arange(size) - np.repeat(offsets[:-1], lengths)
    seconds *= 1_000_000
    return seconds
