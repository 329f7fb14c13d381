"""Items that a user did not choose, drawn for losses that need something to compare the chosen ones with."""

from collections.abc import Callable

import torch
from torch import Tensor

TRIES = 8
"""How often an item that the user did choose is drawn again. What is left after that is a rarity, and stays."""


class ItemSampler:
    """Draws item numbers with a probability that grows with their popularity in the training part."""

    def __init__(self, counts: Tensor, *, exponent: float, even_share: float = 0.0) -> None:
        """`counts` [V] are how often items are chosen. Exponent 0 draws evenly, 1 as often as they are.

        An item that was never chosen is drawn only where all are equal (0 to the power of 0 is 1), or in the share of
        draws that is even.
        """
        weights = counts.double() ** exponent
        if even_share:
            weights *= (1 - even_share) / weights.sum()
            weights += even_share / len(counts)
        self._limits = weights.cumsum(0)

    def log_chances(self, draws: int) -> Tensor:
        """[V] log of the probability that each item is among so many draws, in float32."""
        shares = self._limits.diff(prepend=self._limits.new_zeros(1)) / self._limits[-1]
        return (-torch.expm1(draws * torch.log1p(-shares))).log().float()

    def draw(self, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
        limits = self._limits
        place = torch.rand(size, generator=generator, device=limits.device, dtype=limits.dtype) * limits[-1]
        return 1 + torch.searchsorted(limits, place, right=True).clamp(max=len(limits) - 1)


def count_items(items: Tensor, num_items: int) -> Tensor:
    """[V] how often each item is among these."""
    return torch.bincount(items, minlength=num_items + 1)[1:]


class Chosen:
    """Which users chose which items in the training part."""

    def __init__(self, users: Tensor, items: Tensor, num_items: int) -> None:
        self._stride = num_items + 1
        self._keys = (users.long() * self._stride + items).unique()

    def contains(self, users: Tensor, items: Tensor) -> Tensor:
        keys = users.long() * self._stride + items
        place = torch.searchsorted(self._keys, keys).clamp(max=len(self._keys) - 1)
        found: Tensor = self._keys[place] == keys
        return found


IsRight = Callable[[Tensor, Tensor], Tensor]
"""Whether items are right and so must not be drawn, given whom they are drawn for. Where repeats are excluded, that is
a user, and all that they chose is right (`Chosen.contains`). Where repeats are kept, what a user chose another time is
as wrong as anything: items are compared with the targets of the moment (`torch.eq`)."""


def draw_wrong(
    sampler: ItemSampler, is_right: IsRight, owners: Tensor, count: int, generator: torch.Generator
) -> Tensor:
    """`count` items for each row of `owners` [..., m], [..., count], that are right for none of its m entries."""
    items = sampler.draw((*owners.shape[:-1], count), generator)
    again = is_right(owners[..., None, :], items[..., None]).any(-1).nonzero(as_tuple=True)
    for _ in range(TRIES):
        if not len(again[0]):
            break
        items[again] = sampler.draw((len(again[0]),), generator)
        still = is_right(owners[again[:-1]], items[again][:, None]).any(-1)
        again = tuple(places[still] for places in again)
    return items
