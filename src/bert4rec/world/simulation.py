"""Draw histories in the built-in world, position by position, for thousands of users at once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert4rec.world.ring import Ring

SEEN_TABLE_BYTES = 256 * 2**20
"""Users are drawn in blocks whose table of seen items takes about this much memory."""

MAX_ROUNDS = 32
"""How often seen items are drawn again, until the rest is drawn from its exact distribution."""


@dataclass(frozen=True)
class Cohort:
    """Users whose histories are to be drawn, one entry each."""

    begin: NDArray[np.int64]
    """Where the user's actions begin in the array of all actions."""
    lengths: NDArray[np.int64]
    tastes: NDArray[np.int64]
    first_items: NDArray[np.int64]
    """The user's first item, or -1 if it is to be drawn."""

    def __len__(self) -> int:
        return len(self.begin)

    def select(self, which: NDArray[np.int64]) -> "Cohort":
        return Cohort(self.begin[which], self.lengths[which], self.tastes[which], self.first_items[which])


@dataclass(frozen=True)
class Simulation:
    """The rules, and the array of all actions that is being filled."""

    ring: Ring
    reach: int
    repeat_share: float
    actions: NDArray[np.int32]

    def run(self, rng: np.random.Generator, cohort: Cohort) -> None:
        """Draw all actions of these users. No history may be longer than there are items."""
        by_length = np.argsort(-cohort.lengths, kind="stable")
        block = max(1, SEEN_TABLE_BYTES // len(self.ring.widths))
        for start in range(0, len(cohort), block):
            self._run_block(rng, cohort.select(by_length[start : start + block]))

    def _run_block(self, rng: np.random.Generator, cohort: Cohort) -> None:
        """Draw the first action of all users, then the second of those who have one; longest histories first."""
        seen = np.zeros((len(cohort), len(self.ring.widths)), dtype=np.bool_)
        num_active = np.searchsorted(-cohort.lengths, -np.arange(cohort.lengths[0]), side="left")
        for position, active in enumerate(num_active.tolist()):
            now = cohort.begin[:active] + position
            recent = self.actions[now[:, None] - 1 - np.arange(min(position, self.reach))]
            items = cohort.first_items.copy() if position == 0 else self._draw_repeats(rng, now, position)
            new = np.flatnonzero(items < 0)
            items[new] = self._draw_unseen(rng, cohort.tastes, recent, seen, new)
            self.actions[now] = items
            seen[np.arange(active), items] = True

    def _draw_repeats(
        self, rng: np.random.Generator, now: NDArray[np.int64], position: int
    ) -> NDArray[np.int64]:
        """An earlier action for those who repeat one, -1 for the others."""
        items = np.full(len(now), -1)
        if self.repeat_share:
            who = np.flatnonzero(rng.random(len(now)) < self.repeat_share)
            items[who] = self.actions[now[who] - 1 - (rng.random(len(who)) * position).astype(np.int64)]
        return items

    def _draw_unseen(
        self,
        rng: np.random.Generator,
        tastes: NDArray[np.int64],
        recent: NDArray[np.int32],
        seen: NDArray[np.bool_],
        rows: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """A new item for each of `rows`: drawn again until the user has not seen it."""
        result = np.empty(len(rows), dtype=np.int64)
        pending = np.arange(len(rows))
        for _ in range(MAX_ROUNDS):
            if not len(pending):
                break
            # A call costs the same for one row as for a thousand, so few rows make many tries at once.
            tries = min(max(2048 // len(pending), 1), 64)
            tried_rows = np.repeat(rows[pending], tries)
            tried = self.ring.draw(rng, tastes, recent, tried_rows)
            unseen = ~seen[tried_rows, tried].reshape(-1, tries)
            first = unseen.argmax(axis=1) + np.arange(0, len(tried), tries)
            found = unseen.ravel()[first]
            result[pending[found]] = tried[first[found]]
            pending = pending[~found]
        for start in range(0, len(pending), 256):  # these few have seen nearly all likely items
            part = pending[start : start + 256]
            result[part] = self._draw_exactly(rng, tastes[rows[part]], recent[rows[part]], seen[rows[part]])
        return result

    def _draw_exactly(
        self,
        rng: np.random.Generator,
        tastes: NDArray[np.int64],
        recent: NDArray[np.int32],
        seen: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        cumulative = np.cumsum(np.where(seen, 0, self.ring.probabilities(tastes, recent)), axis=1)
        points = rng.random((len(cumulative), 1)) * cumulative[:, -1:]
        return np.asarray(np.count_nonzero(cumulative <= points, axis=1))
