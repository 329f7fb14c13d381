"""A folder of results as `reproduce` would leave it, made up from the paper's numbers: nothing is trained."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert4rec.evaluation.metrics import summarise
from bert4rec.evaluation.protocol import Ranks
from bert4rec.paper.experiments.cases import Case, DatasetFacts, asked_by
from bert4rec.paper.experiments.index import EXPERIMENTS, complete
from bert4rec.paper.reporting.printed import paper
from bert4rec.paper.runs.jobs import Job, mark_of
from bert4rec.paper.runs.ledger import Ledger, standard_errors
from bert4rec.settings.networks import Ask

USERS = 2000
CHECKSUMS = {"ml-1m": "1bb8632e6ae36ecb", "beauty": "02fcbf619ecc995f"}
COUNTS = {"ml-1m": (6040, 3416, 999611), "beauty": (40226, 54542, 353962)}
STRONGER = {
    "SASRec (softmax)": 1.08,
    "GRU4Rec+ (softmax)": 0.97,
    "BERT4Rec+": 1.15,
    "the encoder alone": 1.03,
    "joint training alone": 1.1,
}
"""NDCG@10 of what the paper does not have, in multiples of its BERT4Rec."""
ASKED: dict[Ask, float] = {"mask": 0.95, "last": 0.9, "both": 1.0}
"""And of BERT4Rec+ asked in each way, in multiples of its own."""


def facts_of(name: str) -> DatasetFacts:
    return DatasetFacts(name, CHECKSUMS[name], "leave-one-out", name)


def write_results(
    folder: Path,
    names: Iterable[str] = ("ml-1m", "beauty"),
    experiments: Iterable[str] = tuple(EXPERIMENTS),
    *,
    factor: float = 1.03,
    quick: bool = False,
) -> Ledger:
    """Results whose NDCG@10 is `factor` times the paper's, or some value where the paper has none."""
    ledger = Ledger.open(folder, quick=quick)
    for name in names:
        facts = facts_of(name)
        ledger.add([statistics_line(facts)])
        there: set[str] = set()
        for experiment in (EXPERIMENTS[each] for each in experiments):
            for asked in complete(experiment.cases(facts), facts):
                for seed in experiment.seeds:
                    mark = Job(Path("nowhere"), facts, asked.case, seed).mark
                    if mark not in there:
                        add_result(ledger, facts, asked.case, seed, wanted(facts, asked.case) * factor)
                    there.add(mark)
        ledger.add([titles_line(facts)])
    return ledger


def wanted(facts: DatasetFacts, case: Case) -> float:
    """The paper's NDCG@10 of a case."""
    numbers, title = paper(), facts.title
    overall = numbers["table2_overall"][title]["NDCG@10"]
    label = case.label.partition(", d=")[0]
    if ", d=" in case.label:
        place = numbers["figure_dimensionality"]["d"].index(int(case.label.partition(", d=")[2]))
        return float(numbers["figure_dimensionality"]["values"][title]["NDCG@10"][label][place])
    if label in numbers["table5_ablation_ndcg10_d64"]:
        return float(numbers["table5_ablation_ndcg10_d64"][label][title])
    if label in STRONGER:
        return float(overall["BERT4Rec"] * STRONGER[label])
    table3 = numbers["table3_bidirection_and_cloze_d256"][title]
    return float(overall.get(label) or table3.get(label, {}).get("NDCG@10") or overall["BERT4Rec"] * 0.98)


