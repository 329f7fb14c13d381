"""What is made of lines of results: numbers with intervals, comparisons, verdicts."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.api.comparison import compare_runs
from bert4rec.evaluation.metrics import metric_per_user
from bert4rec.evaluation.protocol import Protocol
from bert4rec.evaluation.significance import NONE, Difference, Sample, Uncertainty, compare_over_users
from bert4rec.paper.experiments.cases import BERT4REC
from bert4rec.paper.experiments.compare_protocols import kendall_tau
from bert4rec.paper.experiments.sweeps import best_setting, steadiness, worse
from bert4rec.paper.reporting.evidence import SeedResults, compare, gather, judge_direction
from bert4rec.paper.reporting.layout import RULES, Measured, Statement, text_of
from bert4rec.paper.reporting.report import read_report
from bert4rec.paper.runs.ledger import Ledger
from tests.api.test_comparison import Plant, plant  # noqa: F401
from tests.paper.fake import add_result, draw_ranks, facts_of, statistics_line, write_results


@pytest.mark.parametrize(
    ("value", "half", "paper", "verdict"),
    [
        (0.50, 0.03, 0.48, "reproduced"),  # inside the interval
        (0.50, 0.001, 0.495, "reproduced"),  # within two per cent
        (0.50, 0.01, 0.48, "better"),
        (0.50, 0.01, 0.52, "not reproduced"),
        (0.50, 0.01, None, None),
    ],
)
def test_a_number_is_reproduced_better_or_not(
    value: float, half: float, paper: float | None, verdict: str | None
) -> None:
    assert Measured(value, value - half, value + half, paper).verdict == verdict


def test_a_number_without_an_interval_is_judged_by_the_difference_alone() -> None:
    assert Measured(0.5, paper=0.495).verdict == "reproduced"
    assert Measured(0.5, paper=0.4).verdict == "better"


def test_a_cell_says_all_of_it() -> None:
    cell = Measured(0.5, 0.49, 0.51, 0.52)
    assert text_of(cell) == "0.5000 ± 0.0100 (paper 0.5200: −3.8%, not reproduced)"


def test_numbers_and_statements_that_fall_short_at_the_last_step_are_marked() -> None:
    cell = Measured(0.5, 0.49, 0.51, 0.52, at_last_step=True)
    assert text_of(cell) == "0.5000 ± 0.0100 † (paper 0.5200: −3.8%, not reproduced)"
    for verdict in RULES:
        told = Statement("It pays.", verdict, "It did.", at_last_step=True).marked_evidence
        assert told == ("It did." if verdict == "undecided" else "It did. †")
    assert Statement("It pays.", "not reproduced", "It did not.").marked_evidence == "It did not."


def found(tmp_path: Path, *qualities: float, seeds: tuple[int, ...] = (1, 2)) -> list[SeedResults]:
    """Some cases of Beauty with so good results."""
    ledger, facts = Ledger.open(tmp_path, quick=False), facts_of("beauty")
    cases = [
        replace(BERT4REC, settings=(f"model.dim={8 * place}",)) for place in range(1, len(qualities) + 1)
    ]
    for case, quality in zip(cases, qualities, strict=True):
        for seed in seeds:
            add_result(ledger, facts, case, seed, quality)
    (evidence,) = gather(ledger.folder, ledger.lines()).data
    runs = [evidence.find(case) for case in cases]
    return [run for run in runs if run]


def test_comparisons_are_paired_user_by_user_where_ranks_are_kept(tmp_path: Path) -> None:
    """With one seed, and nothing known about seeds, it is the usual paired test."""
    one, other = found(tmp_path, 0.3, 0.29, seeds=(1,))
    ours = compare(one, other, "NDCG@10")
    values = [
        metric_per_user(draw_ranks(quality, facts_of("beauty"), 1).sampled, "NDCG@10")
        for quality in (0.3, 0.29)
    ]
    reference = compare_over_users(*(Sample.of(each[None]) for each in values))
    assert ours
    assert ours.difference == pytest.approx(reference.difference)
    assert ours == reference
    assert ours.share == pytest.approx(ours.difference / other.mean("NDCG@10"))


@pytest.mark.parametrize("protocol", ["sampled", "full"])
def test_bert4rec_compare_gives_the_same_interval_and_p_value_for_the_same_runs(
    tmp_path: Path,
    plant: Plant,  # noqa: F811
    protocol: Protocol,
) -> None:
    """With three seeds, with two, and with one that borrows from the others."""
    facts, ledger = facts_of("beauty"), Ledger.open(tmp_path / "results", quick=False)
    cases = [replace(BERT4REC, settings=(f"model.dim={8 * place}",)) for place in (1, 2, 3)]
    runs = []
    for case, quality, seeds in zip(cases, (0.3, 0.29, 0.295), (3, 2, 1), strict=True):
        for seed in range(1, seeds + 1):
            add_result(ledger, facts, case, seed, quality)
            ranks = draw_ranks(quality, facts, seed)
            config = case.config("beauty")
            name = f"{case.settings[0]} {seed}"
            runs.append(plant(name, ranks.sampled.tolist(), ranks.full.tolist(), config=config, seed=seed))
    (evidence,) = gather(ledger.folder, ledger.lines()).data
    first, *others = (run for case in cases if (run := evidence.find(case)))
    found = compare_runs(runs, metric="NDCG@10", protocol=protocol)
    assert [system.seeds for system in found.systems] == [3, 2, 1]
    for other, theirs in zip(others, found.differences, strict=True):
        ours = compare(other, first, "NDCG@10", protocol)
        assert ours
        assert vars(ours) == pytest.approx(vars(theirs.total), rel=1e-9)


def test_without_ranks_the_uncertainty_of_both_over_their_users_adds_up(tmp_path: Path) -> None:
    one, other = (replace(run, folder=Path("nowhere")) for run in found(tmp_path, 0.3, 0.29, seeds=(1,)))
    ours = compare(one, other, "NDCG@10")
    errors = [run.lines[0]["standard_errors"]["sampled"]["NDCG@10"] for run in (one, other)]
    assert ours
    assert ours.high - ours.low == pytest.approx(2 * 1.96 * np.hypot(*errors), rel=1e-4)
    assert ours.direction == 0


def test_an_interval_covers_users_and_seeds(tmp_path: Path) -> None:
    (run,) = found(tmp_path, 0.3)
    by_user = np.mean([line["standard_errors"]["sampled"]["MRR"] for line in run.lines])
    by_seed = np.std(run.values("MRR"), ddof=1) / np.sqrt(2)
    both = Uncertainty(by_user**2) + Uncertainty(by_seed**2, 1)
    measured = run.measured("MRR")
    assert measured.high
    assert measured.high - measured.value == pytest.approx(both.margin)
    bare = SeedResults(run.folder, tuple({**line, "standard_errors": None} for line in run.lines))
    assert bare.measured("MRR").high == pytest.approx(measured.high, rel=0.01), "made from the ranks"
    assert SeedResults(Path("nowhere"), bare.lines).measured("MRR").low is None


def test_the_variance_between_seeds_widens_a_difference_and_is_the_usual_one_with_one_seed(
    tmp_path: Path,
) -> None:
    one, other = found(tmp_path, 0.3, 0.29, seeds=(1,))
    usual = {("sampled", "NDCG@10"): Uncertainty(0.01**2, 20)}
    lucky, sure = (compare(replace(one, usual=each), other, "NDCG@10") for each in (usual, {}))
    assert lucky
    assert sure
    assert (lucky.difference, lucky.p_value > sure.p_value) == (sure.difference, True)
    assert lucky.high - lucky.low > 2 * 0.01 * 1.96 > sure.high - sure.low
    counts = replace(one, lines=({**one.lines[0], "config": {}},), usual=usual)
    sample = counts.sample("NDCG@10", "sampled")
    assert sample.over_seeds(usual["sampled", "NDCG@10"]) == NONE, "it would count the same again"


def test_a_variant_that_is_unstable_makes_no_other_result_unsure(tmp_path: Path) -> None:
    ledger, facts = Ledger.open(tmp_path, quick=False), facts_of("beauty")
    for seed, quality in enumerate((0.3, 0.302, 0.298), start=1):
        add_result(ledger, facts, BERT4REC, seed, quality)
    (before,) = gather(ledger.folder, ledger.lines()).data
    assert before.usual["sampled", "NDCG@10"].freedom == 2
    for seed, quality in enumerate((0.3, 0.05, 0.2), start=1):
        add_result(ledger, facts, replace(BERT4REC, variant="post-norm"), seed, quality)
    (after,) = gather(ledger.folder, ledger.lines()).data
    assert after.usual == before.usual


def test_results_of_another_split_or_other_candidates_are_other_results(tmp_path: Path) -> None:
    """Though the sequences, the settings and the seed are the same."""
    facts = facts_of("beauty")
    others = [facts, replace(facts, protocol="time, test from 0.9"), replace(facts, candidates="1234")]
    ledger = Ledger.open(tmp_path, quick=False)
    for each, quality in zip(others, (0.1, 0.2, 0.3), strict=True):
        ledger.add([statistics_line(each)])
        add_result(ledger, each, BERT4REC, 1, quality)
    data = gather(tmp_path, ledger.lines()).data
    assert {each.facts for each in data} == set(others)
    shown = {each.facts: each.find(BERT4REC) for each in data}
    values = [shown[each].values("NDCG@10")[0] for each in others if shown[each]]  # type: ignore[union-attr]
    assert values == pytest.approx([0.1, 0.2, 0.3], abs=0.01)
    assert len({shown.title for _, parts in read_report(tmp_path).sections for shown in parts}) == 3


def test_one_seed_that_was_best_before_its_last_step_shows_that_there_were_steps_enough(
    tmp_path: Path,
) -> None:
    (run,) = found(tmp_path, 0.3)
    last = run.lines[0]["config"]["training"]["steps"]

    def with_steps(*steps: int) -> SeedResults:
        lines = zip(run.lines, steps, strict=True)
        return SeedResults(run.folder, tuple({**line, "steps": each} for line, each in lines))

    assert with_steps(last, last).measured("MRR").at_last_step
    assert not with_steps(last, last - 1).measured("MRR").at_last_step
    counted = SeedResults(run.folder, ({**run.lines[0], "steps": 0, "config": {}},))
    assert not counted.at_last_step


def gap(low: float, high: float) -> Difference:
    return Difference((low + high) / 2, low, high, 0.0, 0.0)


def test_a_statement_needs_all_comparisons_and_falls_with_one() -> None:
    up, down, open_ = gap(0.1, 0.2), gap(-0.2, -0.1), gap(-0.1, 0.1)
    assert judge_direction([up, up]) == "reproduced"
    assert judge_direction([up, open_]) == "undecided"
    assert judge_direction([up, None]) == "undecided"
    assert judge_direction([up, down]) == "not reproduced"
    assert judge_direction([down, down], expected=-1) == "reproduced"
    assert judge_direction([]) == "undecided"


def test_the_best_setting_is_the_papers_or_surely_another(tmp_path: Path) -> None:
    low, high, top = found(tmp_path, 0.1, 0.295, 0.3)
    runs = {1.0: low, 2.0: high, 3.0: top}
    verdicts = [best_setting("x", runs, expected).verdict for expected in (1.0, 2.0, 3.0, 4.0)]
    assert verdicts[0] == "not reproduced"
    assert verdicts[2:] == ["reproduced", "undecided"]
    falls, rises = worse("x", runs, 3.0, 1.0), worse("x", runs, 1.0, 3.0)
    assert falls
    assert rises
    assert (falls.verdict, rises.verdict) == ("not reproduced", "reproduced")
    assert worse("x", runs, 1.0, 9.0) is None


def test_a_best_setting_that_is_hardly_better_than_the_next_decides_nothing(tmp_path: Path) -> None:
    runs = dict(zip((1.0, 2.0, 3.0), found(tmp_path, 0.1, 0.3, 0.3001), strict=True))
    for expected in (2.0, 3.0):
        statement = best_setting("x", runs, expected)
        assert statement.verdict == "undecided"
        assert "x = 2 has 0.3" in statement.evidence


def test_a_sweep_is_steady_where_its_largest_value_is_surely_near_the_best(tmp_path: Path) -> None:
    low, near, best = found(tmp_path, 0.27, 0.2999, 0.3)
    verdicts = {
        "the best": steadiness("x", {1.0: low, 2.0: best}).verdict,
        "as good": steadiness("x", {1.0: best, 2.0: near}).verdict,
        "far below": steadiness("x", {1.0: best, 2.0: low}).verdict,
    }
    assert verdicts == {"the best": "reproduced", "as good": "reproduced", "far below": "not reproduced"}
    unsure = {("sampled", "NDCG@10"): Uncertainty(0.1**2, 20)}
    one_seed = [replace(run, lines=run.lines[:1], usual=unsure) for run in (best, low)]
    assert steadiness("x", dict(zip((1.0, 2.0), one_seed, strict=True))).verdict == "undecided"


def test_of_two_lines_for_the_same_run_the_later_counts(tmp_path: Path) -> None:
    ledger = write_results(tmp_path, ["beauty"], ["figure2"])
    (line,) = [each for each in ledger.lines() if "metrics" in each and each["stage"] == "refit"]
    newer = json.loads(json.dumps(line))
    newer["versions"]["code"], newer["metrics"]["sampled"]["MRR"] = "other", 0.987
    results = gather(tmp_path, [line, newer])
    run = results.data[0].find(BERT4REC)
    assert run
    assert run.values("MRR") == [0.987]
    assert len(results.code_versions) == 2


def test_quick_lines_among_real_ones_are_left_out_and_counted(tmp_path: Path) -> None:
    real: list[dict[str, Any]] = write_results(tmp_path, ["beauty"], ["figure2"]).lines()
    quick = [{**line, "quick": True} for line in real]
    mixed = gather(tmp_path, [*real, *quick])
    assert (mixed.quick, mixed.left_out) == (False, len(quick))
    assert gather(tmp_path, quick).quick


def test_kendalls_tau_counts_agreeing_pairs() -> None:
    assert kendall_tau([1, 2, 3], [10, 20, 30]) == 1
    assert kendall_tau([1, 2, 3], [30, 20, 10]) == -1
    assert kendall_tau([1, 2, 3], [10, 30, 20]) == pytest.approx(1 / 3)
    assert kendall_tau([1, 1], [1, 2]) == 0


@given(st.permutations(range(6)), st.permutations(range(6)))
def test_kendalls_tau_does_not_care_who_is_first_and_falls_by_one_pair_a_swap(
    one: list[int], other: list[int]
) -> None:
    assert kendall_tau(one, other) == kendall_tau(other, one)
    ascending = sorted(one)
    for first, second in pairwise(range(6)):
        swapped = ascending.copy()
        swapped[first], swapped[second] = swapped[second], swapped[first]
        assert kendall_tau(ascending, swapped) == pytest.approx(1 - 2 / 15)
