"""From file to file: the same answers as one at a time, in parts, and nothing is computed twice."""

import bz2
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.errors import Bert4RecError, DataError, UsageError
from bert4rec.logs.columns import ColumnRequest
from bert4rec.logs.files import Hints
from bert4rec.recommend import bulk, onnx_engine
from bert4rec.recommend.bulk import Request, Tally, recommend_file
from bert4rec.recommend.bulk_input import users_of
from bert4rec.recommend.recommender import Recommender
from bert4rec.recommend.rules.rules import Rules
from tests.conftest import MakeDataset
from tests.recommend.tiny import HighestFirst, highest_first

IDS = [f"item-{number}" for number in range(9)]
HISTORIES = [
    ["item-1", "item-2"],
    ["item-8"],
    ["who", "item-3"],
    [],
    ["who", "knows"],
    IDS,
    ["item-8", "item-8"],
]
USERS = [f"u{number}" for number in range(len(HISTORIES))]


@pytest.fixture
def shop() -> Recommender:
    return highest_first(IDS)


def asked(recommender: Recommender) -> list[int]:
    return cast(HighestFirst, recommender.ranker.engine).asked


def write_lists(path: Path) -> Path:
    lists = pl.Series("history", HISTORIES, dtype=pl.List(pl.String))
    pl.DataFrame([pl.Series("customer_id", USERS), lists]).write_parquet(path)
    return path


def expected(recommender: Recommender, k: int = 10) -> list[tuple[object, ...]]:
    answers = zip(USERS, recommender.recommend_many(HISTORIES, k=k), strict=True)
    return [
        (user, rank, item.item_id, item.score, answer.fallback)
        for user, answer in answers
        for rank, item in enumerate(answer.items, start=1)
    ]


