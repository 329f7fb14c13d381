"""What the paper says of a setting that is varied: where it is best, and whether it matters."""

from bert4rec.experiments.evidence import Found, compare
from bert4rec.experiments.layout import TOLERANCE, Statement, Verdict, percent

METRIC = "NDCG@10"


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
