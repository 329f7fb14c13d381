"""What the paper says of a setting that is varied: where it is best, whether it matters, and what spoils the sweep."""

from bert4rec.experiments.cases import BERT4REC, SMALL_DEFAULT, WITHOUT_DROPOUT
from bert4rec.experiments.evidence import Evidence, Found, compare
from bert4rec.experiments.layout import TOLERANCE, Statement, Verdict, percent

METRIC = "NDCG@10"


def too_much_dropout(evidence: Evidence) -> Statement | None:
    """That small models are better without dropout, where they surely are; then all of a sweep is too low."""
    without, default = evidence.find(WITHOUT_DROPOUT), evidence.find(SMALL_DEFAULT)
    change = compare(without, default, METRIC) if without and default else None
    if not (without and default and change and change.direction > 0):
        return None
    low, high = map(percent, change.shares)
    made_for = BERT4REC.config(evidence.facts.family).as_dict()["model"]["dim"]
    return Statement(
        "At d = 64 BERT4Rec is worse without dropout.",
        "not reproduced",
        f"{METRIC} {default.mean(METRIC):.4f} with the preset's dropout, {without.mean(METRIC):.4f} without: "
        f"{percent(change.share)} ({low} to {high}). The preset is made for d = {made_for}, and its dropout is too "
        "strong at d = 64, at this number of steps. So BERT4Rec's numbers there (Figures 3 and 4, Tables 4 and 5), "
        "and probably at smaller d, are lower than they could be.",
        default.at_last_step,
    )


def dropout_note(evidence: Evidence) -> str:
    """The same in short, for the tables that it concerns."""
    if too_much_dropout(evidence) is None:
        return ""
    return (
        "BERT4Rec's numbers at d = 64, and probably at smaller d, are lower than they could be: the preset's dropout "
        "is too strong there (see Table 5)."
    )


def best_setting(name: str, found: dict[float, Found], expected: float) -> Statement:
    """Whether the paper's best value is ours too; undecided where ours is another, but not surely better."""
    ours = max(found, key=lambda value: found[value].mean(METRIC))
    text = f"The best {name} is {expected:g}."
    evidence = f"Ours is {name} = {ours:g} with NDCG@10 {found[ours].mean(METRIC):.4f}"
    if expected not in found:
        return Statement(text, "undecided", f"{evidence}; {name} = {expected:g} is missing.")
    if ours == expected:
        return Statement(text, "reproduced", f"{evidence}.")
    evidence += f"; {name} = {expected:g} has {found[expected].mean(METRIC):.4f}."
    gap = compare(found[ours], found[expected], METRIC)
    verdict: Verdict = "not reproduced" if gap and gap.direction > 0 else "undecided"
    return Statement(text, verdict, evidence, found[expected].at_last_step)


def steadiness(name: str, found: dict[float, Found]) -> Statement:
    """Whether the largest value does as well as the best."""
    best, largest = max(run.mean(METRIC) for run in found.values()), found[max(found)]
    share = largest.mean(METRIC) / best - 1
    told = f"is {percent(share)} from the best" if share else "is the best"
    return Statement(
        f"NDCG@10 stays stable as {name} grows: the largest {name} is within {TOLERANCE:.0%} of the best.",
        "reproduced" if share >= -TOLERANCE else "not reproduced",
        f"{name} = {max(found):g} {told}.",
        largest.at_last_step,
    )


def worse(name: str, found: dict[float, Found], low: float, high: float) -> Statement | None:
    """Whether `low` does worse than `high`."""
    if low not in found or high not in found:
        return None
    gap = compare(found[high], found[low], METRIC)
    verdict: Verdict = "undecided"
    if gap and gap.direction:
        verdict = "reproduced" if gap.direction > 0 else "not reproduced"
    values = ", ".join(f"{name} = {value:g}: {found[value].mean(METRIC):.4f}" for value in (low, high))
    text = f"{name} = {high:g} is better than {name} = {low:g}."
    return Statement(text, verdict, f"{values}.", found[high].at_last_step)
