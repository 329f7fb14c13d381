"""Trainings that come to nothing, and how that shows while they run."""

from collections.abc import Mapping, Sequence
from typing import Any

from bert4rec.evaluation.yardsticks import LEARNED
from bert4rec.settings.objectives import TrainingConfig
from bert4rec.training.loop import TrainingProgress

NO_BETTER = 1.1
"""Up to this multiple of popularity's value, a validation is no better than popularity."""
LOWER = 0.99
"""Down to this multiple of what it was two validations before, a loss has fallen."""
LEARNED_AT_LEAST = 0.05
"""By this share of itself a selection's loss must have fallen before a refit's is compared with it."""


class CollapsedError(Exception):
    """Training has come to nothing, and the message says how that shows. A lower learning rate may help."""


def why_collapsed(progress: TrainingProgress, config: TrainingConfig, popular: float) -> str:
    """How it shows that a training has come to nothing; empty as long as something may become of it.

    Collapsed weights recommend the same to everybody, and the best of that is popularity, whose value is `popular`.
    Many a model begins there and leaves after a while, so it is a collapse only where it lasts beyond the warm-up:

    - two validations in a row are no better than popularity after one that was much better, and the loss is higher
      than it was then; of a model that over-fits it would be lower;
    - three in a row are no better, half of the steps or all patience is used up, and the loss has stopped falling or
      has been higher than it was at first; of a model that only learns slowly it falls all the time.
    """
    marks = [mark for mark in progress.history if mark["step"] > config.warmup_steps]
    low = [mark for mark in marks[-3:] if mark["value"] <= NO_BETTER * popular]
    if len(low) < 2 or low[-2:] != marks[-2:]:
        return ""
    last, best = marks[-1], max(marks, key=lambda mark: float(mark["value"]))
    told = f"{progress.metric} is {last['value']:.4f}, no better than the {popular:.4f} of the most popular items"
    if best["value"] >= LEARNED * popular and last["loss"] > best["loss"]:
        return f"{told}, after {best['value']:.4f} at step {best['step']:,}"
    is_late = last["step"] >= config.steps / 2 or progress.stale >= config.patience
    losses = [mark["loss"] for mark in progress.history]
    is_learning = last["loss"] <= LOWER * low[0]["loss"] and max(losses) == losses[0]
    return told if is_late and len(low) == 3 and not is_learning else ""


def why_fallen_behind(
    marks: Sequence[Mapping[str, Any]],
    selection: Sequence[Mapping[str, Any]],
    warmup_steps: int,
    last_step: int,
) -> str:
    """How it shows that a refit has come to nothing though the selection did not; empty as long as all is well.

    There is no validation in a refit, but the selection has left its losses at the same steps. Three in a row, or all
    at the end, are more above them than halfway back to where it began; more data makes no such difference.
    """
    theirs = {mark["step"]: mark["loss"] for mark in selection}
    shared = [mark for mark in marks if mark["step"] in theirs and mark["step"] > warmup_steps][-3:]
    is_enough = len(shared) == 3 or (shared and shared[-1]["step"] == last_step)
    if not is_enough or not all(_is_far_above(mark["loss"], theirs, mark["step"]) for mark in shared):
        return ""
    last = shared[-1]
    return f"the loss is {last['loss']:.4f}, but in the selection it was {theirs[last['step']]:.4f}"


def _is_far_above(loss: float, theirs: Mapping[int, float], step: int) -> bool:
    learned = max(theirs.values()) - theirs[step]
    return learned > LEARNED_AT_LEAST * theirs[step] and loss > theirs[step] + learned / 2
