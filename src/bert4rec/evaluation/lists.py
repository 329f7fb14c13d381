"""What is recommended as a whole: how much of the catalogue, how popular it is, and to how many users the same.

Lists are those that `recommend` gives: the best of all items, without those of the history if repeats are excluded.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import PADDING, Dataset
from bert4rec.data.histories import Histories
from bert4rec.evaluation.protocol import Scores, in_chunks

Lists = NDArray[np.int32]
"""[users, k]: item numbers, best first; filled up with 0 where fewer items are left."""
MOST = 0.5
"""Above this share of users or items, it is most of them."""


class TopLists:
    """The k best items of each user, noted while a model is judged, so that it is asked only once."""

    def __init__(self, dataset: Dataset, k: int) -> None:
        self._excludes = dataset.repeats == "exclude"
        self._k = min(k, dataset.num_items)
        self._parts: list[Lists] = []

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def note(self, scores: Scores, histories: Histories) -> None:
        """Note the best items of some users by their scores and histories."""
        import torch

        rows, items = histories.flat() if self._excludes else (np.empty(0, np.int64), np.empty(0, np.int64))
        best, found = torch.empty(len(histories), 0), torch.empty(len(histories), 0, dtype=torch.int64)
        chunks = in_chunks(scores)
        for column in chunks.starts:
            allowed = torch.as_tensor(chunks.columns_from(column)).clone()
            if column == PADDING:
                allowed[:, PADDING] = -torch.inf
            is_here = (items >= column) & (items < column + allowed.shape[1])
            allowed[rows[is_here], items[is_here].astype(np.int64) - column] = -torch.inf
            top = allowed.topk(min(self._k, allowed.shape[1]))
            # The best so far stand first, so that of equals those with lower numbers stay.
            best, found = (
                torch.cat([old.to(new), new], dim=1)
                for old, new in ((best, top.values), (found, top.indices + column))
            )
            best, places = best.topk(min(self._k, best.shape[1]))
            found = found.gather(1, places)
        self._parts.append(found.where(best > -torch.inf, PADDING).int().cpu().numpy())

    def lists(self) -> Lists:
        """What was noted, in the order in which it was."""
        return np.concatenate([np.empty((0, self._k), np.int32), *self._parts])


def list_metrics(lists: Lists, cutoffs: Sequence[int], item_counts: NDArray[np.int64]) -> dict[str, float]:
    """Coverage, popularity and share of users with the same list, at each cut-off.

    Parameters
    ----------
    lists
        The recommended items, at least as many as the largest cut-off or all that there are.
    cutoffs
        How many items of each list count.
    item_counts
        How often each item number occurs in training; entry 0 is padding.
    """
    num_items = len(item_counts) - 1
    # The share of the catalogue that is less popular: whatever its size, 0 is the least popular item.
    popularity = np.searchsorted(np.sort(item_counts[1:]), item_counts) / num_items
    coverages, popularities, same = {}, {}, {}
    for k in cutoffs:
        shown = lists[:, :k]
        items = shown[shown != PADDING]
        coverages[f"Coverage@{k}"] = len(np.unique(items)) / num_items
        popularities[f"Popularity@{k}"] = float(popularity[items].sum() / max(1, len(items)))
        same[f"SameList@{k}"] = int(np.unique(shown, axis=0, return_counts=True)[1].max()) / len(lists)
    return coverages | popularities | same


def warn_of_same_lists(found: Mapping[str, float], pop: Mapping[str, float], k: int) -> list[str]:
    """A warning if nearly everybody is offered the same, whatever they did. POP itself is meant to be so.

    If repeats are excluded, even one order of items for everybody gives different lists, because histories differ. Then
    POP shows what that looks like, unless the catalogue is so small that its lists hold most of it: a model that offers
    no more items than POP does, and the same list as often, has learned one order too.
    """
    same, coverage = f"SameList@{k}", f"Coverage@{k}"
    is_like_pop = found[same] >= pop[same] and found[coverage] <= pop[coverage] <= MOST
    if found == pop or not (found[same] > MOST or is_like_pop):
        return []
    return [
        f"The model hardly looks at what users did: {found[same]:.1%} of them are offered the same list of {k} (POP: "
        f"{pop[same]:.1%}), and {found[coverage]:.1%} of all items are offered to somebody (POP: {pop[coverage]:.1%})."
    ]
