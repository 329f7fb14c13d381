"""The table of what settings without a preset are worth, from lines with known numbers."""

from typing import Any

from bert4rec.paper.reporting.layout import Table
from bert4rec.paper.reporting.summary_defaults import defaults_table


def line(dataset: str, trial: str, value: float, model: str = "bert4rec+", **config: Any) -> dict[str, Any]:
    """Of a trial whose geometric mean of both protocols is `value`."""
    metrics = {"sampled": {"NDCG@10": 2 * value}, "full": {"NDCG@10": value / 2}}
    return {"dataset": dataset, "trial": trial, "model": model, "metrics": metrics, "config": config}


def cells(table: Table) -> dict[str, list[Any]]:
    return {row.label: list(row.cells) for row in table.rows}


def test_what_is_chosen_for_a_data_set_is_what_is_best_on_the_others() -> None:
    lines = [
        line("a", "the rule", 0.10),
        line("a", "more dropout", 0.30),
        line("b", "the rule", 0.10),
        line("b", "more dropout", 0.09),
        line("c", "the rule", 0.20),
        line("c", "more dropout", 0.19),
    ]
    found = cells(defaults_table(lines))
    assert found["a"] == ["0.1000", "0.3000 of 2", "33%", "the rule", "0.1000", "–"]
    assert found["b"] == ["0.1000", "0.1000 of 2", "100%", "more dropout", "0.0900", "–"]


def test_a_change_that_was_tried_on_few_data_sets_is_not_chosen() -> None:
    lines = [line(name, "the rule", 0.1) for name in "abcd"] + [line("d", "more steps", 0.5)]
    assert cells(defaults_table(lines))["a"][3] == "the rule"


def test_seeds_are_averaged_other_settings_count_as_trials_and_other_models_stand_beside() -> None:
    lines = [
        line("a", "the rule", 0.10),
        line("a", "the rule", 0.12),
        line("a", "search", 0.20, dim=64),
        line("a", "search", 0.24, dim=64),
        line("a", "search", 0.21, dim=128),
        line("a", "its own default", 0.05, model="sasrec"),
        line("a", "its own default", 0.07, model="caser"),
        line("b", "its own default", 0.07, model="caser"),
    ]
    assert cells(defaults_table(lines)) == {
        "a": ["0.1100", "0.2200 of 3", "50%", "the rule", "0.1100", "caser 0.0700"]
    }
