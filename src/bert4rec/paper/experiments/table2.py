"""Table 2: nine models, six metrics."""

from bert4rec.evaluation.metrics import METRICS
from bert4rec.evaluation.significance import Difference
from bert4rec.paper.experiments.cases import BASELINES, BERT4REC, SOFTMAX, Case, Experiment, overall_cases
from bert4rec.paper.reporting.evidence import Evidence, SeedResults, compare, judge_direction
from bert4rec.paper.reporting.layout import (
    Dumbbells,
    Figure,
    Findings,
    Measured,
    Row,
    Statement,
    Table,
    p_text,
    percent,
    signed,
)
from bert4rec.paper.reporting.printed import printed

SIGNIFICANT = 0.01
"""As the paper has it."""
OURS = BERT4REC.label


def lay_out(evidence: Evidence) -> Findings:
    found = {case.label: run for case in overall_cases(evidence.facts) if (run := evidence.find(case))}
    beyond = {case.label for case in SOFTMAX}
    baselines = [label for label in found if label not in {OURS, *beyond}]
    tables = [_metrics(evidence, "sampled"), _metrics(evidence, "full")]
    statements = []
    if OURS in found and baselines:
        best = {metric: _best(found, baselines, metric) for metric in METRICS}
        gains = {metric: compare(found[OURS], found[best[metric]], metric) for metric in METRICS}
        tables.insert(1, _improvements(evidence, best, gains))
        statements.append(_best_of_nine(evidence, found, best, gains, len(baselines)))
        others = [_against(found[OURS], found[label], label) for label in sorted(beyond & found.keys())]
        statements += [each for each in others if each.verdict == "contradiction"]
    return Findings(tables, statements, _figures(evidence, found))


def _paper(evidence: Evidence, metric: str, label: str) -> float | None:
    value: float | None = printed("table2_overall", evidence.facts.title, metric, label)
    return value


def _metrics(evidence: Evidence, protocol: str) -> Table:
    def cell(case: Case, metric: str) -> Measured | None:
        theirs = _paper(evidence, metric, case.label) if protocol == "sampled" else None
        return evidence.measured(case, metric, protocol=protocol, paper=theirs)

    title = {
        "sampled": "The paper's protocol: 100 negatives drawn by popularity",
        "full": "Full ranking: all items that are not in the history are candidates. The paper has no such numbers",
    }[protocol]
    rows = [
        Row(case.label, [cell(case, metric) for metric in METRICS], beyond=case in SOFTMAX)
        for case in overall_cases(evidence.facts)
    ]
    return Table(title, METRICS, rows)


def _best(found: dict[str, SeedResults], labels: list[str], metric: str) -> str:
    return max(labels, key=lambda label: found[label].mean(metric))


def _improvements(evidence: Evidence, best: dict[str, str], gains: dict[str, Difference | None]) -> Table:
    rows = []
    for metric, gain in gains.items():
        ours = [best[metric], "–", "–", "–"]
        if gain:
            spread = f"{signed(gain.difference)} [{signed(gain.low)}, {signed(gain.high)}]"
            ours = [best[metric], percent(gain.share), spread, p_text(gain.p_value)]
        share, strongest = _printed_gain(evidence, metric)
        rows.append(Row(metric, [*ours, f"{percent(share)} over {strongest}" if strongest else "–"]))
    columns = ["best baseline", "improvement", "difference and interval", "t-test", "paper"]
    title = "Improvement of BERT4Rec over the best of the eight baselines"
    note = "Interval and t-test are over users, paired, and seeds."
    return Table(title, columns, rows, note)


def _printed_gain(evidence: Evidence, metric: str) -> tuple[float, str]:
    """The paper's improvement, and over which model; 0 and "" if the paper has no such numbers."""
    theirs = printed("table2_overall", evidence.facts.title, metric)
    if not theirs:
        return 0.0, ""
    others = {label: value for label, value in theirs.items() if label != OURS}
    strongest = max(others, key=lambda label: others[label])
    return theirs[OURS] / others[strongest] - 1, strongest


def _best_of_nine(
    evidence: Evidence,
    found: dict[str, SeedResults],
    best: dict[str, str],
    gains: dict[str, Difference | None],
    baselines: int,
) -> Statement:
    sure = [
        metric for metric, gain in gains.items() if gain and gain.direction > 0 and gain.p_value < SIGNIFICANT
    ]
    verdict = judge_direction(gains.values())
    if all(gain and gain.shares[1] < _printed_gain(evidence, metric)[0] for metric, gain in gains.items()):
        verdict = "not reproduced"  # It may be a tie, but it is not the paper's lead.
    if verdict == "reproduced" and (len(sure) < len(gains) or baselines < len(BASELINES)):
        verdict = "undecided"
    losers = best.values() if verdict == "reproduced" else [OURS]
    shares = ", ".join(
        f"{metric} {percent(gain.share)} against {best[metric]}" for metric, gain in gains.items() if gain
    )
    return Statement(
        "BERT4Rec is the best of the nine models on every metric, with p < 0.01.",
        verdict,
        f"{shares}. Better with p < {SIGNIFICANT} on {len(sure)} of {len(gains)} metrics; {baselines} baselines.",
        all(found[label].at_last_step for label in losers),
    )


def _against(ours: SeedResults, other: SeedResults, label: str) -> Statement:
    """Whether BERT4Rec still leads when a baseline has the same loss."""
    shares, directions = [], []
    for protocol, name in (("sampled", "the paper's protocol"), ("full", "full ranking")):
        gain = compare(other, ours, "NDCG@10", protocol)
        if gain:
            directions.append(gain.direction)
            shares.append(f"{percent(gain.share)} NDCG@10 under {name} ({p_text(gain.p_value)})")
    above, below = 1 in directions, -1 in directions
    word = "above" if above and not below else "below" if below and not above else "neither above nor below"
    return Statement(
        f"{label.removesuffix(' (softmax)')} trained with the exact softmax is {word} BERT4Rec.",
        "contradiction" if word == "above" else "finding",
        f"Compared with BERT4Rec: {', '.join(shares)}.",
        ours.at_last_step,
    )


def _figures(evidence: Evidence, found: dict[str, SeedResults]) -> list[Figure]:
    rows = [
        (label, run.measured("NDCG@10", paper=_paper(evidence, "NDCG@10", label)))
        for label, run in found.items()
    ]
    if not rows:
        return []
    caption = f"{evidence.facts.title}: NDCG@10 under the paper's protocol, ours with 95% intervals."
    return [Figure("table2", caption, Dumbbells("NDCG@10", rows))]


TABLE2 = Experiment(
    "table2",
    "Table 2: nine models",
    "Every model has its tuned preset, chosen on the validation items. It is then refitted on all but the test items "
    "and tested once. The rows in italics are not in the paper: GRU4Rec+ and SASRec with BERT4Rec's own loss, the "
    "exact softmax over all items, instead of the sampled losses of their papers.",
    overall_cases,
    lay_out,
    seeds=(1, 2, 3),
)
