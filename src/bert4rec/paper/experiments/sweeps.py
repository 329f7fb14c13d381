"""What the paper says about a setting that is varied: where it is best, and whether it matters."""

from bert4rec.paper.reporting.evidence import SeedResults, compare, judge_direction
from bert4rec.paper.reporting.layout import TOLERANCE, Statement, Verdict, percent

METRIC = "NDCG@10"


def best_setting(name: str, found: dict[float, SeedResults], expected: float) -> Statement:
    """Whether the paper's best value is also ours; undecided if it is not clearly better than the next."""
    ours, second, *_ = sorted(found, key=lambda value: -found[value].mean(METRIC))
    text = f"The best {name} is {expected:g}."
    evidence = f"Ours is {name} = {ours:g} with {METRIC} {found[ours].mean(METRIC):.4f}"
    if expected not in found:
        return Statement(text, "undecided", f"{evidence}; {name} = {expected:g} is missing.")
    rival = second if ours == expected else expected
    evidence += f"; {name} = {rival:g} has {found[rival].mean(METRIC):.4f}."
    gap = compare(found[ours], found[rival], METRIC)
    verdict: Verdict = "undecided"
    if gap and gap.direction > 0:
        verdict = "reproduced" if ours == expected else "not reproduced"
    return Statement(text, verdict, evidence, found[rival].at_last_step)


def steadiness(name: str, found: dict[float, SeedResults]) -> Statement:
    """Whether the largest value is as good as the best."""
    text = f"{METRIC} stays stable as {name} grows: the largest {name} is within {TOLERANCE:.0%} of the best."
    best, largest = max(found.values(), key=lambda run: run.mean(METRIC)), found[max(found)]
    if largest is best:
        return Statement(text, "reproduced", f"{name} = {max(found):g} is the best.")
    gap = compare(largest, best, METRIC)
    if gap is None:
        return Statement(text, "undecided", f"{name} = {max(found):g} has {largest.mean(METRIC):.4f}.")
    low, high = gap.shares
    verdict: Verdict = "undecided"
    if low >= -TOLERANCE or high < -TOLERANCE:
        verdict = "not reproduced" if high < -TOLERANCE else "reproduced"
    evidence = (
        f"{name} = {max(found):g} is {percent(gap.share)} ({percent(low)} to {percent(high)}) from the best."
    )
    return Statement(text, verdict, evidence, largest.at_last_step and verdict == "not reproduced")


def worse(name: str, found: dict[float, SeedResults], low: float, high: float) -> Statement | None:
    """Whether `low` is worse than `high`."""
    if low not in found or high not in found:
        return None
    verdict = judge_direction([compare(found[high], found[low], METRIC)])
    values = ", ".join(f"{name} = {value:g}: {found[value].mean(METRIC):.4f}" for value in (low, high))
    text = f"{name} = {high:g} is better than {name} = {low:g}."
    loser = found[low if verdict == "reproduced" else high]
    return Statement(text, verdict, f"{values}.", loser.at_last_step)
