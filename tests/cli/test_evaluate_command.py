"""`evaluate` as a user reads it."""

import json
from pathlib import Path

import pytest

from bert4rec.cli.evaluate_command import evaluate_command
from bert4rec.errors import UsageError
from tests.conftest import MakeDataset
from tests.evaluation.tiny import CUT_BY_TIME, action_times
from tests.training.tiny import random_histories, train_tiny


def test_an_evaluation_shows_the_cut_offs_that_one_wants(
    make_dataset: MakeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_tiny(make_dataset(random_histories()), tmp_path / "run")
    evaluate_command(run.path, k="3, 20", device="cpu")
    head, *_ = table = capsys.readouterr().out.splitlines()
    assert head.split()[-5:] == ["HR@3", "HR@20", "NDCG@3", "NDCG@20", "MRR"]
    assert "by user activity" in " ".join(table)
    assert [line.split() for line in table if "NDCG@20" in line][1] == ["HR@20", "NDCG@20"] * 2
    expected = f"{float((run.ranks().sampled < 3).mean()):.4f}"
    assert [line.split()[3] for line in table if line.startswith("test, sampled (refit)")] == [expected]


def test_beside_the_model_stand_popularity_and_what_follows_the_last_item(
    make_dataset: MakeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_tiny(make_dataset(random_histories()), tmp_path / "run")
    evaluate_command(run.path, device="cpu", json=True)
    found = json.loads(capsys.readouterr().out)
    evaluate_command(run.path, device="cpu")
    printed = capsys.readouterr()
    for name, protocols in (("POP", found["pop"]), ("Markov", found["markov"])):
        for protocol, metrics in protocols.items():
            (row,) = (
                line for line in printed.out.splitlines() if line.startswith(f"test, {protocol} ({name})")
            )
            assert row.split()[3:] == [f"{value:.4f}" for value in metrics.values()]
    assert "Markov: what most often came right after the last item." in " ".join(printed.err.split())


def test_many_cut_offs_become_rows_so_that_nothing_is_wider_than_80_columns(
    make_dataset: MakeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_tiny(make_dataset(random_histories()), tmp_path / "run")
    evaluate_command(run.path, k="1,5,10,20,50", device="cpu")
    table = capsys.readouterr().out.splitlines()
    assert max(map(len, table)) <= 80
    assert [line.split()[0] for line in table[2:12]] == [
        "HR@1", "HR@5", "HR@10", "HR@20", "HR@50", "NDCG@5", "NDCG@10", "NDCG@20", "NDCG@50", "MRR"
    ]  # fmt: skip
    metrics = run.metrics["test"]
    assert table[2].split()[1:3] == [f"{metrics[protocol]['HR@1']:.4f}" for protocol in ("sampled", "full")]


def test_all_items_after_the_date_are_asked_for_beside_pop(
    make_dataset: MakeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    histories = random_histories()
    run = train_tiny(make_dataset(histories, action_times(histories), split=CUT_BY_TIME), tmp_path / "run")
    before = sorted(path.name for path in run.path.iterdir())
    evaluate_command(run.path, k="5,10", targets="all", device="cpu", json=True)
    found = json.loads(capsys.readouterr().out)
    evaluate_command(run.path, k="5,10", targets="all", device="cpu")
    table, _ = capsys.readouterr()
    metrics, lists, _slices = table.split("\n\n")
    rows = {line.split()[0]: line.split()[1:] for line in (metrics + "\n" + lists).splitlines()}
    assert "bert4rec on tiny, test, all targets" in table
    for name, value in found["metrics"]["full"].items():
        beside = (f"{found[counted]['full'][name]:.4f}" for counted in ("pop", "markov"))
        assert rows[name] == [f"{value:.4f}", *beside]
    for name in ("Coverage@10", "Popularity@10", "SameList@10"):
        assert rows[name] == [f"{found['lists'][name]:.4f}", f"{found['pop_lists'][name]:.4f}"]
    assert {"Recall@5", "Recall@10", "Precision@5", "Precision@10"} <= rows.keys()
    assert max(map(len, table.splitlines())) <= 80
    assert sorted(path.name for path in run.path.iterdir()) == before


def test_all_items_are_refused_where_one_is_held_out(make_dataset: MakeDataset, tmp_path: Path) -> None:
    run = train_tiny(make_dataset(random_histories()), tmp_path / "run", model="pop")
    with pytest.raises(UsageError, match='`targets="all"` requires a split by time'):
        evaluate_command(run.path, targets="all", device="cpu")
