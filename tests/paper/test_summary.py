"""The parts of documents that are made from results."""

import json
from pathlib import Path

import pytest

from bert4rec.errors import DataError
from bert4rec.paper.experiments.cases import BERT4REC, PLUS
from bert4rec.paper.reporting.report import read_report
from bert4rec.paper.reporting.summary import END, MARK, fill, make_parts, update
from tests.paper.fake import write_results


def marked(name: str) -> str:
    return f"<!-- {name}: written by a command, do not edit -->"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    write_results(folder, ["beauty"], ["table2"])
    return folder


def test_marked_parts_are_replaced_and_nothing_else(results: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.md", tmp_path / "second.md"
    first.write_text(f"before\n{marked('quality')}\nold\n{END}\nbetween\n{marked('speed')}\n{END}\nafter\n")
    second.write_text(f"{marked('runs')}\n{END}\n")
    update(results, [first, second])
    text, parts = first.read_text(), make_parts(results)
    assert text == (
        f"before\n{marked('quality')}\n{parts['quality']}\n{END}\nbetween\n"
        f"{marked('speed')}\n{parts['speed']}\n{END}\nafter\n"
    )
    assert second.read_text() == f"{marked('runs')}\n{parts['runs']}\n{END}\n"
    update(results, [first])
    assert first.read_text() == text


def test_an_unknown_mark_and_one_without_an_end_are_errors() -> None:
    with pytest.raises(DataError, match="qualtiy"):
        fill(f"{marked('qualtiy')}\n{END}", {"quality": ""})
    with pytest.raises(DataError, match="is missing"):
        fill(f"{marked('quality')}\n no end", {"quality": ""})


def test_its_numbers_are_those_of_the_results(results: Path) -> None:
    (evidence,) = read_report(results).results.data
    run = evidence.find(BERT4REC)
    assert run
    parts = make_parts(results)
    for part in (parts["quality"], parts["baselines"]):
        assert f"**{run.mean('NDCG@10'):.4f}** ± " in part
        assert f"**{run.mean('HR@10', 'full'):.4f}** ± " in part
        assert "0.1862" in part
    assert f"| Beauty, BERT4Rec | 0.1862 | **{run.mean('NDCG@10'):.4f}** ± " in parts["headline"]
    assert f"| **{run.mean('NDCG@10', 'full'):.4f}** ± " in parts["headline"]
    assert parts["headline"].startswith("| NVIDIA H200 | NDCG@10, paper |")
    assert "| 3 | NVIDIA H200 |" in parts["quality"]
    assert parts["baselines"].count("\n") == 13
    assert "SASRec trained with the exact softmax is above BERT4Rec" in parts["surprises"]
    assert "Table 2: nine models | Beauty | numbers: " in parts["verdicts"]


def test_bert4rec_plus_stands_beside_bert4rec_where_it_has_results(results: Path, tmp_path: Path) -> None:
    parts = make_parts(results)
    (evidence,) = read_report(results).results.data
    run = evidence.find(PLUS)
    assert run
    number = f"**{run.mean('NDCG@10'):.4f}** ± "
    assert f"| Beauty, BERT4Rec+ | – | {number}" in parts["headline"]
    assert parts["quality"].count("| Beauty, BERT4Rec+ | ours, ") == 2
    assert "| Beauty, BERT4Rec+, seed 1 | 0.1862 | " in parts["times"]
    assert "| *BERT4Rec+* | 41 s |" in parts["runs"]
    assert parts["baselines"].splitlines()[-1].startswith("| *BERT4Rec+* | ")
    lines = (results / "beauty.jsonl").read_text().splitlines(keepends=True)
    without = [line for line in lines if json.loads(line).get("model") != "bert4rec+"]
    (tmp_path / "beauty.jsonl").write_text("".join(without))
    parts = make_parts(tmp_path)
    assert not any("BERT4Rec+" in parts[name] for name in ("headline", "quality", "times"))
    assert "| *BERT4Rec+* | – | – | – | – | – | – |" in parts["baselines"]


def test_where_no_validation_passes_the_papers_number_the_whole_run_is_a_bound(
    results: Path, tmp_path: Path
) -> None:
    """As where a model is selected by another metric."""
    lines = [json.loads(line) for line in (results / "beauty.jsonl").read_text().splitlines()]
    for line in lines:
        line["validations"] = [{**each, "value": 0.1} for each in line.get("validations", [])]
    (tmp_path / "beauty.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    parts = make_parts(tmp_path)
    assert "seed" not in parts["times"]
    assert parts["headline"].count("| at most 41 s |") == 2


def test_time_to_the_paper_s_quality_is_an_upper_bound_where_no_run_had_the_device_to_itself(
    results: Path, tmp_path: Path
) -> None:
    parts = make_parts(results)
    assert "| Beauty, BERT4Rec, seed 1 | 0.1862 | 7,000 | 35 s | 35 s | NVIDIA H200 |" in parts["times"]
    assert "| 35 s |" in parts["headline"]
    text = (results / "beauty.jsonl").read_text()
    (tmp_path / "beauty.jsonl").write_text(text.replace('"device_shared": false', '"device_shared": true'))
    bound = "| 0.1862 | 7,000 | at most 35 s | at most 35 s | NVIDIA H200, shared |"
    assert bound in make_parts(tmp_path)["times"]
    assert "| at most 35 s |" in make_parts(tmp_path)["headline"]


def test_times_of_runs_that_were_interrupted_are_not_told(results: Path, tmp_path: Path) -> None:
    """Training took longer than the last call, so neither the call nor its validations tell anything."""
    text = (results / "beauty.jsonl").read_text()
    assert "| BERT4Rec | 41 s |" in make_parts(results)["runs"]
    (tmp_path / "beauty.jsonl").write_text(text.replace('"train_seconds": 12.25', '"train_seconds": 50.0'))
    parts = make_parts(tmp_path)
    assert "seed" not in parts["times"]
    assert "| – |" in parts["headline"]
    assert "| BERT4Rec | – |" in parts["runs"]


def test_a_whole_run_takes_at_most_the_shortest_of_its_seeds_and_of_what_was_only_timed(
    results: Path, tmp_path: Path
) -> None:
    lines = (results / "beauty.jsonl").read_text().splitlines()
    whole = next(
        line for line in map(json.loads, lines) if line.get("stage") == "refit" and line["model"] == "caser"
    )
    timed = {**whole, "kind": "timing", "command_seconds": 30.2, "device": "a processor"}
    (tmp_path / "beauty.jsonl").write_text("\n".join([*lines, json.dumps(timed)]) + "\n")
    header, _, *rows = make_parts(tmp_path)["runs"].splitlines()
    assert header == "| at most, NVIDIA H200 | Beauty |"
    assert "| Caser | 31 s (a processor) |" in rows
    assert "| *SASRec (softmax)* | 41 s |" in rows
    assert len(rows) == 12


def test_a_speed_that_was_measured_beside_others_is_not_told(results: Path, tmp_path: Path) -> None:
    bench = {"shape": "steam", "device": "a card", "dim": 64, "batch_size": 256, "max_length": 50, "items": 7}
    bench |= {"samples_per_second": 123456.0, "peak_memory_gib": 1.5, "share_of_arithmetic_limit": 0.1}
    for shared in (False, True):
        lines = (results / "beauty.jsonl").read_text() + json.dumps({**bench, "device_shared": shared}) + "\n"
        (tmp_path / "beauty.jsonl").write_text(lines)
        parts = make_parts(tmp_path)
        assert ("123,456" in parts["speed"]) == (not shared)
        assert ("a card, shared" in parts["scale"]) == shared


def test_marks_are_found() -> None:
    assert MARK.findall(f"a {marked('quality')} b {marked('speed')}") == ["quality", "speed"]
