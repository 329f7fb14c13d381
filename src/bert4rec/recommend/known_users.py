"""Recommendations for users of the dataset, from any model; some models know nobody else."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories
from bert4rec.errors import NotFoundError
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.ids import slips, spellings
from bert4rec.recommend.recommender import Item, ItemId, Recommendation

if TYPE_CHECKING:
    import polars as pl

    from bert4rec.training.device import Placement
    from bert4rec.training.run import Run


def user_number(dataset: Dataset, user: str) -> int:
    """The place of a user in the dataset, by the original id."""
    import polars as pl

    known = dataset.users()["id"]
    ids = known.cast(pl.String)
    for spelling in spellings(user, whole_numbers=known.dtype.is_integer()):
        found = (ids == spelling).arg_true()
        if len(found):
            return int(found[0])
    raise NotFoundError(f"{dataset.path} knows no user {user!r}; {_advice(dataset, ids, user.strip())}")


def _advice(dataset: Dataset, ids: "pl.Series", user: str) -> str:
    near = ids.filter((ids.str.to_lowercase() == user.lower()) | ids.is_in(list(slips(user))))
    hint = f"did you mean {near[0]!r}?" if len(near) else f"one that it knows is {ids[0]!r}."
    filters = dataset.manifest["filters"]
    fewest = max(filters["min_user_actions"], filters["k_core"])
    dropped = (
        f" Users with fewer than {fewest} actions were dropped by `bert4rec prepare`." if fewest > 1 else ""
    )
    return f"{hint}{dropped} Models such as BERT4Rec also take actions, with --history."


def history_of(dataset: Dataset, user: int) -> list[str]:
    """The ids of all that a user did, oldest first."""
    import polars as pl

    ids: list[str] = dataset.items()["id"].gather(dataset.history(user) - 1).cast(pl.String).to_list()
    return ids


def recommend_to_user(
    run: "Run",
    catalogue: Catalogue,
    dataset: Dataset,
    user: int,
    placement: "Placement",
    k: int,
    *,
    exclude_seen: bool | None,
    allow: Iterable[ItemId] | None,
    deny: Iterable[ItemId] | None,
) -> Recommendation:
    """What any model of `training.models` recommends to a user it was trained with."""
    import torch

    from bert4rec.models.model import make_scorer

    if exclude_seen is None:
        exclude_seen = run.plan.repeats == "exclude"
    allowed, unknown = (None, []) if allow is None else catalogue.numbers(allow, "allow")
    denied, more_unknown = catalogue.numbers(deny or (), "deny")
    history = Histories.from_lists([dataset.history(user).tolist()])
    model = run.load_model("test", placement.device)
    scorer = make_scorer(model, placement.dtype)
    scores = torch.as_tensor(scorer(np.array([user]), history))[0].double().cpu().numpy()
    possible = np.ones(len(scores), bool) if allowed is None else np.isin(np.arange(len(scores)), allowed)
    possible[[0, *denied, *(history.items if exclude_seen else ())]] = False
    candidates = np.flatnonzero(possible)
    best = candidates[np.argsort(-scores[candidates], kind="stable")[:k]]
    items = [
        Item(catalogue.id_of(number), catalogue.title_of(number), float(scores[number])) for number in best
    ]
    return Recommendation(items, min(len(history.items), model.max_history), [*unknown, *more_unknown], None)
