"""Steps that need nothing from the host: a recorded step finds all it needs in one row, by a number."""

import torch
from torch import Tensor

from bert4rec.kernels.support import SEEDS_A_STEP


class ReadySteps:
    """Batches, learning rates and seeds of the next steps, and those of the current one at a fixed place."""

    def __init__(self, width: int, device: torch.device) -> None:
        """Of batches of this width."""
        self._batches, self._rates = slice(width), slice(width, width + 1)
        self._seeds = slice(width + 1, width + 1 + 2 * SEEDS_A_STEP)
        self._row = torch.zeros(1, self._seeds.stop, dtype=torch.int32, device=device)
        self._rows = self._row[:0]
        self._number = torch.zeros(1, dtype=torch.int64, device=device)
        """Of the next step, counted from the first of them."""
        self._first = self._count = 0
        self.batch, self.seeds = self._row[0, self._batches], self._row[0, self._seeds].view(-1, 2)
        self.rate = self._row[0, self._rates].view(torch.float32)[0]

    def holds(self, step: int) -> bool:
        return self._first <= step < self._first + self._count

    def make_room(self, steps: int) -> None:
        """For so many at once, before the first are put in: later there is no more, since recorded steps look there."""
        if not len(self._rows):
            self._rows = self._row.new_zeros(steps, self._row.shape[1])

    def fill(self, first: int, batches: Tensor, rates: Tensor, seeds: Tensor) -> None:
        """With these steps, or as many of them as there is room for."""
        self._first, self._count = first, min(len(batches), len(self._rows))
        rows = self._rows[: self._count]
        rows[:, self._batches] = batches[: self._count]
        rows[:, self._rates] = rates[: self._count, None].float().view(torch.int32)
        rows[:, self._seeds] = seeds[: self._count].flatten(1)
        self._number.zero_()

    def show_first(self) -> None:
        """Without taking it."""
        self._row.copy_(self._rows[:1])

    def advance(self) -> None:
        """Bring the next step to where it is read."""
        torch.index_select(self._rows, 0, self._number, out=self._row)
        self._number += 1
