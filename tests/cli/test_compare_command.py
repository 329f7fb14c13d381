"""`compare` as a user reads it, on runs whose ranks were planted."""

from math import sqrt

import pytest

from bert4rec.cli.evaluate_command import compare_command
from tests.api.test_comparison import WIDER, Plant, plant  # noqa: F401


def words_of(table: str, beginning: str) -> list[str]:
    (row,) = (line for line in table.splitlines() if line.startswith(beginning))
    return row.split()


def test_with_several_seeds_the_interval_over_them_is_there(
    plant: Plant,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    """HR@1 of 1/4 and 2/4 against 2/4 and 3/4: two degrees of freedom, for which Student's t is a formula."""
    hits = {"a1": [0, 9, 9, 9], "a2": [0, 0, 9, 9], "b1": [0, 0, 9, 9], "b2": [0, 0, 0, 9]}
    runs = [
        plant(name, ranks, seed=int(name[1]), **({"config": WIDER} if name[0] == "b" else {}))
        for name, ranks in hits.items()
    ]
    compare_command(*runs, metric="HR@1")
    table, messages = capsys.readouterr()
    margin = 4.302653 * sqrt(2 * 0.125**2)
    p_value = 1 - sqrt(2) / sqrt(2 + 2)
    total, over_users, over_seeds = (line.split() for line in table.splitlines() if "+0.2500" in line)
    assert total[:7] == ["b1", "…", "b2", "−", "a1", "…", "a2"]
    assert total[7:9] == ["total", "+0.2500"]
    assert over_users[:2] == ["users", "+0.2500"]
    assert over_seeds[:2] == ["seeds", "+0.2500"]
    assert over_seeds[2:4] == [f"[{0.25 - margin:+.4f},", f"{0.25 + margin:+.4f}]"]
    assert over_seeds[4:] == [f"{p_value:.4f}", "–"]
    assert "--seed" not in messages


@pytest.mark.parametrize(
    ("protocol", "told", "other", "difference"),
    [
        ("sampled", "up to 100 sampled negatives", "For full ranking use --protocol full.", "+0.0000"),
        ("full", "full ranking", "For up to 100 sampled negatives use --protocol sampled.", "+0.5000"),
    ],
)
def test_the_protocol_is_said_and_how_to_get_the_other(
    plant: Plant,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    protocol: str,
    told: str,
    other: str,
    difference: str,
) -> None:
    runs = [plant("one", [0, 0], [9, 9]), plant("two", [0, 0], [0, 9], config=WIDER)]
    compare_command(*runs, metric="HR@1", protocol=protocol)  # type: ignore[arg-type]
    table, messages = capsys.readouterr()
    assert table.startswith(f"Test items of planted, {told}\n")
    assert words_of(table, "two − one")[3:5] == ["total", difference]
    assert other in messages
    assert "with different --seed" in messages


def test_it_ends_with_who_wins_under_each_protocol_and_how_sure_that_is(
    plant: Plant,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Among negatives both are alike but for one user of twenty; in full ranking one finds every other item more."""
    one = plant("one", [0] * 10 + [9] * 10, [9] * 20)
    two = plant("two", [0] * 11 + [9] * 9, [0, 9] * 10, config=WIDER)
    compare_command(one, two, metric="HR@1")
    *_, sampled, full = capsys.readouterr().out.splitlines()
    assert sampled == (
        "Up to 100 sampled negatives: no clear winner. two leads one, but this may be chance "
        "(HR@1 0.5500 vs 0.5000, +10.0%; p = 0.3299 over users)."
    )
    assert full == "Full ranking: two beats one (HR@1 0.5000 vs 0.0000; p = 0.0003 over users)."


def test_any_cut_off_is_compared(
    plant: Plant,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    compare_command(plant("one", [2, 9]), plant("two", [2, 2], config=WIDER), metric="HR@3")
    table = capsys.readouterr().out
    assert table.splitlines()[1].split()[-2:] == ["MRR", "HR@3"]
    assert words_of(table, "two − one")[3:5] == ["total", "+0.5000"]


def test_a_refit_that_only_one_of_them_had_is_told(
    plant: Plant,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    compare_command(plant("a [b]", [0, 9]), plant("two", [9, 0], refit=False), metric="HR@1")
    printed = capsys.readouterr()
    assert "Only a [b] learned from the validation items too" in " ".join(printed.err.split())
    assert "a [b] and two have the same HR@1" in printed.out


def test_systems_that_rank_alike_have_no_winner(
    plant: Plant,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    compare_command(plant("one", [0, 9]), plant("two", [9, 0], config=WIDER), metric="HR@1")
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Full ranking: no winner. one and two have the same HR@1."
    )