def test_everybody_gets_what_they_would_get_alone(shop: Recommender, tmp_path: Path) -> None:
    request = Request(write_lists(tmp_path / "in.parquet"), tmp_path / "out.parquet", Rules(k=4))
    tally = recommend_file(shop, request)
    table = pl.read_parquet(request.target)
    assert table.columns == ["user", "rank", "item", "score", "fallback"]
    assert table.rows() == expected(shop, k=4)
    assert tally == Tally(users=7, unknown=3, fallbacks=2, resumed=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.parquet", "out.parquet"]


def test_no_more_than_a_part_is_asked_at_a_time(shop: Recommender, tmp_path: Path) -> None:
    source = write_lists(tmp_path / "in.parquet")
    reports: list[tuple[int, int | None]] = []
    recommend_file(
        shop,
        Request(source, tmp_path / "parts.parquet", users_per_part=2),
        progress=lambda done, total: reports.append((done, total)),
    )
    assert max(asked(shop)) <= 2
    assert reports == [(2, None), (4, None), (6, None), (7, None)]
    assert pl.read_parquet(tmp_path / "parts.parquet").rows() == expected(shop)


def test_the_more_is_recommended_the_fewer_users_are_asked_at_a_time(
    shop: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = write_lists(tmp_path / "in.parquet"), tmp_path / "out.parquet"
    monkeypatch.setattr(bulk, "ANSWERS_PER_PART", 2 * len(IDS))
    leave_parts(shop, Request(source, target, Rules(k=10**12)))
    assert recommend_file(shop, Request(source, target, Rules(k=10**12))).resumed == 2
    assert max(asked(shop)) <= 2
    assert pl.read_parquet(target).rows() == expected(shop, k=len(IDS))
    monkeypatch.setattr(bulk, "ANSWERS_PER_PART", 1)
    recommend_file(shop, Request(source, tmp_path / "one-by-one.parquet"))
    assert pl.read_parquet(tmp_path / "one-by-one.parquet").rows() == expected(shop)


def as_parquet(path: Path) -> Path:
    return write_lists(path.with_suffix(".parquet"))


def as_json_lines(path: Path) -> Path:
    path = path.with_suffix(".jsonl")
    pl.read_parquet(write_lists(path.with_suffix(".parquet"))).write_ndjson(path)
    return path


def as_log(path: Path) -> Path:
    """In no order but that of time."""
    path = path.with_suffix(".csv")
    rows = [
        (user, item, f"2024-01-{place + 1:02}")
        for user, history in zip(USERS, HISTORIES, strict=True)
        for place, item in enumerate(history)
    ]
    table = pl.DataFrame(rows, schema=["user", "item", "date"], orient="row")
    table.sample(fraction=1, shuffle=True, seed=1).write_csv(path)
    return path


def as_feather(path: Path) -> Path:
    path = path.with_suffix(".feather")
    pl.read_parquet(write_lists(path.with_suffix(".parquet"))).write_ipc(path)
    return path


def as_archive(path: Path) -> Path:
    path = path.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(as_json_lines(path), "day/1.jsonl")
    return path


def as_packed_json_lines(path: Path) -> Path:
    path = path.with_suffix(".jsonl.bz2")
    path.write_bytes(bz2.compress(as_json_lines(path).read_bytes()))
    return path


def as_lists_with_times(path: Path) -> Path:
    """The last item first, as their times tell."""
    path = path.with_suffix(".parquet")
    times = [list(range(len(history), 0, -1)) for history in HISTORIES]
    lists = {"user": USERS, "item_ids": [history[::-1] for history in HISTORIES], "times": times}
    pl.DataFrame(lists).write_parquet(path)
    return path


def as_folder_of_parts(path: Path) -> Path:
    path.mkdir()
    whole = pl.read_parquet(write_lists(path / "1.parquet"))
    whole.head(3).write_parquet(path / "1.parquet")
    whole.slice(3).write_parquet(path / "2.parquet")
    return path


@pytest.mark.parametrize(
    "write",
    [
        as_parquet,
        as_json_lines,
        as_log,
        as_folder_of_parts,
        as_feather,
        as_archive,
        as_packed_json_lines,
        as_lists_with_times,
    ],
)
def test_lists_and_logs_give_the_same_answers(
    write: Callable[[Path], Path], shop: Recommender, tmp_path: Path
) -> None:
    recommend_file(shop, Request(write(tmp_path / "in"), tmp_path / "out.parquet", users_per_part=3))
    found = pl.read_parquet(tmp_path / "out.parquet").rows()
    # A user without actions is in no log.
    is_log = write in (as_log, as_lists_with_times)
    assert sorted(found) == sorted(row for row in expected(shop) if not is_log or row[0] != "u3")


def test_a_dataset_gives_all_its_users_with_all_they_did(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset([[0, 1, 2], [2, 2, 4], [4, 3, 0, 1]])
    shop = highest_first(["item-4", "item-2", "item-3", "another"])
    tally = recommend_file(shop, Request(dataset.folder, tmp_path / "out.parquet", Rules(k=1)))
    assert tally == Tally(users=3, unknown=4, fallbacks=0, resumed=0)
    rows = pl.read_parquet(tmp_path / "out.parquet").rows()
    histories = [["item-2"], ["item-2", "item-2", "item-4"], ["item-4", "item-3"]]
    assert [row[2:4] for row in rows] == [
        (answer.items[0].item_id, answer.items[0].score) for answer in shop.recommend_many(histories, k=1)
    ]
    assert [row[0] for row in rows] == ["user-0", "user-1", "user-2"]


def test_the_same_table_in_every_format(shop: Recommender, tmp_path: Path) -> None:
    source = write_lists(tmp_path / "in.parquet")
    for ending in ("parquet", "csv", "jsonl"):
        recommend_file(shop, Request(source, tmp_path / f"out.{ending}"))
    table = pl.read_parquet(tmp_path / "out.parquet").select("user", "rank", "item", "score")
    assert pl.read_csv(tmp_path / "out.csv").select(table.columns).rows() == table.rows()
    lines = pl.read_ndjson(tmp_path / "out.jsonl", schema=dict(table.schema))
    assert lines.rows() == table.rows()


def test_whole_numbers_come_out_as_they_went_in(tmp_path: Path) -> None:
    shop = highest_first(["10", "20", "30"], whole_numbers=True)
    lists = pl.DataFrame({"user": [7, 8], "items": [[10.0, None], [30.0]]})
    lists.write_parquet(tmp_path / "in.parquet")
    recommend_file(shop, Request(tmp_path / "in.parquet", tmp_path / "out.parquet", Rules(k=1)))
    table = pl.read_parquet(tmp_path / "out.parquet")
    assert table.select("user", "item").rows() == [(7, 30), (8, 20)]


def test_ids_may_have_blanks_around_them_and_whole_numbers_a_point(tmp_path: Path) -> None:
    shop = highest_first(["10", "20", "30"], whole_numbers=True)
    (tmp_path / "in.jsonl").write_text('{"user": "a", "items": ["30.0", " 20 "]}\n')
    (tmp_path / "in.csv").write_text("user,item\na, 30.0\na,20\na,unknown\n")
    for name, unknown in (("in.jsonl", 0), ("in.csv", 1)):
        tally = recommend_file(shop, Request(tmp_path / name, tmp_path / f"{name}.parquet"))
        assert tally.unknown == unknown
        assert pl.read_parquet(tmp_path / f"{name}.parquet")["item"].to_list() == [10]


MAYBE_ITEMS = st.lists(st.sampled_from([*IDS, "who", " item-2", None]), max_size=5)


@given(lists=st.lists(st.none() | MAYBE_ITEMS, min_size=1, max_size=9), per_part=st.integers(1, 4))
def test_missing_and_unknown_items_leave_everything_else_where_it_was(
    lists: list[list[str | None] | None], per_part: int
) -> None:
    catalogue = highest_first(IDS).catalogue
    table = pl.DataFrame({"user": range(len(lists)), "items": pl.Series(lists, dtype=pl.List(pl.String))})
    with users_of(
        table, ColumnRequest(), catalogue, per_part=per_part, check_dataset=lambda dataset: dataset
    ) as (_, parts):
        for number, part in enumerate(parts):
            rows = [[item for item in row or [] if item] for row in lists[number * per_part :][:per_part]]
            known = [[IDS.index(item.strip()) + 1 for item in row if item != "who"] for row in rows]
            found = [part.histories[row : row + 1].flat()[1].tolist() for row in range(len(rows))]
            assert found == known
            assert part.unknown_rows.tolist() == [
                place for place, row in enumerate(rows) for item in row if item == "who"
            ]
            assert set(part.unknown_ids) <= {"who"}
            assert part.unknown == len(part.unknown_ids)


def test_lists_of_numbers_in_json_lines_are_read_in_parts(tmp_path: Path) -> None:
    shop = highest_first(["10", "20", "30"], whole_numbers=True)
    (tmp_path / "in.jsonl").write_text("".join(f'{{"user": {n}, "items": [{n}0]}}\n' for n in (1, 2, 3)))
    tally = recommend_file(
        shop, Request(tmp_path / "in.jsonl", tmp_path / "out.csv", Rules(k=1), users_per_part=2)
    )
    assert (tally.users, tally.unknown) == (3, 0)
    assert pl.read_csv(tmp_path / "out.csv")["item"].to_list() == [30, 30, 20]


def test_a_log_is_read_as_its_hints_say(shop: Recommender, tmp_path: Path) -> None:
    rows = "user^^item^^day\nZoë^^item-2^^02/01/2024\nZoë^^item-1^^01/02/2024\n"
    (tmp_path / "in.txt").write_bytes(rows.encode("latin-1"))
    request = Request(
        tmp_path / "in.txt",
        tmp_path / "out.parquet",
        columns=ColumnRequest(time="day"),
        hints=Hints("latin-1", "^^", "%d/%m/%Y"),
    )
    recommend_file(shop, request)
    answer = shop.recommend(["item-2", "item-1"])
    table = pl.read_parquet(request.target)
    assert table.select("user", "item").rows() == [("Zoë", item.item_id) for item in answer.items]


def test_another_member_of_an_archive_is_another_request(shop: Recommender, tmp_path: Path) -> None:
    source = as_archive(tmp_path / "in")
    with zipfile.ZipFile(source, "a") as archive:
        archive.writestr("day/2.jsonl", '{"user": "a", "items": ["item-1"]}\n')
    leave_parts(shop, Request(source / "day/1.jsonl", tmp_path / "out.parquet"))
    with pytest.raises(UsageError, match="another request"):
        recommend_file(shop, Request(source / "day/2.jsonl", tmp_path / "out.parquet"))
    tally = recommend_file(shop, Request(source / "2.jsonl", tmp_path / "out.parquet"), overwrite=True)
    assert tally.users == 1


def test_a_fraction_is_no_item(tmp_path: Path) -> None:
    shop = highest_first(["10", "11"], whole_numbers=True)
    pl.DataFrame({"user": [7], "items": [[10.9, 11.0, float("nan")]]}).write_parquet(tmp_path / "in.parquet")
    tally = recommend_file(shop, Request(tmp_path / "in.parquet", tmp_path / "out.parquet"))
    assert tally.unknown == 2
    assert pl.read_parquet(tmp_path / "out.parquet")["item"].to_list() == [10]


def test_a_column_of_records_is_passed_over(shop: Recommender, tmp_path: Path) -> None:
    table = {"user": ["a"], "items": [["item-1"]], "more": [{"colour": "red"}]}
    pl.DataFrame(table).write_parquet(tmp_path / "in.parquet")
    assert recommend_file(shop, Request(tmp_path / "in.parquet", tmp_path / "out.csv")).users == 1


def test_seen_items_may_be_recommended_again(shop: Recommender, tmp_path: Path) -> None:
    source = write_lists(tmp_path / "in.parquet")
    recommend_file(shop, Request(source, tmp_path / "out.parquet", Rules(k=1, exclude_seen=False)))
    assert pl.read_parquet(tmp_path / "out.parquet")["item"].to_list()[1] == "item-8"


INTERRUPTED = """
import os, resource, signal, sys
from pathlib import Path
from bert4rec.recommend import bulk, onnx_engine
from bert4rec.recommend.bulk import Request, recommend_file
from tests.recommend.test_bulk import IDS
from tests.recommend.tiny import highest_first

def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)

def fill_the_disk():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

def after_the_second_part(done, total):
    if done == 4:
        {"kill": kill_myself, "full": fill_the_disk}[sys.argv[1]]()

request = Request(Path(sys.argv[2]), Path(sys.argv[3]), users_per_part=2)
recommend_file(highest_first(IDS), request, progress=after_the_second_part)
"""


@pytest.mark.parametrize(("how", "code"), [("kill", -signal.SIGKILL), ("full", 1)])
def test_after_a_kill_or_a_full_disk_only_what_was_not_finished_is_computed(
    how: str, code: int, shop: Recommender, tmp_path: Path
) -> None:
    source, target = write_lists(tmp_path / "in.parquet"), tmp_path / "out.parquet"
    command: list[str | Path] = [sys.executable, "-c", INTERRUPTED, how, source, target]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert ended.returncode == code
    assert how == "kill" or "OSError" in ended.stderr
    assert not target.exists()
    tally = recommend_file(shop, Request(source, target, users_per_part=2))
    assert tally.resumed == 4
    assert sum(asked(shop)) == 2  # of u4 nothing is known; u5 and u6 are left
    assert pl.read_parquet(target).rows() == expected(shop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.parquet", "out.parquet"]


def test_what_was_answered_before_ctrl_c_is_kept(
    shop: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(write_lists(tmp_path / "in.parquet"), tmp_path / "out.parquet", users_per_part=2)
    engine = cast(HighestFirst, shop.ranker.engine)
    answer = engine.top

    def answer_twice(*question: Any) -> Any:
        if len(engine.asked) == 2:
            raise KeyboardInterrupt
        return answer(*question)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine, "top", answer_twice)
        recommend_file(shop, request)
    assert sorted(path.name for path in request.parts.glob("*.parquet")) == [
        "000000.parquet",
        "000001.parquet",
    ]
    assert recommend_file(shop, request).resumed == 4
    assert pl.read_parquet(request.target).rows() == expected(shop)


def leave_parts(shop: Recommender, request: Request) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recommend_file(shop, request, progress=stop)
    assert request.parts.is_dir()


def test_parts_of_another_request_are_not_mixed_in(shop: Recommender, tmp_path: Path) -> None:
    source, target = write_lists(tmp_path / "in.parquet"), tmp_path / "out.parquet"
    leave_parts(shop, Request(source, target, Rules(k=3), users_per_part=2))
    others: list[dict[str, Any]] = [
        {"k": 4},
        {"exclude_seen": False},
        {"allow": IDS},
        {"deny": ["item-1"]},
        {"diversity": 0.5},
    ]
    for each in others:
        other = Request(source, target, Rules(**{"k": 3, **each}), users_per_part=2)
        with pytest.raises(UsageError, match="another request"):
            recommend_file(shop, other)
    other_model = highest_first(IDS)
    other_model.version = "2"
    with pytest.raises(UsageError, match="another request"):
        recommend_file(other_model, Request(source, target, Rules(k=3), users_per_part=2))
    os.utime(source, ns=(0, 0))
    with pytest.raises(UsageError, match="another request"):
        recommend_file(shop, Request(source, target, Rules(k=3), users_per_part=2))
    assert recommend_file(shop, Request(source, target, Rules(k=4)), overwrite=True).resumed == 0
    assert pl.read_parquet(target).rows() == expected(shop, k=4)


def test_a_folder_that_is_not_ours_is_neither_read_nor_removed(shop: Recommender, tmp_path: Path) -> None:
    request = Request(write_lists(tmp_path / "in.parquet"), tmp_path / "out.parquet")
    request.parts.mkdir()
    (request.parts / "000000.parquet").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(
            UsageError, match=r"parquet\.parts was not written by bert4rec: it has no request\.json"
        ):
            recommend_file(shop, request, overwrite=overwrite)
    assert (request.parts / "000000.parquet").read_text() == "precious"


def test_of_two_that_write_one_file_the_second_is_told_at_once(shop: Recommender, tmp_path: Path) -> None:
    request = Request(write_lists(tmp_path / "in.parquet"), tmp_path / "out.parquet", users_per_part=2)

    def try_too(done: int, total: int | None) -> None:
        program = f"""
from pathlib import Path
from bert4rec.errors import UsageError
from bert4rec.recommend.bulk import Request
try:
    Request(Path({str(request.source)!r}), Path({str(request.target)!r})).check_target(overwrite=True)
except UsageError as error:
    print(error)
"""
        told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert told.stdout.startswith(f"Another process is writing {request.target}. Wait for it"), told
        for overwrite in (False, True):
            with pytest.raises(UsageError, match=r"Another process is writing .*out\.parquet"):
                recommend_file(shop, request, overwrite=overwrite)

    recommend_file(shop, request, progress=try_too)
    assert pl.read_parquet(request.target).rows() == expected(shop)


def test_what_a_kill_left_half_written_is_removed(shop: Recommender, tmp_path: Path) -> None:
    request = Request(write_lists(tmp_path / "in.parquet"), tmp_path / "out.parquet", users_per_part=2)
    leave_parts(shop, request)
    (request.parts / ".000007.parquet.unfinished-12ab34cd").write_text("half")
    (tmp_path / ".out.parquet.unfinished-12ab34cd").write_text("half")
    (tmp_path / ".out.parquet.parts.replaced-12ab34cd").mkdir()
    assert recommend_file(shop, request).resumed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.parquet", "out.parquet"]


def test_parts_are_removed_all_at_once(
    shop: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def die(folder: Path, **options: Any) -> None:
        if not (note := Path(folder) / "request.json").exists():
            return remove(folder, **options)
        note.unlink()
        raise KeyboardInterrupt

    request = Request(write_lists(tmp_path / "in.parquet"), tmp_path / "out.parquet", users_per_part=2)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", die)
        recommend_file(shop, request)
    assert not request.parts.exists()
    assert recommend_file(shop, request, overwrite=True).resumed == 0


def test_an_output_that_exists_is_replaced_only_when_told(shop: Recommender, tmp_path: Path) -> None:
    source, target = write_lists(tmp_path / "in.parquet"), tmp_path / "out.csv"
    target.write_text("precious")
    with pytest.raises(UsageError, match="`overwrite=True`"):
        recommend_file(shop, Request(source, target))
    assert target.read_text() == "precious"
    recommend_file(shop, Request(source, target), overwrite=True)
    assert target.read_text().startswith("user,rank,item,score,fallback\n")


def test_behind_a_link_the_file_is_replaced_and_the_link_stays(shop: Recommender, tmp_path: Path) -> None:
    source, link = write_lists(tmp_path / "in.parquet"), tmp_path / "newest.csv"
    for name in ("yesterday.csv", "not-yet-there/today.csv"):
        link.unlink(missing_ok=True)
        link.symlink_to(name)
        recommend_file(shop, Request(source, link), overwrite=True)
        recommend_file(shop, Request(source, link), overwrite=True)
        assert link.readlink() == Path(name)
        assert (tmp_path / name).read_text().startswith("user,rank,item,score,fallback\n")


@pytest.mark.parametrize(
    ("table", "columns", "complaint"),
    [
        ({"who": ["a"], "items": [["x"]]}, {}, "looks like the user"),
        ({"user": ["a"], "b": [["x"]], "c": [["y"]]}, {}, "found b, c. Name it with `item`"),
        (
            {"user": [["a"]], "item": [["x"]]},
            {"item": "item"},
            r"column 'user' of .* holds List\(String\). Expected single ids",
        ),
        (
            {"user": [{"a": 1}], "item": [["x"]]},
            {},
            r"column 'user' of .* holds Struct.*. Expected single ids",
        ),
        ({"user": ["a"], "item": [{"x": 1}]}, {}, "Expected single ids"),
        (
            {"user": ["a"], "items": [[["x"]]]},
            {},
            r"column 'items' of .* holds List\(List\(String\)\). Expected single ids",
        ),
        ({"user": ["a"], "thing": ["x"]}, {}, "looks like the item"),
        (
            {"user": pl.Series([], dtype=pl.String), "item": [], "time": []},
            {},
            "No users found in .*in.parquet",
        ),
    ],
)
def test_a_table_of_another_shape_is_refused_with_what_was_found(
    table: dict[str, Any], columns: dict[str, str], complaint: str, shop: Recommender, tmp_path: Path
) -> None:
    source = tmp_path / "in.parquet"
    pl.DataFrame(table).write_parquet(source)
    request = Request(source, tmp_path / "out.parquet", columns=ColumnRequest(**columns))
    with pytest.raises(DataError, match=complaint):
        recommend_file(shop, request)
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_damaged_and_missing_files_are_named(shop: Recommender, tmp_path: Path) -> None:
    source = write_lists(tmp_path / "in.parquet")
    source.write_bytes(source.read_bytes()[:-20])
    for path in (source, tmp_path / "nowhere.parquet"):
        with pytest.raises(Bert4RecError, match=path.name):
            recommend_file(shop, Request(path, tmp_path / "out.parquet"))
    with pytest.raises(UsageError, match=r"ends in \.parquet, \.csv, \.jsonl"):
        recommend_file(shop, Request(source, tmp_path / "out.xlsx"))


@given(
    order=st.permutations(range(40)),
    per_part=st.integers(1, 300),
    k=st.integers(1, 61),
    diversity=st.sampled_from([0.0, 0.5]),
)
def test_an_answer_does_not_depend_on_who_else_is_asked_about_nor_in_which_part(
    recommender: Recommender, order: list[int], per_part: int, k: int, diversity: float
) -> None:
    """To the last bit. Histories are of any length, also empty, and parts may be small or large."""
    rng = np.random.default_rng(1)
    lists = {user: [f"i{number}" for number in rng.integers(1, 61, user % 25)] for user in range(300)}
    together = recommender.recommend_many(lists, k, diversity=diversity).to_polars()
    some = {user: lists[user] for user in (*order, *range(40, per_part))}
    expected = pl.DataFrame({"user": list(some)}).join(
        together, "user", how="inner", maintain_order="left_right"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk, "USERS_PER_PART", per_part)
        patch.setattr(onnx_engine, "_SCORES_AT_ONCE", 1)
        patch.setattr(onnx_engine, "_ROWS_AT_LEAST", 15)  # so many users at a time, and the last of 256 alone
        assert recommender.recommend_many(some, k, diversity=diversity).to_polars().equals(expected)
