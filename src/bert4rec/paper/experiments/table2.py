"""Table 2: nine models, six metrics."""

from bert4rec.evaluation.metrics import METRICS
from bert4rec.evaluation.significance import Difference
from bert4rec.paper.experiments.cases import (
    BASELINES,
    BERT4REC,
    BEYOND,
    PLUS,
    SOFTMAX,
    Case,
    Experiment,
    overall_cases,
)
from bert4rec.paper.reporting.evidence import (
    UNDER,
    Evidence,
    SeedResults,
    Standing,
    compare,
    judge_direction,
    told,
)
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
    baselines = [case.label for case in BASELINES if case.label in found]
    tables = [_metrics(evidence, "sampled"), _metrics(evidence, "full")]
    statements = []
    if OURS in found and baselines:
        best = {metric: _best(found, baselines, metric) for metric in METRICS}
        gains = {metric: compare(found[OURS], found[best[metric]], metric) for metric in METRICS}
        tables.insert(1, _improvements(evidence, best, gains))
        statements.append(_best_of_nine(evidence, found, best, gains, len(baselines)))
        others = [_against(found[OURS], found[case.label], case) for case in SOFTMAX if case.label in found]
        statements += [each for each in others if each.verdict == "contradiction"]
    if PLUS.label in found and len(found) > 1:
        statements.append(_plus(found, len(overall_cases(evidence.facts))))
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
        Row(case.label, [cell(case, metric) for metric in METRICS], beyond=case in BEYOND)
        for case in overall_cases(evidence.facts)
    ]
    return Table(title, METRICS, rows)


def _best(found: dict[str, SeedResults], labels: list[str], metric: str, protocol: str = "sampled") -> str:
    return max(labels, key=lambda label: found[label].mean(metric, protocol))


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


def _against(ours: SeedResults, other: SeedResults, case: Case) -> Statement:
    """Whether BERT4Rec still leads when a baseline has the same loss."""
    standing = Standing.of(other, ours)
    return Statement(
        f"{case.label.removesuffix(' (softmax)')} trained with the exact softmax is {standing.word} BERT4Rec.",
        "contradiction" if standing.word == "above" else "finding",
        f"Compared with BERT4Rec: {standing}.",
        ours.at_last_step,
    )


def _plus(found: dict[str, SeedResults], rows: int) -> Statement:
    """Whether our own model is above every other row of the table."""
    ours, others = found[PLUS.label], [label for label in found if label != PLUS.label]
    unsure = [label for label in others if not Standing.of(ours, found[label]).is_above_twice]
    best = {protocol: _best(found, others, "NDCG@10", protocol) for protocol in UNDER}
    gaps = {protocol: compare(ours, found[label], "NDCG@10", protocol) for protocol, label in best.items()}
    leads = "; ".join(
        f"{told(gap)} against {best[protocol]} {UNDER[protocol]}" for protocol, gap in gaps.items() if gap
    )
    doubts = f" Not surely above: {', '.join(unsure)}." if unsure else ""
    return Statement(
        f"BERT4Rec+ is {'not ' if unsure else ''}above every other model by NDCG@10 under both protocols.",
        "finding" if len(found) == rows else "undecided",
        f"Compared with the best of the others: NDCG@10 {leads}.{doubts}",
        ours.at_last_step if unsure else all(found[label].at_last_step for label in best.values()),
    )


def _figures(evidence: Evidence, found: dict[str, SeedResults]) -> list[Figure]:
    rows = [
        (label, run.measured("NDCG@10", paper=_paper(evidence, "NDCG@10", label)))
        for label, run in found.items()
    ]
    if not rows:
        return []
    caption = f"{evidence.facts.title}: NDCG@10 under the paper's protocol, ours with 95% intervals."
    return [Figure("table2", caption, Dumbbells({"NDCG@10": rows}))]


TABLE2 = Experiment(
    "table2",
    "Table 2: nine models",
    "Every model has its tuned preset, chosen on the validation items. It is then refitted on all but the test items "
    "and tested once. The rows in italics are not in the paper: GRU4Rec+ and SASRec with BERT4Rec's own loss, the "
    "exact softmax over all items, instead of the sampled losses of their papers; and BERT4Rec+, our own model.",
    overall_cases,
    lay_out,
    seeds=(1, 2, 3),
)
