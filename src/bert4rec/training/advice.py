"""What a selection shows that its user should know: a training that ended too early, or that learned too little."""

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import Split
from bert4rec.evaluation.judge import judge_among_negatives
from bert4rec.models.model import make_scorer
from bert4rec.models.pop import Pop
from bert4rec.settings.objectives import TrainingConfig

SELECTION_METRIC = "NDCG@10"
"""Under the paper's protocol: it is what the paper reports, and noise is lower than in full ranking."""
LATE = 0.9
"""Share of the steps after which a best validation suggests that more steps might have given more."""
LEARNED = 1.5
"""What a model must reach in multiples of what popularity reaches, or it is likely to have learned nothing else."""


def warn_of_few_steps(training: TrainingConfig, best_step: int) -> list[str]:
    """A warning if validation was at its best close to the end."""
    if best_step <= LATE * training.steps:
        return []
    return [
        f"Validation was at its best at step {best_step:,} of {training.steps:,}, so the model may be "
        f"under-trained. Raise training.steps above {training.steps:,}."
    ]


def warn_of_little_learned(best: float, dataset: Dataset, split: Split) -> list[str]:
    """A warning if the model is hardly better than popularity.

    Weights may collapse until everybody is recommended the same, and the run ends as if nothing were wrong.
    """
    pop = make_scorer(Pop.fit(dataset, split.training_end("valid")))
    popular = judge_among_negatives(pop, dataset, split, "valid", "cpu")[SELECTION_METRIC]
    if best >= LEARNED * popular:
        return []
    relation = "not much more than" if best > popular else "no more than" if best == popular else "less than"
    return [
        f"{SELECTION_METRIC} on the validation items is {best:.4f}, {relation} the {popular:.4f} of recommending the "
        "most popular items to everybody. More training.steps, or a lower training.learning_rate, may help."
    ]
