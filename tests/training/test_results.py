"""Lines and ranks of results: whoever writes them, whenever they are cut short."""

from pathlib import Path

import numpy as np

from bert4rec.evaluation.protocol import Ranks
from bert4rec.paper.experiments.cases import DatasetFacts
from bert4rec.training.reporting.results import (
    JUDGED,
    append_lines,
    key_of,
    locked,
    ranks_path,
    read_ranks,
    read_results,
    write_ranks,
)

LINE = {"dataset": "beauty", "data_checksum": "1", "candidates_checksum": "2", "protocol": "leave-one-out"}
CODE = {"versions": {"code": "a"}}


def test_half_a_line_is_removed_before_others_are_added(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines.jsonl"
    for number in (1, 2):
        with locked(path) as file:
            append_lines(file, [{"number": number}])
        with path.open("a") as torn:
            torn.write('{"number": ')
    with locked(path) as file:
        append_lines(file, [{"number": 3}])
    assert list(read_results(path.parent)) == [{"number": 1}, {"number": 2}, {"number": 3}]


def test_a_result_is_another_one_where_it_was_judged_otherwise() -> None:
    """By every field that an experiment tells its data sets apart by."""
    facts = DatasetFacts("beauty", "1", "leave-one-out", "beauty", "2")
    assert facts.identity == LINE
    assert tuple(LINE) == JUDGED
    keys = {key_of({**LINE, **CODE, name: "other"}) for name in JUDGED}
    assert len(keys | {key_of({**LINE, **CODE})}) == len(JUDGED) + 1


def test_ranks_come_back_as_they_were_and_leave_nothing_else(tmp_path: Path) -> None:
    ranks = Ranks(np.array([0, 99], dtype=np.int32), np.array([0, 70_000], dtype=np.int32))
    line = {**LINE, **CODE}
    write_ranks(ranks_path(tmp_path, line), ranks)
    found = read_ranks(tmp_path, line)
    assert found
    np.testing.assert_array_equal(found.sampled, ranks.sampled)
    np.testing.assert_array_equal(found.full, ranks.full)
    assert [path.suffix for path in (tmp_path / "ranks").iterdir()] == [".npz"]
