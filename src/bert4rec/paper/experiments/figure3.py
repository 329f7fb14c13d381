"""Figure 3: how wide the hidden states should be."""

from bert4rec.paper.experiments.cases import SMALL, Case, DatasetFacts, Experiment
from bert4rec.paper.reporting.evidence import Evidence, SeedResults, compare, judge_direction
from bert4rec.paper.reporting.layout import (
    HOW_TO_READ,
    Figure,
    Findings,
    Lines,
    Row,
    Series,
    Statement,
    Table,
    percent,
)
from bert4rec.paper.reporting.printed import METRICS_OF_FIGURES, paper, printed
from bert4rec.settings.presets import load_preset

WIDTHS = (16, 32, 64, 128, 256)
SWEPT = {
    "gru4rec": "GRU4Rec",
    "gru4rec+": "GRU4Rec+",
    "caser": "Caser",
    "sasrec": "SASRec",
    "bert4rec": "BERT4Rec",
}
"""The models of the figure: our name → the paper's."""
CHANNELS_A_HEAD = 32
"""At least, for BERT4Rec: narrow models have fewer heads, as in the paper."""
NARROW = 64
"""Up to this width BERT4Rec uses the preset for it: the preset of the large model has far too much dropout."""


def width_case(model: str, width: int, family: str) -> Case:
    label, settings = f"{SWEPT[model]}, d={width}", [f"model.dim={width}"]
    if model != "bert4rec":
        return Case(label, model, tuple(settings))
    preset = SMALL if width <= NARROW else ""
    heads = load_preset(model, family + preset)["model"]["heads"]
    settings.append(f"model.heads={max(1, min(heads, width // CHANNELS_A_HEAD))}")
    return Case(label, model, tuple(settings), preset)


def cases(facts: DatasetFacts) -> list[Case]:
    return [width_case(model, width, facts.family) for model in SWEPT for width in WIDTHS]


def lay_out(evidence: Evidence) -> Findings:
    found = {
        (model, width): run
        for model in SWEPT
        for width in WIDTHS
        if (run := evidence.find(width_case(model, width, evidence.facts.family)))
    }
    panels = {
        metric: [_series(evidence, found, model, metric) for model in SWEPT] for metric in METRICS_OF_FIGURES
    }
    tables = [
        Table(
            f"{metric}, the paper's protocol",
            [f"d={width}" for width in WIDTHS],
            [Row(series.name, series.ours) for series in panel],
        )
        for metric, panel in panels.items()
    ]
    caption = f"{evidence.facts.title}, by width d. {HOW_TO_READ}"
    figure = Figure("figure3", caption, Lines("d, width of the hidden states", panels, doubling=True))
    return Findings(tables, _statements(found), [figure] if found else [])


def _series(evidence: Evidence, found: dict[tuple[str, int], SeedResults], model: str, metric: str) -> Series:
    title = SWEPT[model]
    theirs = printed("figure_dimensionality", "values", evidence.facts.title, metric, title)
    values = dict(zip(paper()["figure_dimensionality"]["d"], theirs, strict=True)) if theirs else {}
    ours = [
        found[model, width].measured(metric, paper=values.get(width)) if (model, width) in found else None
        for width in WIDTHS
    ]
    return Series(title, WIDTHS, ours)


def _statements(found: dict[tuple[str, int], SeedResults]) -> list[Statement]:
    gains, shares = [], []
    losers: dict[int, list[SeedResults]] = {1: [], -1: []}
    for width in WIDTHS:
        others = [model for model in SWEPT if model != "bert4rec" and (model, width) in found]
        if ("bert4rec", width) not in found or not others:
            continue
        best = max(others, key=lambda model: found[model, width].mean("NDCG@10"))
        gain = compare(found["bert4rec", width], found[best, width], "NDCG@10")
        gains.append(gain)
        if gain:
            shares.append(f"d={width} {percent(gain.share)} against {SWEPT[best]}")
            if gain.direction:
                losers[gain.direction].append(found[best if gain.direction > 0 else "bert4rec", width])
    if not shares:
        return []
    verdict = judge_direction(gains)
    if verdict == "reproduced" and len(found) < len(SWEPT) * len(WIDTHS):
        verdict = "undecided"
    text = "BERT4Rec is above the other four at every width."
    # One width that is worse although it had enough steps refutes the statement.
    short = losers[1 if verdict == "reproduced" else -1]
    at_last_step = bool(short) and all(run.at_last_step for run in short)
    return [Statement(text, verdict, f"NDCG@10: {', '.join(shares)}.", at_last_step)]


FIGURE3 = Experiment(
    "figure3",
    "Figure 3: width",
    "Only d is changed, and BERT4Rec's number of heads where its width would leave a head less than 32 channels; all "
    "else is each model's tuned preset, and for BERT4Rec up to d = 64 its preset of that width.",
    cases,
    lay_out,
)
