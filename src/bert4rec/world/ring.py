"""Which new item comes next in the built-in world: drawn at random, or computed.

Every item is an arc of a ring of length 1; popular items have long arcs, and departments are neighbourhoods. A new item
is where a random point falls on the ring. The point is drawn in one of three ways:

- noise: anywhere;
- taste: anywhere in one of the user's favourite departments;
- transition: anywhere in the arc of one of the user's last items, then moved on by one of the department's
  steps. All arcs of a department move together, so transitions leave the popularity of its items as it is.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Items = NDArray[np.integer]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ring:
    """The arcs of all items and the three shares, which add up to 1. What users have seen is not considered here."""

    edges: Floats
    """Item i is the arc from edges[i] to edges[i + 1]; the last edge is 1."""
    first_items: NDArray[np.int64]
    """Department d has the items from first_items[d] up to first_items[d + 1]."""
    steps: Floats
    """[departments, successors]: how far transitions move on; the first is twice as likely as the second, and so on."""
    transition_share: float
    taste_share: float
    noise_share: float

    @cached_property
    def widths(self) -> Floats:
        return np.diff(self.edges)

    @cached_property
    def department_of(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.first_items) - 1), np.diff(self.first_items))

    @cached_property
    def department_edges(self) -> Floats:
        return self.edges[self.first_items]

    @cached_property
    def department_widths(self) -> Floats:
        return np.diff(self.department_edges)

    def item_at(self, places: Floats) -> NDArray[np.int64]:
        return np.searchsorted(self.edges[1:-1], places, side="right")

    def draw(
        self, rng: np.random.Generator, tastes: Items, recent: Items, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """One item for each entry of `rows`, which point into `tastes` and `recent`.

        `tastes` are favourite departments [users, tastes]; `recent` are the last items [users, reach], newest first,
        with as many columns as there are earlier actions.
        """
        looks_back = recent.shape[1] > 0
        places = rng.random(len(rows))
        ways = rng.random(len(rows)) * (1 if looks_back else self.taste_share + self.noise_share)
        by_taste = np.flatnonzero(ways < self.taste_share)
        columns = (rng.random(len(by_taste)) * tastes.shape[1]).astype(np.int64)
        department = tastes[rows[by_taste], columns]
        places[by_taste] *= self.department_widths[department]
        places[by_taste] += self.department_edges[department]
        if looks_back:
            by_transition = np.flatnonzero(ways >= self.taste_share + self.noise_share)
            lags = _draw_halving(rng, recent.shape[1], len(by_transition))
            sources = recent[rows[by_transition], lags]
            places[by_transition] = self._follow(rng, sources, places[by_transition])
        return self.item_at(places)

    def _follow(self, rng: np.random.Generator, sources: Items, fractions: Floats) -> Floats:
        """Move the point at these fractions of the sources' arcs on by a random step of the department."""
        department = self.department_of[sources]
        steps = self.steps[department, _draw_halving(rng, self.steps.shape[1], len(sources))]
        places = self.edges[sources] + fractions * self.widths[sources] + steps
        beyond = places >= self.department_edges[department + 1]
        return np.asarray(places - beyond * self.department_widths[department])

    def probabilities(self, tastes: Items, recent: Items) -> Floats:
        """[users, items]: how likely `draw` gives each item. In `recent`, -1 stands for no action."""
        density = np.full((len(tastes), len(self.department_widths)), self.noise_share)
        per_taste = self.taste_share / tastes.shape[1] / self.department_widths[tastes]
        np.add.at(density, (np.arange(len(tastes))[:, None], tastes), per_taste)
        result = np.repeat(density, np.diff(self.first_items), axis=1)
        result *= self.widths
        result /= np.where((recent >= 0).any(axis=1), 1, self.taste_share + self.noise_share)[:, None]
        lag_shares = (recent >= 0) * halving(recent.shape[1])
        lag_shares /= np.maximum(lag_shares.sum(axis=1, keepdims=True), 1e-300)
        for lag in range(recent.shape[1]):
            rows = np.flatnonzero(recent[:, lag] >= 0)
            for step, step_share in enumerate(halving(self.steps.shape[1])):
                share = self.transition_share * step_share * lag_shares[rows, lag]
                self._add_transition(result, rows, recent[rows, lag], step, share)
        return result

    def _add_transition(self, result: Floats, rows: Items, sources: Items, step: int, share: Floats) -> None:
        """Add what falls on each item when the sources' arcs move on, going round at the department's end."""
        department = self.department_of[sources]
        low, high = self.department_edges[department], self.department_edges[department + 1]
        begin = self.edges[sources] + self.steps[department, step]
        end = begin + self.widths[sources]
        density = share / self.widths[sources]
        for turn in (0, self.department_widths[department]):
            self._add_interval(
                result, rows, np.clip(begin - turn, low, high), np.clip(end - turn, low, high), density
            )

    def _add_interval(self, result: Floats, rows: Items, begin: Floats, end: Floats, density: Floats) -> None:
        """Add to each item of a row `density` times its overlap with the interval, which may be empty."""
        first = np.searchsorted(self.edges, begin, side="right") - 1
        number = np.maximum(np.searchsorted(self.edges, end, side="left") - first, 0)
        which = np.repeat(np.arange(len(rows)), number)
        items = np.arange(len(which)) + np.repeat(first - np.cumsum(number) + number, number)
        overlap = np.minimum(self.edges[items + 1], end[which]) - np.maximum(self.edges[items], begin[which])
        np.add.at(result, (rows[which], items), overlap * density[which])


def halving(number: int) -> Floats:
    """`number` shares that add up to 1, each half of the one before."""
    shares = 0.5 ** np.arange(number)
    return np.asarray(shares / shares.sum())


def _draw_halving(rng: np.random.Generator, number: int, size: int) -> NDArray[np.int64]:
    return np.searchsorted(np.cumsum(halving(number))[:-1], rng.random(size), side="right")
