import gzip
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bert4rec.data.filters import Filters, apply_filters
from bert4rec.data.sorted_actions import SortedActions
from bert4rec.errors import DataError, NotFoundError
from bert4rec.logs.log import encode
from bert4rec.sources.named import SOURCES, SourceFiles, compare_with_paper, find_source, open_source
from tests.sources.file_server import FileServer, serving

PUBLISHED = {
    "ml-100k": {"u.data": b"1\t2\t3\t4\n", "u.item": ("2|Toy Story|||" + "|0" * 19 + "\n").encode("latin-1")},
    "ml-1m": {"ratings.dat": b"1::2::3::4\n", "movies.dat": "2::Toy Story::Comedy\n".encode("latin-1")},
    "ml-20m": {
        "ratings.csv": b"userId,movieId,rating,timestamp\n1,2,3.5,4\n",
        "movies.csv": b"movieId,title,genres\n2,Toy Story,Comedy\n",
    },
    "beauty": {
        "ratings_Beauty.csv": b"1,2,3.0,4\n",
        "meta_Beauty.json": b"{'asin': '2', 'title': 'Toy Story'}\n",
    },
    "steam": {
        "steam_reviews.json": b"{u'username': u'1', u'product_id': u'2', u'date': u'1970-01-01'}\n",
        "steam_games.json": b"{u'id': u'2', u'title': u'Toy Story'}\n",
    },
}
NAMES = sorted(PUBLISHED)


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def zipped(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def only_row(files: SourceFiles) -> tuple[object, ...]:
    return pl.concat(files.frames()).select("user", "item").row(0)


def titles(files: SourceFiles) -> list[str]:
    items = files.items()
    assert items is not None
    assert items.columns[:2] == ["id", "title"]
    return items["title"].to_list()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["folder", "folder above", "zip", "file", "file.gz", "renamed file"])
def test_a_copy_is_recognised_by_looking_at_it(name: str, form: str, tmp_path: Path) -> None:
    actions, items = PUBLISHED[name].items()
    folder = write_files(tmp_path / "copy" / name, dict([actions, items]))
    path = folder
    if form == "folder above":
        path = folder.parent
    elif form == "zip":
        path = tmp_path / "any.name"
        path.write_bytes(zipped({f"{name}/{file}": content for file, content in (actions, items)}))
    elif form == "file":
        path = folder / actions[0]
    elif form == "file.gz":
        path = folder / (actions[0] + ".gz")
        path.write_bytes(gzip.compress(actions[1]))
    elif form == "renamed file":
        path = (folder / actions[0]).rename(folder / "download (1).txt")
    with open_source(name, path, cache=tmp_path / "unused") as files:
        assert only_row(files) == ("1", "2")
        assert titles(files) == ["Toy Story"]
        assert files.filters == SOURCES[name].filters
        assert SOURCES[name].title in files.notes[-1]
        assert files.provenance["name"] == name
    assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize("name", ["ml-1m", "ml-20m", "beauty", "steam"])
def test_the_authors_files_are_not_filtered_by_item_again_and_have_no_titles(
    name: str, tmp_path: Path
) -> None:
    # A film list beside the file would give wrong titles: the authors numbered the items anew.
    folder = write_files(tmp_path, {f"{name}.txt": b"1 2\n", **dict([list(PUBLISHED[name].items())[1]])})
    for path in (folder, folder / f"{name}.txt"):
        with open_source(name, path, cache=tmp_path) as files:
            assert only_row(files) == ("1", "2")
            assert files.items() is None
            assert files.filters == Filters(min_item_actions=0, min_user_actions=5)


def test_beauty_may_also_be_the_full_reviews(tmp_path: Path) -> None:
    review = {"reviewerID": "1", "asin": "2", "unixReviewTime": 4}
    write_files(tmp_path, {"reviews_Beauty.json": json.dumps(review).encode()})
    with open_source("beauty", tmp_path, cache=tmp_path) as files:
        assert only_row(files) == ("1", "2")
        assert files.filters.min_item_actions == 5


def test_what_was_unpacked_vanishes_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "ml-1m.zip"
    path.write_bytes(
        zipped({"ml-1m/ratings.dat": b"1::2::3::4\n", "ml-1m/README": b"x", "__MACOSX/ratings.dat": b"x"})
    )
    with open_source("ml-1m", path, cache=tmp_path) as files:
        unpacked = files.actions_file
        assert [entry.name for entry in unpacked.parent.iterdir()] == ["ratings.dat"]
        assert any("movies.dat not found" in note for note in files.notes)
        assert files.items() is None
    assert not unpacked.exists()


def test_without_a_list_of_items_there_are_no_titles_and_it_is_said(tmp_path: Path) -> None:
    write_files(tmp_path, {"u.data": b"1\t2\t3\t4\n"})
    with open_source("ml-100k", tmp_path / "u.data", cache=tmp_path) as files:
        assert files.items() is None
        assert any("u.item not found" in note for note in files.notes)


