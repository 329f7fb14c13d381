"""What mattered in a search: which settings made a trial one of the best, and how the best value rose."""

import warnings
from collections.abc import Sequence

import optuna
from optuna.trial import FrozenTrial

from bert4rec.plotting import new_figure, save_figure
from bert4rec.tuning.outcome import Tuning

FEWEST = 8
"""Trials below which nothing can be said."""
BEST = 0.3
"""Share of the trials that count as the best."""
SHOWN = 8
"""Settings in the figure."""


def importance_of(trials: Sequence[FrozenTrial]) -> dict[str, float]:
    """How much each setting decided whether a trial was among the best (PED-ANOVA); the shares sum to 1.

    Pruned trials count with the value they had reached: they were given up because they would not be among the best.
    """
    judged = [trial for trial in trials if trial.value is not None]
    if len(judged) < FEWEST:
        return {}
    study = optuna.create_study(direction="maximize")
    for trial in judged:
        study.add_trial(
            optuna.trial.create_trial(
                params=trial.params, distributions=trial.distributions, value=trial.value
            )
        )
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=BEST)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It says that few trials tell little.
        return optuna.importance.get_param_importances(study, evaluator=evaluator)


def draw(tuning: Tuning) -> None:
    """The search over time, and what mattered, side by side."""
    figure, (left, right) = new_figure(columns=2)
    judged = [trial for trial in tuning.trials if trial.value is not None]
    for state, colour, label in (("complete", "C0", "trial"), ("pruned", "0.7", "given up")):
        points = [(trial.minute, trial.value) for trial in judged if trial.state == state]
        if points:
            left.plot(*zip(*points, strict=True), "o", color=colour, markersize=4, label=label)
    complete = [trial for trial in judged if trial.state == "complete"]
    best = [max(trial.value or 0.0 for trial in complete[: i + 1]) for i in range(len(complete))]
    left.step([trial.minute for trial in complete], best, where="post", color="C0", label="best so far")
    left.axhline(complete[0].value, color="C1", linestyle="--", label="default")
    left.set(
        xlabel="minutes", ylabel=f"{tuning.metric}, validation items", title="The search", xlim=(0, None)
    )
    left.legend(fontsize="small")
    shown = list(tuning.importance.items())[:SHOWN][::-1]
    right.barh([name for name, _ in shown], [share for _, share in shown], color="C0")
    right.set(xlabel="share", title="What mattered")
    right.set_axisbelow(True)
    right.grid(visible=False, axis="y")
    if not shown:
        right.text(
            0.5, 0.5, "too little was found to tell", ha="center", va="center", transform=right.transAxes
        )
        right.set(xticks=[], yticks=[])
    figure.suptitle(f"{tuning.model} on {tuning.dataset}: {len(tuning.trials)} trials")
    save_figure(figure, tuning.figure)