def add_result(
    ledger: Ledger, facts: DatasetFacts, case: Case, seed: int, quality: float, steps: int = 7000
) -> None:
    """The lines that a worker would add for one run."""
    job = Job(Path("nowhere"), facts, case, seed, ledger.quick)
    device = {"device": "NVIDIA H200", "device_shared": False, "command_seconds": 40.0 + seed}
    if case.task == "speed":
        ledger.add([{**job.identity(kind="speed"), **device, "samples_per_second": 250_000.0}])
        return
    ranks = draw_ranks(quality, facts, seed)
    test = {**job.identity(), **device, **facts_of_training(steps, 8.5), **numbers_of(ranks)}
    selection = {**job.identity(stage="selection"), **device, **facts_of_training(steps, 12.25)}
    selection["validations"] = [
        {"step": step, "value": quality * share, "command_seconds": step / 200}
        for step, share in ((3500, 0.9), (7000, 1.0))
    ]
    del test["kind"], selection["kind"]
    before = draw_ranks(quality * 0.95, facts, seed)
    lines = [{**selection, "split": "valid", **numbers_of(before)}, test]
    kept = {mark_of(test): ranks}
    if "selection" in case.measures:
        lines.append({**selection, **numbers_of(before)})
    if "attention" in case.measures:
        lines.append({**job.identity(kind="attention"), **device, **attention(seed)})
    if "asked" in case.measures:
        for way, share in ASKED.items():
            found = draw_ranks(quality * share, facts, seed)
            lines.append({**test, "variant": asked_by(way), **numbers_of(found)})
            kept[mark_of(lines[-1])] = found
    ledger.add(lines, kept)


def facts_of_training(steps: int, seconds: float) -> dict[str, Any]:
    return {"preset": None, "steps": steps, "train_seconds": seconds, "validations": []}


def numbers_of(ranks: Ranks) -> dict[str, Any]:
    metrics = {"sampled": summarise(ranks.sampled), "full": summarise(ranks.full)}
    return {"metrics": metrics, "standard_errors": standard_errors(ranks)}


def draw_ranks(quality: float, facts: DatasetFacts, seed: int) -> Ranks:
    """Ranks whose NDCG@10 is about `quality`: each user has the same luck with every model, more or less."""
    luck = np.random.default_rng(0).random(USERS)
    own = np.random.default_rng([seed, round(quality * 1e6)]).normal(0, 0.02, USERS)
    place = np.clip(luck + own, 1e-9, 1 - 1e-9)
    low, high = 0.1, 40.0
    for _ in range(30):
        power = (low + high) / 2
        low, high = (power, high) if _ndcg(place, power) < quality else (low, power)
    items = COUNTS[facts.name][1]
    return Ranks(_ranks(place, low, 101), _ranks(place, low * 0.4, items))


def _ranks(place: NDArray[np.float64], power: float, candidates: int) -> NDArray[np.int32]:
    return np.floor(candidates * place**power).astype(np.int32)


def _ndcg(place: NDArray[np.float64], power: float) -> float:
    return summarise(_ranks(place, power, 101), ["NDCG@10"])["NDCG@10"]


def attention(seed: int) -> dict[str, Any]:
    """Two layers, two heads: the first looks left, the second right, and the upper layer at the newest."""
    rng = np.random.default_rng(seed)
    query, key = np.mgrid[:10, :10]
    heads = [
        [
            np.exp(-0.3 * np.abs(query - key)) * (key < query),
            np.exp(-0.3 * np.abs(query - key)) * (key > query),
        ],
        [np.exp(0.5 * (key - 9)), np.exp(0.7 * (key - 9))],
    ]
    maps = np.array(heads) + 0.05 * rng.random((2, 2, 10, 10))
    maps = (0.9 * maps / maps.sum(axis=-1, keepdims=True)).round(4)
    example = {"items": list(range(1, 10)), "maps": maps.tolist()}
    return {"users": 1234, "maps": maps.tolist(), "examples": [{**example, "items": [99] * 9}, example]}


def statistics_line(facts: DatasetFacts) -> dict[str, Any]:
    users, items, actions = COUNTS[facts.name]
    counts = {"users": users, "items": items, "actions": actions}
    return {
        "kind": "statistics",
        **facts.identity,
        "family": facts.family,
        "statistics": {**counts, "average_length": actions / users, "density": actions / users / items},
        "versions": {"code": ""},
    }


def titles_line(facts: DatasetFacts) -> dict[str, Any]:
    titles = {str(item): f"A thing of beauty, number {item}, with a long name <&>" for item in range(1, 10)}
    head = {"kind": "titles", **facts.identity}
    return {**head, "config": {"items": list(range(1, 10))}, "titles": titles, "versions": {"code": ""}}