@pytest.mark.parametrize("name", NAMES)
def test_another_data_set_is_refused_with_what_was_expected_and_found(name: str, tmp_path: Path) -> None:
    other = "ml-1m" if name != "ml-1m" else "ml-20m"
    file, content = next(iter(PUBLISHED[other].items()))
    path = write_files(tmp_path, {file: content}) / file
    with pytest.raises(DataError) as error, open_source(name, path, cache=tmp_path):
        pass
    message = str(error.value)
    assert str(path) in message
    assert SOURCES[name].formats[0].file_names[0] in message
    assert repr(content.decode().splitlines()[0]) in message
    assert message.endswith(f"It looks like {other}.")


@pytest.mark.parametrize("packed", [False, True])
def test_a_place_without_the_right_files_is_refused_with_their_names(packed: bool, tmp_path: Path) -> None:
    path = write_files(tmp_path / "some folder", {"holiday.jpg": b"x"})
    if packed:
        path = tmp_path / "some.zip"
        path.write_bytes(zipped({"holiday.jpg": b"x"}))
    with (
        pytest.raises(DataError, match=r"Expected ratings\.dat .*found holiday\.jpg"),
        open_source("ml-1m", path, cache=tmp_path),
    ):
        pass


@pytest.mark.parametrize("keep", [60, 1000, -30])
def test_an_archive_that_was_cut_off_is_an_error(keep: int, tmp_path: Path) -> None:
    ratings = "".join(f"{i * i}::{i}::3::4\n" for i in range(9000)).encode()
    path = tmp_path / "ml-1m.zip"
    path.write_bytes(zipped({"ml-1m/ratings.dat": ratings})[:keep])
    with pytest.raises(DataError, match="damaged or incomplete"), open_source("ml-1m", path, cache=tmp_path):
        pass


def test_an_archive_with_a_changed_byte_is_an_error(tmp_path: Path) -> None:
    ratings = "".join(f"{i * i}::{i}::3::4\n" for i in range(9000)).encode()
    packed = bytearray(zipped({"ml-1m/ratings.dat": ratings}))
    packed[len(packed) // 2] ^= 1
    path = tmp_path / "ml-1m.zip"
    path.write_bytes(packed)
    with pytest.raises(DataError, match="damaged or incomplete"), open_source("ml-1m", path, cache=tmp_path):
        pass


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"ratings.dat": b""}) / "ratings.dat"
    with pytest.raises(DataError, match="is empty"), open_source("ml-1m", path, cache=tmp_path):
        pass


def test_a_path_that_does_not_exist_is_not_found(tmp_path: Path) -> None:
    with (
        pytest.raises(NotFoundError, match="nowhere does not exist"),
        open_source("steam", tmp_path / "nowhere", cache=tmp_path),
    ):
        pass


@pytest.mark.parametrize(("typed", "meant"), [("ml-1M", "ml-1m"), ("beuty", "beauty"), ("ml_20m", "ml-20m")])
def test_an_unknown_name_is_answered_with_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(NotFoundError, match=f"Did you mean {meant}"):
        find_source(typed)


def test_a_name_like_no_other_is_answered_with_all() -> None:
    with pytest.raises(NotFoundError) as error:
        find_source("netflix")
    assert "Did you mean" not in str(error.value)
    assert all(name in str(error.value) for name in SOURCES)


def test_the_counts_of_the_paper_agree_with_the_paper() -> None:
    assert compare_with_paper("ml-1m", 6_040, 3_416, 999_611) == []
    assert compare_with_paper("beauty", 40_226, 54_542, 353_962) == []
    assert compare_with_paper("steam", 281_428, 13_044, 3_488_885) == []
    assert compare_with_paper("ml-20m", 138_493, 26_744, 20_000_263) == []


def test_what_differs_from_the_paper_is_said() -> None:
    users, items, actions = compare_with_paper("beauty", 40_000, 54_543, 355_001)
    assert "40,226 users" in users
    assert "226 fewer" in users
    assert "1 more" in items
    assert "0.35m actions" in actions
    assert "355,001" in actions


def test_data_that_is_not_in_the_paper_is_not_compared() -> None:
    assert compare_with_paper("ml-100k", 1, 1, 1) == []
    assert compare_with_paper("my own log", 1, 1, 1) == []


