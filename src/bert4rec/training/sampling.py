"""Items nobody chose, drawn for losses that need something to compare the chosen ones with."""

import torch
from torch import Tensor

TRIES = 8
"""How often an item that the user did choose is drawn again. What is left after that is a rarity, and stays."""


class ItemSampler:
    """Draws item numbers with a probability that grows with their popularity in the training part."""

    def __init__(self, items: Tensor, num_items: int, *, exponent: float) -> None:
        """`items` are all actions of the training part. Exponent 0 draws evenly, 1 as often as items are chosen."""
        weights = torch.bincount(items, minlength=num_items + 1)[1:].double()
        # An item that nobody chose is drawn only where all are equal: 0 to the power of 0 is 1.
        self._limits = (weights**exponent).cumsum(0)

    def draw(self, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
        limits = self._limits
        place = torch.rand(size, generator=generator, device=limits.device, dtype=limits.dtype) * limits[-1]
        return 1 + torch.searchsorted(limits, place, right=True).clamp(max=len(limits) - 1)


class Chosen:
    """Which items are right for whom, and so are never drawn as wrong ones.

    Where repeats are excluded, a user has one set of right items: all that they chose in the training part. Where
    they are kept, what a user chose another time is as wrong as anything, and each action has a set of its own.
    """

    def __init__(self, owners: Tensor, items: Tensor, num_items: int) -> None:
        self._stride = num_items + 1
        self._keys = (owners.long() * self._stride + items).unique()

    def contains(self, owners: Tensor, items: Tensor) -> Tensor:
        keys = owners.long() * self._stride + items
        place = torch.searchsorted(self._keys, keys).clamp(max=len(self._keys) - 1)
        found: Tensor = self._keys[place] == keys
        return found


def draw_unchosen(
    sampler: ItemSampler, chosen: Chosen, owners: Tensor, count: int, generator: torch.Generator
) -> Tensor:
    """`count` items for each entry of `owners`, [..., count], that are not right for it."""
    owners = owners[..., None].expand(*owners.shape, count)
    items = sampler.draw(tuple(owners.shape), generator)
    wrong = chosen.contains(owners, items).nonzero(as_tuple=True)
    for _ in range(TRIES):
        if not len(wrong[0]):
            break
        items[wrong] = sampler.draw((len(wrong[0]),), generator)
        still = chosen.contains(owners[wrong], items[wrong])
        wrong = tuple(places[still] for places in wrong)
    return items
