"""How good a run is on its held-out items: what `Run.evaluate` does."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import get_args

from bert4rec.data.dataset import Dataset
from bert4rec.data.leakage import too_little_to_judge
from bert4rec.data.negatives import NegativeKind
from bert4rec.data.splits import PARTS, Part, TargetKind, make_split
from bert4rec.errors import DataError, one_of
from bert4rec.evaluation.exam import Exam
from bert4rec.evaluation.judge import Evaluation
from bert4rec.evaluation.lists import warn_of_same_lists
from bert4rec.evaluation.metrics import cutoffs_of, usual_cutoff
from bert4rec.models.model import make_scorer
from bert4rec.models.pop import Pop
from bert4rec.progress import progress_bar
from bert4rec.training.device import place
from bert4rec.training.plan import open_dataset
from bert4rec.training.run import Run


def evaluate_run(
    run: Run,
    split: Part,
    k: int | Iterable[int],
    *,
    targets: TargetKind,
    dataset: Dataset | str | Path | None,
    negatives: NegativeKind,
    device: str,
    progress: bool | None,
) -> Evaluation:
    """Judge validation items by the weights that never saw them, and test items by those that were tested."""
    one_of("split", split, PARTS)
    one_of("negatives", negatives, get_args(NegativeKind))
    one_of("targets", targets, get_args(TargetKind))
    cutoffs = cutoffs_of(k)
    run.verify()
    if dataset is not None and open_dataset(dataset).checksum != run.plan.data_checksum:
        raise DataError(
            f"The run was trained on another dataset than {open_dataset(dataset).where}. To judge it on what users did "
            "later, use `backtest(run, dataset)`."
        )
    data, placement = run.verified_dataset(dataset), place(device)
    cut = make_split(data, run.plan.split)
    exam = Exam(data, cut, split, targets, negatives, cutoffs)
    scorer = run.scorer("selection" if split == "valid" else "tested", placement)
    with progress_bar("Evaluating", "users", progress) as report:
        found = exam.judge(scorer, placement.device.type, report)
    if found.ranks and negatives == "popularity":
        with suppress(OSError):  # The folder may be read-only.
            run.keep_ranks(split, found.ranks)
    pop = exam.judge(make_scorer(Pop.fit(data, cut.training_end(split))))
    return Evaluation(
        dataset=data.name,
        model=run.plan.model,
        stage="selection" if split == "valid" else run.plan.tested_stage,
        split=split,
        targets=targets,
        repeats=data.repeats,
        users=len(exam.asked),
        left_out=exam.asked.left_out,
        metrics=found.metrics,
        lists=found.lists,
        slices=found.slices,
        pop=pop.metrics,
        pop_lists=pop.lists,
        markov=exam.judge_markov(),
        warnings=too_little_to_judge(data, exam.asked)
        + warn_of_same_lists(found.lists, pop.lists, usual_cutoff(cutoffs)),
    )
