"""The data sets known by name: where to get each, how to recognise it, how the paper filtered it (section 4.1)."""

import difflib
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bert4rec.data.filters import Filters
from bert4rec.errors import Bert4RecError, DataError, NotFoundError
from bert4rec.logs.files import first_lines
from bert4rec.progress import ProgressCallback
from bert4rec.sources.download import digest, download
from bert4rec.sources.publishers import (
    AMAZON_RATINGS,
    AMAZON_REVIEWS,
    BYTE_ORDER_MARK,
    COMPRESSIONS,
    ML_1M,
    ML_20M,
    ML_100K,
    STEAM,
    Format,
    authors_file,
)

if TYPE_CHECKING:
    import polars as pl

MOVIELENS = (
    "MovieLens data may be used for research and may not be passed on; cite F. M. Harper and J. A. Konstan, "
    "The MovieLens Datasets: History and Context, ACM TiiS 5(4), 2015."
)


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper's Table 1."""

    name: str
    users: int
    items: int
    actions: str
    """As printed, rounded to millions."""


@dataclass(frozen=True)
class Source:
    """A data set that its publisher offers for download."""

    name: str
    title: str
    url: str
    formats: tuple[Format, ...]
    """What a copy may look like; the first is what `url` gives."""
    filters: Filters
    """How the paper filtered it, or for data that is not in the paper, its rule for users."""
    terms: str
    """What the publisher asks of users, and what to cite."""
    checksum: str | None = None
    """The publisher's own. Without one, only the length of the download is checked; its checksum is then stored
    beside it, and a cached file that has changed since is downloaded again."""
    items_url: str | None = None
    """Where to get titles, if not in the same archive."""
    paper: PaperRow | None = None


SOURCES: Mapping[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="ml-100k",
            title="MovieLens 100K",
            url="https://files.grouplens.org/datasets/movielens/ml-100k.zip",
            checksum="md5:0e33842e24a9c977be4e0107933c0723",
            formats=(ML_100K,),
            filters=Filters(min_user_actions=5),
            terms=MOVIELENS,
        ),
        Source(
            name="ml-1m",
            title="MovieLens 1M",
            url="https://files.grouplens.org/datasets/movielens/ml-1m.zip",
            checksum="md5:c4d9eecfca2ab87c1945afe126590906",
            formats=(ML_1M, authors_file("ml-1m")),
            filters=Filters(min_item_actions=5, min_user_actions=5),
            paper=PaperRow("ML-1m", 6_040, 3_416, "1.0m"),
            terms=MOVIELENS,
        ),
        Source(
            name="ml-20m",
            title="MovieLens 20M",
            url="https://files.grouplens.org/datasets/movielens/ml-20m.zip",
            checksum="md5:cd245b17a1ae2cc31bb14903e1204af3",
            formats=(ML_20M, authors_file("ml-20m")),
            filters=Filters(min_user_actions=5),
            paper=PaperRow("ML-20m", 138_493, 26_744, "20m"),
            terms=MOVIELENS,
        ),
        Source(
            name="beauty",
            title="Amazon Beauty (2014)",
            url="https://snap.stanford.edu/data/amazon/productGraph/categoryFiles/ratings_Beauty.csv",
            items_url="https://snap.stanford.edu/data/amazon/productGraph/categoryFiles/meta_Beauty.json.gz",
            formats=(AMAZON_RATINGS, AMAZON_REVIEWS, authors_file("beauty")),
            filters=Filters(min_item_actions=5, min_user_actions=5),
            paper=PaperRow("Beauty", 40_226, 54_542, "0.35m"),
            terms="Cite J. McAuley, C. Targett, J. Shi and A. van den Hengel, Image-based Recommendations on Styles "
            "and Substitutes, SIGIR 2015.",
        ),
        Source(
            name="steam",
            title="Steam reviews",
            url="https://cseweb.ucsd.edu/~wckang/steam_reviews.json.gz",
            items_url="https://cseweb.ucsd.edu/~wckang/steam_games.json.gz",
            formats=(STEAM, authors_file("steam")),
            filters=Filters(min_item_actions=5, min_user_actions=5),
            paper=PaperRow("Steam", 281_428, 13_044, "3.5m"),
            terms="Cite W.-C. Kang and J. McAuley, Self-Attentive Sequential Recommendation, ICDM 2018.",
        ),
    )
}


