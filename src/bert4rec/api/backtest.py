"""How good a model is at what came after it: its data ended one day, and users went on.

The model and the later dataset meet by ids, for their numbers differ. An item that the model does not know scores
-inf: as a target it is missed, as a candidate it is nobody's rival.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from bert4rec.api.runs import load
from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories, histories_before
from bert4rec.data.leakage import too_little_to_judge, why_nobody
from bert4rec.data.negatives import NegativeKind
from bert4rec.data.splits import Split, TargetKind, Targets, split_by_time
from bert4rec.data.trained import Trained, in_iso
from bert4rec.errors import DataError, UsageError, one_of
from bert4rec.evaluation.exam import Exam
from bert4rec.evaluation.judge import Evaluation, UserRanks, rows_per_batch
from bert4rec.evaluation.lists import warn_of_same_lists
from bert4rec.evaluation.metrics import cutoffs_of, usual_cutoff
from bert4rec.evaluation.protocol import Ranks, Scorer, rank_targets
from bert4rec.extras import require_torch
from bert4rec.logs.times import format_moment, parse_moment
from bert4rec.progress import progress_bar
from bert4rec.recommend.recommender import Recommender
from bert4rec.training.plan import open_dataset

if TYPE_CHECKING:
    from bert4rec.training.run import Run


@dataclass(frozen=True, repr=False, kw_only=True)
class Backtest(Evaluation):
    """How good a model is at what users did after its data ended, beside POP and a Markov chain.

    POP and the chain count everything before that moment. `split` is "later", `stage` that of the model's weights.
    """

    since: str
    """From when on actions are asked for, in ISO 8601 and UTC."""
    trained: Trained | None
    """What the model was trained on, if it knows."""
    unknown_targets: float
    """Share of the actions asked for whose item the model does not know. They count as missed."""
    unknown_actions: float
    """Share of the actions of all histories whose item the model does not know. They are left out of the histories."""
    strangers: int
    """Users who act from then on and never did before. They are not asked about."""
    ranks: UserRanks | None
    """The rank of every user's target, to compare two models user by user; None if all items were asked for."""

    @property
    def stranger_share(self) -> float:
        """Of all users who act from then on."""
        return self.strangers / (self.strangers + self.users + self.left_out)

    def as_dict(self) -> dict[str, Any]:
        """All numbers but the ranks, ready for JSON."""
        values = asdict(replace(self, ranks=None))
        del values["warnings"], values["ranks"]
        return {**values, "stranger_share": self.stranger_share}


def backtest(
    model: "Recommender | Run | str | Path",
    dataset: Dataset | str | Path,
    *,
    since: str | date | None = None,
    k: int | Iterable[int] = (1, 5, 10),
    targets: TargetKind = "next",
    negatives: NegativeKind = "popularity",
    device: str = "auto",
    progress: bool | None = None,
) -> Backtest:
    """Judge a model on what users did after its data ended: last week's model on this week's actions.

    Each user's first action after that moment is asked for, with all that the user did before as history. A run is
    judged by the weights that recommend.

    Parameters
    ----------
    model
        A run or its folder, the folder of an exported model, or what `bert4rec.load` gave.
    dataset
        A later dataset, or its folder: with ids as in the model's own, and with times.
    since
        Ask for actions from this date on. By default, for those after the newest that the model was trained on.
    k
        Cut-offs of the metrics: one or several.
    targets
        "next": one item a user, under both protocols. "all": everything that users do from then on, each item once
        and in no order; in full ranking, with recall and precision.
    negatives
        Which stored candidates the sampled protocol uses.
    device
        Of a run: "auto", "cpu", "cuda", "cuda:1" or "mps".
    progress
        Whether to show a progress bar; None shows one in notebooks.
    """
    require_torch()
    from bert4rec.models.model import make_scorer
    from bert4rec.models.pop import Pop

    one_of("negatives", negatives, get_args(NegativeKind))
    one_of("targets", targets, get_args(TargetKind))
    cutoffs = cutoffs_of(k)
    data, recommender = open_dataset(dataset), _recommender_of(model, device)
    numbers = _numbers_by_ids(recommender, data)
    moment = _moment(recommender, data, since)
    split = _split_at(data, moment)
    exam = Exam(data, split, "test", targets, negatives, cutoffs)
    if not len(exam.asked):
        raise DataError(f"There is nobody to ask: {why_nobody(split)}")
    if data.path:
        data.verify()
    with progress_bar("Evaluating", "users", progress) as report:
        found = exam.judge(_scorer_by_ids(recommender, numbers), "cpu", report)
    pop = exam.judge(make_scorer(Pop.fit(data, split.test_cut)))
    trained, asked = recommender.trained, exam.asked
    wanted = exam.sets.items.flat()[1] if exam.sets else data.sequences[asked.positions]
    _, before = histories_before(data, asked.users, asked.positions).flat()
    is_strange = (split.test_cut == data.offsets[:-1]) & (split.test_cut < data.offsets[1:])
    users = data.users()["id"].gather(asked.users)
    return Backtest(
        dataset=data.name,
        model=trained.model if trained else recommender.name,
        stage=trained.stage if trained else "final",
        split="later",
        targets=targets,
        repeats=data.repeats,
        users=len(asked),
        left_out=asked.left_out,
        metrics=found.metrics,
        lists=found.lists,
        slices=found.slices,
        pop=pop.metrics,
        pop_lists=pop.lists,
        markov=exam.judge_markov(),
        warnings=_warnings(recommender, data, moment)
        + too_little_to_judge(data, asked)
        + warn_of_same_lists(found.lists, pop.lists, usual_cutoff(cutoffs)),
        since=in_iso(moment),
        trained=trained,
        unknown_targets=float(np.mean(numbers[wanted] == 0)),
        unknown_actions=float(np.mean(numbers[before] == 0)),
        strangers=int(np.count_nonzero(is_strange)),
        ranks=UserRanks(users, found.ranks.sampled, found.ranks.full) if found.ranks else None,
    )


