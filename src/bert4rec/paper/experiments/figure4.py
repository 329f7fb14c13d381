"""Figure 4: what share of a history to mask."""

from bert4rec.paper.experiments.cases import Case, DatasetFacts, Experiment, small_case
from bert4rec.paper.experiments.sweeps import best_setting, worse
from bert4rec.paper.reporting.evidence import Evidence, SeedResults
from bert4rec.paper.reporting.layout import (
    HOW_TO_READ,
    Figure,
    Findings,
    Lines,
    Row,
    Series,
    Statement,
    Table,
)
from bert4rec.paper.reporting.printed import METRICS_OF_FIGURES, paper, printed

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def share_cases() -> dict[float, Case]:
    return {share: small_case(f"ρ={share:g}", f"objective.mask_probability={share:g}") for share in SHARES}


def cases(_facts: DatasetFacts) -> list[Case]:
    return list(share_cases().values())


def lay_out(evidence: Evidence) -> Findings:
    found = {share: run for share, case in share_cases().items() if (run := evidence.find(case))}
    series = {metric: _series(evidence, found, metric) for metric in METRICS_OF_FIGURES}
    rows = [
        Row(case.label, [series[metric].ours[place] for metric in METRICS_OF_FIGURES])
        for place, case in enumerate(share_cases().values())
    ]
    table = Table("d = 64, the paper's protocol", METRICS_OF_FIGURES, rows)
    panels = {metric: [each] for metric, each in series.items()}
    caption = f"{evidence.facts.title}, by the share of masked items. {HOW_TO_READ}"
    figure = Figure("figure4", caption, Lines("ρ, share of items masked", panels))
    return Findings([table], _statements(evidence, found), [figure] if found else [])


def _printed(evidence: Evidence, metric: str) -> dict[float, float]:
    theirs = printed("figure_mask_proportion_d64", "values", evidence.facts.title, metric)
    return dict(zip(paper()["figure_mask_proportion_d64"]["rho"], theirs, strict=True)) if theirs else {}


def _series(evidence: Evidence, found: dict[float, SeedResults], metric: str) -> Series:
    theirs = _printed(evidence, metric)
    ours = [
        found[share].measured(metric, paper=theirs.get(share)) if share in found else None for share in SHARES
    ]
    return Series("BERT4Rec", SHARES, ours)


def _statements(evidence: Evidence, found: dict[float, SeedResults]) -> list[Statement]:
    theirs = _printed(evidence, "NDCG@10")
    if not theirs or len(found) < 2:
        return []
    best = max(theirs, key=lambda share: theirs[share])
    statements = [best_setting("ρ", found, best), worse("ρ", found, 0.1, 0.2), worse("ρ", found, 0.9, 0.6)]
    return [each for each in statements if each]


FIGURE4 = Experiment(
    "figure4",
    "Figure 4: mask proportion",
    "The preset with d = 64, two layers and two heads. On Beauty, half of the samples are prefixes of histories with "
    "only the last item masked; ρ applies to the other half.",
    cases,
    lay_out,
)