def test_the_table_says_what_the_paper_prints(real_data: Path) -> None:
    table = json.loads((real_data.parent / "paper" / "results.json").read_text())["table1_datasets"]
    rows = {source.paper.name: source.paper for source in SOURCES.values() if source.paper}
    assert {name: (row.users, row.items, row.actions) for name, row in rows.items()} == {
        name: (row["users"], row["items"], row["actions_as_printed"]) for name, row in table.items()
    }


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server that offers every data set in small, as its publisher does."""
    monkeypatch.setenv("no_proxy", "*")
    archives = {f"{name}.zip": zipped(PUBLISHED[name]) for name in ("ml-100k", "ml-1m", "ml-20m")}
    steam = {name + ".gz": gzip.compress(content) for name, content in PUBLISHED["steam"].items()}
    beauty = PUBLISHED["beauty"]["ratings_Beauty.csv"]
    meta = gzip.compress(PUBLISHED["beauty"]["meta_Beauty.json"])
    files = archives | steam | {"ratings_Beauty.csv": beauty, "meta_Beauty.json.gz": meta}
    with serving(FileServer(files)) as server:
        for name, source in SOURCES.items():
            file = source.url.rpartition("/")[2]
            items_url = source.items_url and server.url(source.items_url.rpartition("/")[2])
            checksum = source.checksum and "md5:" + hashlib.md5(files[file]).hexdigest()
            moved = replace(source, url=server.url(file), items_url=items_url, checksum=checksum)
            monkeypatch.setitem(SOURCES, name, moved)
        yield server


@pytest.mark.parametrize("name", NAMES)
def test_a_data_set_is_fetched_once(name: str, publisher: FileServer, tmp_path: Path) -> None:
    heard: list[int] = []
    for time in ("first", "second"):
        with open_source(name, cache=tmp_path, progress=lambda done, _: heard.append(done)) as files:
            assert only_row(files) == ("1", "2")
            assert titles(files) == ["Toy Story"]
            assert any(("Downloaded" if time == "first" else "in the cache") in note for note in files.notes)
    asked = [path for path, _ in publisher.requests]
    assert len(asked) == len(set(asked)) == len(heard)


@pytest.mark.parametrize("name", ["ml-1m", "steam"])
def test_a_cached_file_that_has_changed_is_fetched_anew(
    name: str, publisher: FileServer, tmp_path: Path
) -> None:
    with open_source(name, cache=tmp_path):
        pass
    cached = tmp_path / name / SOURCES[name].url.rpartition("/")[2]
    cached.write_bytes(cached.read_bytes()[:-1])
    with open_source(name, cache=tmp_path) as files:
        assert only_row(files) == ("1", "2")


def test_what_is_not_the_published_file_is_refused(publisher: FileServer, tmp_path: Path) -> None:
    publisher.files["ml-1m.zip"] = zipped(PUBLISHED["ml-20m"])
    with pytest.raises(DataError, match="checksum"), open_source("ml-1m", cache=tmp_path):
        pass
    assert not (tmp_path / "ml-1m" / "ml-1m.zip").exists()


def test_titles_that_cannot_be_fetched_are_done_without(publisher: FileServer, tmp_path: Path) -> None:
    del publisher.files["steam_games.json.gz"]
    with open_source("steam", cache=tmp_path) as files:
        assert only_row(files) == ("1", "2")
        assert files.items() is None
        assert any("titles could not be downloaded" in note for note in files.notes)


def count(files: SourceFiles) -> tuple[int, int, int]:
    actions = pl.concat(files.frames())
    return actions["user"].n_unique(), actions["item"].n_unique(), len(actions)


@pytest.mark.parametrize(
    ("name", "place", "counts"),
    [
        ("ml-100k", "ml-100k", (943, 1_682, 100_000)),
        ("ml-20m", "ml-latest-small", (671, 9_066, 100_004)),
        ("ml-1m", "ml-1m/ml-1m.txt.gz", (6_040, 3_416, 999_611)),
        ("beauty", "beauty/beauty.txt.gz", (40_226, 54_542, 353_962)),
    ],
)
def test_real_files_are_read_whole(
    name: str, place: str, counts: tuple[int, int, int], real_data: Path
) -> None:
    with open_source(name, real_data / place, cache=Path("unused")) as files:
        assert count(files) == counts
        items = files.items()
        if items is not None:
            actions = pl.concat(files.frames())
            assert set(actions["item"]) <= set(items["id"])


def test_the_recipe_gives_the_papers_counts_from_the_real_ratings(real_data: Path, tmp_path: Path) -> None:
    # The publisher's file itself is not there: this one has all its ratings, with some times only bounded.
    ratings = pl.read_csv(real_data / "ml-1m" / "ratings_time_bounds.csv.gz", infer_schema=False)
    time = pl.coalesce("ts_low", "ts_high", pl.lit("0"))
    line = pl.concat_str("user_id", "movie_id", "rating", time, separator="::")
    (tmp_path / "ratings.dat").write_text("\n".join(ratings.select(line).to_series()))
    with open_source("ml-1m", tmp_path, cache=tmp_path) as files:
        log = encode(files.frames())
        kept, _ = apply_filters(SortedActions(log), files.filters)
    assert len(log.users) == 1_000_209
    assert (
        compare_with_paper("ml-1m", kept.count_users(), int(np.count_nonzero(kept.item_counts())), len(kept))
        == []
    )
    assert len(kept) == 999_611


def test_real_times_lie_in_the_years_they_were_given(real_data: Path) -> None:
    with open_source("ml-100k", real_data / "ml-100k", cache=Path("unused")) as files:
        years = pl.concat(files.frames())["time"].cast(pl.Datetime("us")).dt.year()
    assert (years.min(), years.max()) == (1997, 1998)


def test_the_films_of_the_real_ml_1m_have_their_accents(real_data: Path) -> None:
    read_items = SOURCES["ml-1m"].formats[0].read_items
    assert read_items is not None
    films = read_items(real_data / "ml-1m" / "movies.dat")
    assert len(films) == 3_883
    assert films.filter(pl.col("id") == "73")["title"].item() == "Misérables, Les (1995)"