@dataclass(frozen=True)
class SourceFiles:
    """A data set found on disk and recognised."""

    source: Source
    layout: Format
    """What the file of actions was recognised as."""
    actions_file: Path
    items_file: Path | None
    notes: list[str]
    """What was recognised, downloaded or not found, one sentence each."""

    @property
    def filters(self) -> Filters:
        """What is left to do of the paper's filters."""
        return (
            replace(self.source.filters, min_item_actions=0) if self.layout.filtered else self.source.filters
        )

    @property
    def provenance(self) -> dict[str, str]:
        """Where the data came from, to be kept in the dataset."""
        return {
            "name": self.source.name,
            "title": self.source.title,
            "url": self.source.url,
            "file": self.actions_file.name,
            "format": self.layout.description,
            "terms": self.source.terms,
        }

    def frames(self) -> "Iterator[pl.DataFrame]":
        """All actions in the order of the file: `user`, `item` and, if known, `time`."""
        return self.layout.read(self.actions_file)

    def items(self) -> "pl.DataFrame | None":
        """What the publisher says about the items: `id`, `title` and more; None if there is no such file."""
        if self.items_file is None or self.layout.read_items is None:
            return None
        return self.layout.read_items(self.items_file)


def find_source(name: str) -> Source:
    """The named data set; the error for an unknown name suggests the nearest."""
    if name not in SOURCES:
        near = difflib.get_close_matches(name.lower().replace("_", "-"), SOURCES, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise NotFoundError(f"Unknown data set {name!r}.{hint} Known: {', '.join(SOURCES)}.")
    return SOURCES[name]


@contextmanager
def open_source(
    name: str, path: Path | None = None, *, cache: Path, progress: ProgressCallback | None = None
) -> Iterator[SourceFiles]:
    """Find the files of a data set, or download them to `cache` if no `path` is given.

    `path` is a copy of what the publisher offers: the archive, the folder it unpacks to, or the single file
    of actions, plain or compressed; or the file that the paper's authors made of it. Its content decides which.
    Unpacked files are removed when the block ends.
    """
    source = find_source(name)
    notes: list[str] = []
    if path is None:
        path = _fetch(source, cache / name, notes, progress)
    if not path.exists():
        raise NotFoundError(
            f"{path} does not exist. Without `local_copy`, {source.title} is downloaded from {source.url}."
        )
    with TemporaryDirectory(prefix="bert4rec-") as scratch:
        folder = _unpack(source, path, Path(scratch)) if _is_zip(path) else path
        layout, actions = _find(source, folder, path) if folder.is_dir() else _recognise(source, path)
        items = _beside(actions.parent, layout.item_names)
        notes.append(f"{actions.name} is recognised as {source.title}: {layout.description}.")
        if items is None and layout.item_names:
            notes.append(f"{layout.item_names[0]} not found beside it, so items have no titles.")
        yield SourceFiles(source, layout, actions, items, notes)


def compare_with_paper(source_name: str, users: int, items: int, actions: int) -> list[str]:
    """A sentence for each count that differs from the paper's Table 1; none for data that is not in it."""
    row = SOURCES[source_name].paper if source_name in SOURCES else None
    if row is None:
        return []
    differences = []
    for what, expected, found in (("users", row.users, users), ("items", row.items, items)):
        if found != expected:
            more = f"{found - expected:,} more" if found > expected else f"{expected - found:,} fewer"
            differences.append(f"Table 1 has {expected:,} {what} for {row.name}, found {found:,}: {more}.")
    decimals = len(row.actions.rstrip("m").partition(".")[2])
    if f"{actions / 1e6:.{decimals}f}m" != row.actions:
        differences.append(f"Table 1 has {row.actions} actions for {row.name}, found {actions:,}.")
    return differences


def _fetch(source: Source, folder: Path, notes: list[str], progress: ProgressCallback | None) -> Path:
    """The publisher's file in the cache, and that of the titles beside it if it can be downloaded."""
    path = _fetch_file(source.url, folder, source.checksum, notes, progress)
    if source.items_url:
        try:
            _fetch_file(source.items_url, folder, None, notes, progress)
        except Bert4RecError as error:
            notes.append(f"The titles could not be downloaded: {error}")
    return path


def _fetch_file(
    url: str, folder: Path, published: str | None, notes: list[str], progress: ProgressCallback | None
) -> Path:
    target = folder / url.rpartition("/")[2]
    written_down = target.with_name(target.name + ".sha256")
    expected = published or (
        written_down.read_text(encoding="utf-8").strip() if written_down.exists() else None
    )
    if target.exists() and expected and digest(target, expected.partition(":")[0]) == expected:
        notes.append(f"{target.name} was found in the cache ({expected}).")
        return target
    download(url, target, checksum=published, progress=progress)
    if published is None:
        found = digest(target, "sha256")
        written_down.write_text(found + "\n", encoding="utf-8")
        notes.append(f"Downloaded {url} ({found}; its publisher gives no checksum).")
    else:
        notes.append(f"Downloaded {url} ({published}, as its publisher says).")
    return target


def _is_zip(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _unpack(source: Source, archive: Path, folder: Path) -> Path:
    """Put the files that matter directly into `folder`, whatever folder of the archive they are in."""
    names = [name for layout in source.formats for name in (*layout.file_names, *layout.item_names)]
    wanted = {name + ending for name in names for ending in COMPRESSIONS}
    try:
        with zipfile.ZipFile(archive) as opened:
            found = [member for member in opened.namelist() if not member.startswith("__MACOSX")]
            for member in found:
                if Path(member).name in wanted:
                    with opened.open(member) as packed, (folder / Path(member).name).open("wb") as file:
                        shutil.copyfileobj(packed, file, 1 << 20)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"{archive} is damaged or incomplete: {error}. Copy or download it again.") from error
    if not any(folder.iterdir()):
        raise _nothing_found(source, archive, found)
    return folder


def _find(source: Source, folder: Path, shown: Path) -> tuple[Format, Path]:
    """The file of actions in a folder or directly below it. `shown` is what the user called the folder."""
    folders = [folder, *sorted(entry for entry in folder.iterdir() if entry.is_dir())]
    for layout in source.formats:
        for place in folders:
            if actions := _beside(place, layout.file_names):
                return _recognise(source, actions)
    raise _nothing_found(source, shown, sorted(entry.name for entry in folder.iterdir()))


def _beside(folder: Path, names: tuple[str, ...]) -> Path | None:
    """The first of the files that is in the folder, plain or compressed."""
    paths = (folder / (name + ending) for name in names for ending in COMPRESSIONS)
    return next((path for path in paths if path.is_file()), None)


def _recognise(source: Source, file: Path) -> tuple[Format, Path]:
    """Find out from its first line how a file is written."""
    line = next((line for line in first_lines(file) if line.strip()), "").removeprefix(BYTE_ORDER_MARK)
    if not line:
        raise DataError(f"{file} is empty.")
    for layout in source.formats:
        if layout.begins_right(line):
            return layout, file
    others = [
        other.name for other in SOURCES.values() if any(layout.begins_right(line) for layout in other.formats)
    ]
    hint = f" It looks like {' or '.join(others)}." if others else ""
    raise DataError(
        f"{file} does not look like {source.title}. Expected {_expected(source)}; it begins {line!r:.80}.{hint}"
    )


def _nothing_found(source: Source, where: Path, found: list[str]) -> DataError:
    listed = ", ".join(found[:8]) + (", …" if len(found) > 8 else "") if found else "nothing"
    return DataError(
        f"{where} does not contain {source.title}. Expected {_expected(source)}; found {listed}."
    )


def _expected(source: Source) -> str:
    return " or ".join(f"{layout.file_names[0]} ({layout.description})" for layout in source.formats)
