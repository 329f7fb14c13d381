"""Comparisons of runs whose ranks were planted, so that the answers are known."""

from collections.abc import Callable
from dataclasses import replace
from math import log2
from pathlib import Path

import numpy as np
import pytest

from bert4rec.api.comparison import compare_runs, group_runs
from bert4rec.artefact import write_manifest
from bert4rec.data.splits import SplitSpec
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.evaluation.judge import save_ranks
from bert4rec.evaluation.protocol import Ranks
from bert4rec.training.run import MANIFEST, SCHEMA, Plan, Run
from tests.training.tiny import tiny_config

Plant = Callable[..., Path]
PLAN = Plan(
    dataset="nowhere",
    dataset_name="planted",
    data_checksum="abc",
    candidates_checksum="def",
    num_users=4,
    num_items=10,
    model="bert4rec",
    config=tiny_config(),
    preset=None,
    seed=1,
    split=SplitSpec(),
)


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Write a finished run with these ranks of the test items; the other facts are those of PLAN."""

    def run(name: str, sampled: list[int], full: list[int] | None = None, **facts: object) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        replace(PLAN, **facts).save(folder)  # type: ignore[arg-type]
        ranks = [np.array(each, np.int32) for each in (sampled, full or sampled)]
        if sampled:
            save_ranks(folder, "test", Ranks(*ranks))
        write_manifest(folder, MANIFEST, {"format": "bert4rec run", "schema": SCHEMA})
        return folder

    return run


WIDER = tiny_config("model.dim=32")


def test_means_and_differences_are_those_one_computes_by_hand(plant: Plant) -> None:
    runs = [plant("narrow", [0, 1, 9, 10]), plant("wide", [0, 0, 1, 10], config=WIDER)]
    found = compare_runs(runs, metric="NDCG@10", protocol="sampled").as_dict()
    narrow, wide = (system["metrics"] for system in found["systems"])
    assert narrow["HR@1"] == 1 / 4
    assert narrow["HR@10"] == 3 / 4
    assert narrow["MRR"] == pytest.approx((1 + 1 / 2 + 1 / 10 + 1 / 11) / 4)
    assert narrow["NDCG@10"] == pytest.approx((1 + 1 / log2(3) + 1 / log2(11)) / 4)
    assert wide["NDCG@10"] == pytest.approx((1 + 1 + 1 / log2(3)) / 4)
    (difference,) = found["differences"]
    assert (difference["name"], difference["against"]) == ("wide", "narrow")
    assert difference["users"]["difference"] == pytest.approx(wide["NDCG@10"] - narrow["NDCG@10"])
    assert difference["users"]["low"] <= difference["users"]["difference"] <= difference["users"]["high"]
    assert difference["seeds"] is None


def test_the_protocol_and_the_metric_asked_for_are_compared(plant: Plant) -> None:
    runs = [plant("one", [0, 0, 0], [5, 5, 5]), plant("other", [0, 0, 0], [1, 1, 5], config=WIDER)]
    sampled = compare_runs(runs, metric="HR@5", protocol="sampled").as_dict()["differences"][0]["users"]
    full = compare_runs(runs, metric="HR@5", protocol="full").as_dict()["differences"][0]["users"]
    assert sampled["difference"] == 0
    assert full["difference"] == pytest.approx(2 / 3)


def test_runs_that_never_saw_a_test_item_are_compared_on_validation(plant: Plant) -> None:
    runs = [plant("one", []), plant("other", [], config=WIDER)]
    for run, ranks in zip(runs, ([5, 5, 0], [1, 1, 0]), strict=True):
        save_ranks(run, "valid", Ranks(*[np.array(ranks, np.int32)] * 2))
        write_manifest(run, MANIFEST, {"format": "bert4rec run", "schema": SCHEMA})
    with pytest.raises(NotFoundError, match='`split="valid"`'):
        compare_runs(runs, metric="HR@5", protocol="full")
    found = compare_runs(runs, metric="HR@5", protocol="full", part="valid").as_dict()
    assert found["split"] == "valid"
    assert found["differences"][0]["users"]["difference"] == pytest.approx(2 / 3)


def test_runs_that_differ_only_in_their_seed_are_one_system(plant: Plant) -> None:
    runs = [
        plant("a", [0, 9, 9], seed=1),
        plant("b", [0, 0, 9], seed=2),
        plant("c", [0, 0, 0], seed=1, config=WIDER),
        plant("d", [0, 9, 0], seed=2, config=WIDER),
        plant("e", [9, 9, 9], seed=1, refit=False),
    ]
    found = compare_runs(runs, metric="HR@1", protocol="sampled").as_dict()
    assert [(system["name"], system["seeds"]) for system in found["systems"]] == [
        ("a … b", 2),
        ("c … d", 2),
        ("e", 1),
    ]
    assert [system["metrics"]["HR@1"] for system in found["systems"]] == pytest.approx([3 / 6, 5 / 6, 0])
    several, single = found["differences"]
    assert several["users"]["difference"] == pytest.approx(2 / 6)
    assert several["seeds"]["difference"] == pytest.approx(2 / 6)
    assert single["users"]["difference"] == pytest.approx(-3 / 6)
    assert single["seeds"] is None
    assert several["total"]["difference"] == several["users"]["difference"]


def test_runs_of_different_models_are_different_systems(plant: Plant) -> None:
    runs = [
        plant("a", [0, 0, 9], model="sasrec", config=tiny_config(model="sasrec"), seed=1),
        plant("b", [0, 9, 9], model="pop", config=tiny_config(model="pop"), seed=1),
        plant("c", [0, 0, 0], model="sasrec", config=tiny_config(model="sasrec"), seed=2),
        plant("d", [9, 9, 9], seed=1),
    ]
    found = compare_runs(runs, metric="HR@1", protocol="sampled").as_dict()
    assert [(system["name"], system["seeds"]) for system in found["systems"]] == [
        ("a … c", 2),
        ("b", 1),
        ("d", 1),
    ]
    assert [system["metrics"]["HR@1"] for system in found["systems"]] == pytest.approx([5 / 6, 2 / 6, 0])


def test_runs_of_different_variants_are_different_systems(plant: Plant) -> None:
    runs = [
        plant("whole", [0, 0], seed=1),
        plant("without", [0, 9], seed=2, variant="no positions"),
        plant("without too", [9, 9], seed=3, variant="no positions"),
    ]
    systems = group_runs([Run.open(run) for run in runs])
    assert [system.name for system in systems] == ["whole", "without … without too"]


def test_a_preset_is_only_a_name_for_settings(plant: Plant) -> None:
    runs = [plant("a", [0], seed=1, preset="demo"), plant("b", [0], seed=2)]
    assert len(group_runs([Run.open(run) for run in runs])) == 1


@pytest.mark.parametrize(
    "facts",
    [{"data_checksum": "xyz"}, {"candidates_checksum": "xyz"}, {"split": SplitSpec("time", "0.9")}],
    ids=["data", "candidates", "split"],
)
def test_runs_on_different_data_or_splits_are_refused_by_name(plant: Plant, facts: dict[str, object]) -> None:
    runs = [plant("one", [0, 1]), plant("other", [0, 1], config=WIDER, **facts)]
    with pytest.raises(DataError, match=r"other and .*one have different data, candidates or splits"):
        compare_runs(runs, metric="MRR", protocol="full")


def test_a_single_system_has_nothing_to_be_compared_with(plant: Plant) -> None:
    runs = [plant("one", [0, 1], seed=1), plant("other", [1, 0], seed=2)]
    with pytest.raises(UsageError, match="differ only in their seed"):
        compare_runs(runs, metric="MRR", protocol="full")


def test_a_run_named_twice_does_not_count_as_two_seeds(plant: Plant) -> None:
    one, other = plant("one", [0, 1]), plant("other", [1, 0], config=WIDER)
    with pytest.raises(UsageError, match=r"other repeats .*other: same settings, same seed 1"):
        compare_runs([one, other, other], metric="MRR", protocol="full")


def test_a_run_that_never_looked_at_the_test_items_is_refused_with_what_to_do(plant: Plant) -> None:
    runs = [plant("one", [0, 1]), plant("other", [], config=WIDER, test=False)]
    with pytest.raises(NotFoundError, match=r"never evaluated on the test items. Call `run.evaluate"):
        compare_runs(runs, metric="MRR", protocol="full")


def test_runs_and_their_folders_are_compared_alike(plant: Plant) -> None:
    paths = [plant("one", [0, 1, 2]), plant("other", [1, 0, 9], config=WIDER)]
    by_path = compare_runs([str(path) for path in paths], metric="MRR", protocol="full")
    assert by_path == compare_runs([Run.open(path) for path in paths], metric="MRR", protocol="full")


def test_metrics_may_be_typed_in_any_case_and_be_recall_or_precision(plant: Plant) -> None:
    runs = [plant("one", [0, 9]), plant("other", [0, 1], config=WIDER)]
    found = compare_runs(runs, metric="precision@2")
    assert found.metric == "Precision@2"
    assert [system.metrics["Precision@2"] for system in found.systems] == [1 / 4, 2 / 4]
    assert found == compare_runs(runs, metric="Precision@2")
    recall, hits = (compare_runs(runs, metric=metric).differences for metric in ("recall@2", "HR@2"))
    assert recall == hits
    with pytest.raises(
        UsageError, match=r"Coverage@10 is of lists, not of ranks: only `run.evaluate\(\)` has it"
    ):
        compare_runs(runs, metric="Coverage@10")


def test_an_unknown_metric_or_protocol_is_refused(plant: Plant) -> None:
    runs = [plant("one", [0, 1]), plant("other", [1, 0], config=WIDER)]
    with pytest.raises(UsageError, match="recall"):
        compare_runs(runs, metric="recall")
    with pytest.raises(UsageError, match="`protocol` must be one of 'sampled', 'full'; found 'paper'"):
        compare_runs(runs, protocol="paper")  # type: ignore[arg-type]


def test_as_a_frame_it_has_a_row_a_system_with_its_difference_from_the_first(plant: Plant) -> None:
    runs = [plant("a", [0, 9, 9]), plant("b", [0, 0, 9], config=WIDER), plant("c", [0, 0, 0], refit=False)]
    found = compare_runs(runs, metric="HR@2", protocol="full")
    frame = found.to_polars()
    assert frame["system"].to_list() == ["a", "b", "c"]
    assert frame["HR@2"].to_list() == pytest.approx([1 / 3, 2 / 3, 1])
    assert frame["difference"].to_list()[1:] == pytest.approx([1 / 3, 2 / 3])
    assert frame["p_value"].to_list() == [None, *(each.total.p_value for each in found.differences)]
    assert frame["p_value_seeds"].to_list() == [None] * 3


def test_it_reads_as_a_table_that_ends_with_who_wins(plant: Plant) -> None:
    runs = [plant("one", [0, 9] * 10), plant("two", [0] * 20, config=WIDER)]
    title, head, first, second, difference, *sentences = repr(compare_runs(runs, metric="HR@1")).splitlines()
    assert title == "planted, test items, up to 100 sampled negatives"
    assert head.split()[:2] == ["seeds", "HR@1"]
    assert (first.split()[:3], second.split()[:3]) == (["one", "1", "0.5000"], ["two", "1", "1.0000"])
    assert difference.startswith("HR@1, two − one: +0.5000 [+0.")
    assert sentences[1] == (
        "Full ranking: two beats one (HR@1 1.0000 vs 0.5000, +100.0%; p = 0.0003 over users)."
    )


def test_a_tiny_p_value_is_not_told_as_zero(plant: Plant) -> None:
    runs = [plant("one", [9] * 500), plant("two", [0, 0, 0, 9] * 125, config=WIDER)]
    *_, difference, sampled, _full = repr(compare_runs(runs, metric="HR@1")).splitlines()
    assert difference.endswith("], p < 0.0001")
    assert "; p < 0.0001 over users" in sampled


def test_a_system_with_one_run_borrows_the_variance_between_the_runs_of_another(plant: Plant) -> None:
    hits, deeper = [0, 0, 9, 9], tiny_config("model.layers=1")
    runs = [
        plant("a", hits),
        plant("b1", [0, 0, 0, 9], config=WIDER, seed=1),
        plant("b2", [0, 0, 0, 0], config=WIDER, seed=2),
        plant("c", [0, 9, 9, 9], config=deeper),
    ]
    alone = compare_runs([runs[0], runs[3]], metric="HR@1").differences[0]
    among = compare_runs(runs, metric="HR@1").differences[1]
    assert alone.users == among.users == alone.total
    assert among.total.p_value > alone.total.p_value