def rank_by_ids(
    model: "Recommender | Run | str | Path",
    dataset: Dataset | str | Path,
    targets: Targets,
    *,
    negatives: NegativeKind = "popularity",
    device: str = "auto",
) -> Ranks:
    """Where a model ranks these targets of a dataset that need not be its own: they meet by ids.

    The parameters are those of `backtest`; ranks are in the order of the targets, so that those of two models can be
    compared user by user. An exported model needs no torch for this.
    """
    data, recommender = open_dataset(dataset), _recommender_of(model, device)
    return rank_targets(
        _scorer_by_ids(recommender, _numbers_by_ids(recommender, data)),
        data,
        targets,
        negatives=data.negatives(negatives),
        batch_size=rows_per_batch(data.num_items, "cpu"),
    )


def _recommender_of(model: "Recommender | Run | str | Path", device: str) -> Recommender:
    recommender = model if isinstance(model, Recommender) else load(model, device=device)
    if recommender.user_scorer is not None:
        raise UsageError(
            f"{recommender.user_scorer.title} cannot be judged on another dataset: it answers only for users that it "
            "was trained with. Use a model such as BERT4Rec or SASRec."
        )
    return recommender


def _numbers_by_ids(recommender: Recommender, dataset: Dataset) -> NDArray[np.int32]:
    """The model's number for each number of the dataset, from 0 on; 0 for items that it does not know."""
    ids, catalogue = dataset.items()["id"], recommender.catalogue
    numbers = catalogue.numbers_of_column(ids)
    if not numbers.any():
        raise DataError(
            f"The model knows none of the {len(ids):,} items of {dataset.where}: their ids are such as {ids[0]!r}, its "
            f"own such as {catalogue.known_id!r}. Prepare the later log with the same ids."
        )
    return np.concatenate([np.zeros(1, np.int32), numbers])


def _scorer_by_ids(recommender: Recommender, numbers: NDArray[np.int32]) -> Scorer:
    """The model as a scorer in the numbers of another dataset. Histories without known items go by popularity."""
    ranker, known = recommender.ranker, np.flatnonzero(numbers)

    def scores(_users: NDArray[np.int64], histories: Histories) -> NDArray[np.float32]:
        rows, items = histories.flat()
        own = numbers[items]
        end = np.cumsum(np.bincount(rows[own > 0], minlength=len(histories)))
        translated = Histories(own[own > 0], np.concatenate([[0], end[:-1]]), end)
        found = np.full((len(histories), len(numbers)), -np.inf, np.float32)
        found[:, known] = ranker.scores(translated)[:, numbers[known] - 1]
        return found

    return scores


def _moment(recommender: Recommender, dataset: Dataset, since: str | date | None) -> int:
    """From when on actions are asked for, in microseconds since 1970."""
    if dataset.times is None:
        raise DataError(
            f"{dataset.where} has no times, so it does not tell what came after the model's data ended. Prepare it "
            "with `time`."
        )
    if since is not None:
        return parse_moment(str(since))
    until = recommender.trained.until if recommender.trained else None
    if until is None:
        raise UsageError(
            'The model does not tell when its data ended. Pass `since`, such as `since="2024-06-01"`.'
        )
    return parse_moment(until) + 1


def _split_at(dataset: Dataset, moment: int) -> Split:
    assert dataset.times is not None
    newest, told = int(dataset.times.max()), format_moment(moment)
    if newest < moment:
        raise DataError(
            f"Nobody in {dataset.where} did anything after the model's data ended: its newest action is of "
            f"{format_moment(newest)}. Prepare a later log, or pass an earlier `since`."
        )
    try:
        return split_by_time(dataset, moment, moment - 1)
    except DataError as error:
        raise DataError(
            f"Nobody in {dataset.where} acts both before {told} and from then on, so no history leads to what is asked "
            "for. Prepare a log that also holds what came before."
        ) from error


def _warnings(recommender: Recommender, dataset: Dataset, moment: int) -> list[str]:
    trained, warnings = recommender.trained, []
    if trained and trained.until and moment <= parse_moment(trained.until):
        warnings.append(
            f"The model was trained on actions until {trained.until}: it has seen some of what it is asked for."
        )
    if recommender.exclude_seen != (dataset.repeats == "exclude"):
        does = "leaves out" if recommender.exclude_seen else "recommends"
        warnings.append(
            f'The model {does} items of a history, but the dataset says `repeats="{dataset.repeats}"`, by which it is '
            "asked."
        )
    return warnings
