"""Tables about the steps of a training on a GPU, from lines as the benchmarks print them."""

from bert4rec.paper.reporting.report_text import table_text
from bert4rec.paper.reporting.summary_steps import first_step_table, joint_table, profile_table


def test_the_profile_tells_what_a_step_is_bound_by_and_the_limit_of_each_part() -> None:
    narrow = {
        "profile": "ml-1m",
        "dim": 64,
        "items": 3416,
        "device": "a card",
        "milliseconds": {"attention": 0.2, "maps": 0.1, "between kernels": 0.05},
        "limits": {"attention": 0.04, "maps": 0.025},
    }
    large = {
        **narrow,
        "profile": "beauty",
        "items": 1_000_000,
        "milliseconds": {"softmax": 2.0, "maps": 0.1},
        "limits": {"softmax": 0.8},
    }
    header, _, first, second = table_text(profile_table([narrow, large])).splitlines()
    assert (
        header
        == "| ms a step (at least) | all | attention | maps | between kernels | softmax | bound by | device |"
    )
    assert first == (
        "| ML-1m, d=64, 3,416 items | 0.350 | 0.200 (0.040) | 0.100 (0.025) | 0.050 |  | attention | a card |"
    )
    assert (
        second == "| Beauty, d=64, 1,000,000 items | 2.100 |  | 0.100 |  | 2.000 (0.800) | softmax | a card |"
    )


def test_a_joint_step_stands_beside_its_halves() -> None:
    line = {
        "joint": "beauty",
        "device": "a card",
        "milliseconds": {"masked items": 0.5, "next items": 0.75, "both": 1.0},
        "share_of_sum": 0.8,
    }
    assert "| Beauty | 0.500 ms | 0.750 ms | 1.000 ms | 0.80 | a card |" in table_text(joint_table([line]))


def test_first_steps_and_the_paper_s_level_have_times_with_and_without_what_was_compiled_before() -> None:
    line = {
        "first_step": "ml-1m",
        "model": "bert4rec",
        "device": "a card",
        "seconds": {"cold": 7.41, "warm": 3.5},
        "level": 0.4818,
        "seconds_to_level": {"cold": 12.0, "warm": 8.04},
    }
    never = {**line, "first_step": "demo", "seconds_to_level": {"cold": None, "warm": None}}
    header, _, first, second = table_text(first_step_table([line, never])).splitlines()
    assert header == (
        "| after | first step | first step, compiled before | the paper's level | the paper's level, compiled before "
        "| device |"
    )
    assert first == "| ML-1m, bert4rec | 7.4 s | 3.5 s | 12.0 s | 8.0 s | a card |"
    assert second == "| demo, bert4rec | 7.4 s | 3.5 s | – | – | a card |"


def test_what_was_not_measured_is_an_empty_table() -> None:
    for table in (profile_table([]), joint_table([]), first_step_table([])):
        assert not table.rows
