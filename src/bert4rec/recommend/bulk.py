"""Recommendations for many users, from file to file, in bounded memory and without losing work.

What may be read: see `bulk_input`. What is written is a table with a row for each recommendation: `user`, `rank`
(from 1), `item`, `score`, and `fallback`, which says "popular" where nothing of the user's history is known.

Finished parts lie in a folder beside the output; a second call with the same request goes on behind them,
whatever ended the first.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from bert4rec.artefact import behind_links, write_text
from bert4rec.data.histories import Histories
from bert4rec.errors import DataError, UsageError
from bert4rec.logs.columns import ColumnRequest
from bert4rec.logs.files import Hints, find_files
from bert4rec.recommend.bulk_input import Users, input_facts, open_users
from bert4rec.recommend.recommender import POPULAR, Recommender

if TYPE_CHECKING:
    import polars as pl

USERS_PER_PART = 2**14
"""How much is held in memory, and how much work a killed process can lose."""
ANSWERS_PER_PART = 2**24
"""The same, where many items are recommended to each user."""
ENDINGS = (".parquet", ".csv", ".jsonl")

Progress = Callable[[int, int | None], None]
"""Hears how many users are done, and of how many if that is known."""


@dataclass(frozen=True)
class Request:
    """What is to be recommended to whom."""

    source: Path
    target: Path
    k: int = 10
    exclude_seen: bool | None = None
    """Whether to leave out what is in a history; None: as the data that the model was made from says."""
    columns: ColumnRequest = ColumnRequest()
    hints: Hints = Hints()
    users_per_part: int = USERS_PER_PART

    @property
    def parts(self) -> Path:
        """The folder of what is finished."""
        return self.target.with_name(f"{self.target.name}.parts")

    def leaves_out_seen(self, recommender: Recommender) -> bool:
        return recommender.exclude_seen if self.exclude_seen is None else self.exclude_seen

    def check_target(self, *, overwrite: bool) -> None:
        """Say at once, before any long work, that the output cannot be written."""
        if self.target.suffix not in ENDINGS:
            raise UsageError(f"{self.target}: expected a name that ends in {', '.join(ENDINGS)}.")
        if self.target.exists() and any(
            path.exists() and self.target.samefile(path) for path in find_files([self.source])
        ):
            raise UsageError(f"{self.target} is the input. Choose another name for the output.")
        if self.target.exists() and not overwrite:
            raise UsageError(f"{self.target} exists already. Choose another name, or pass --overwrite.")

    def per_part(self, recommender: Recommender) -> int:
        """How many users are answered at a time."""
        most = max(1, ANSWERS_PER_PART // min(self.k, len(recommender.catalogue)))
        return min(self.users_per_part, most)

    def fingerprint(self, recommender: Recommender) -> dict[str, Any]:
        """All that decides the content of the parts."""
        return {
            "model": recommender.version,
            "input": [list(facts) for facts in input_facts(self.source)],
            "k": self.k,
            "exclude_seen": self.leaves_out_seen(recommender),
            "columns": vars(self.columns),
            "hints": vars(self.hints),
            "users_per_part": self.per_part(recommender),
        }


@dataclass(frozen=True)
class Tally:
    """What became of the input."""

    users: int = 0
    unknown: int = 0
    """Actions on items that the model does not know; they were skipped."""
    fallbacks: int = 0
    """Users without any known action, who were recommended what is popular."""
    resumed: int = 0
    """Users whose recommendations an earlier call had left behind."""

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*map(sum, zip(astuple(self), astuple(other), strict=True)))


def recommend_file(
    recommender: Recommender, request: Request, *, overwrite: bool = False, progress: Progress | None = None
) -> Tally:
    """Write `request.target`, which is whole or not there. Goes on where an earlier call was cut off."""
    request.check_target(overwrite=overwrite)
    tally = Tally()
    with open_users(
        request.source,
        request.columns,
        recommender.catalogue,
        per_part=request.per_part(recommender),
        hints=request.hints,
    ) as (total, users):
        _open_parts(request, recommender, overwrite=overwrite)
        for number, part in enumerate(_one_ahead(users)):
            path = request.parts / f"{number:06d}.parquet"
            resumed = path.exists()
            if not resumed:
                answers = _answer(recommender, part, request)
                with _whole(path) as unfinished:
                    answers.write_parquet(unfinished)
            cold = int(np.count_nonzero(part.histories.lengths == 0))
            tally += Tally(len(part.ids), part.unknown, cold, len(part.ids) if resumed else 0)
            if progress:
                progress(tally.users, total)
    if not tally.users:
        raise DataError(f"{request.source} holds no user.")
    _merge(request)
    return tally


def _one_ahead(users: Iterator[Users]) -> Iterator[Users]:
    """The same parts; the next one is read while this one is answered."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = reader.submit(next, users, None)
        while (part := coming.result()) is not None:
            coming = reader.submit(next, users, None)
            yield part


def _open_parts(request: Request, recommender: Recommender, *, overwrite: bool) -> None:
    """Make the folder of finished parts, or make sure that what it holds belongs to the same request."""
    note, fingerprint = request.parts / "request.json", request.fingerprint(recommender)
    if note.exists():
        if json.loads(note.read_text(encoding="utf-8")) == fingerprint:
            return
        if not overwrite:
            raise UsageError(
                f"{request.parts} holds parts of another request: its model, input or options differ. "
                "Pass --overwrite to start anew."
            )
        _remove(request.parts)
    elif request.parts.is_dir() and any(request.parts.iterdir()):
        raise UsageError(
            f"{request.parts} has no {note.name} of bert4rec, so it is never written to. "
            "Move it away, or choose another output."
        )
    request.parts.mkdir(parents=True, exist_ok=True)
    write_text(note, json.dumps(fingerprint, indent=2))


def _answer(recommender: Recommender, users: Users, request: Request) -> "pl.DataFrame":
    import polars as pl

    histories, catalogue = users.histories, recommender.catalogue
    nothing = Histories(histories.items, histories.begin, histories.begin)
    excluded = histories if request.leaves_out_seen(recommender) else nothing
    numbers, scores = recommender.top_rows(histories, excluded, request.k)
    rows, places = np.nonzero(numbers)
    items = pl.Series("item", catalogue.ids, dtype=pl.String).gather(numbers[rows, places] - 1)
    table = pl.DataFrame(
        {
            "user": users.ids.gather(rows),
            "rank": (places + 1).astype(np.int32),
            "item": items.cast(pl.Int64) if catalogue.whole_numbers else items,
            "score": scores[rows, places],
            "fallback": histories.lengths[rows] == 0,
        }
    )
    return table.with_columns(fallback=pl.when("fallback").then(pl.lit(POPULAR)))


def _merge(request: Request) -> None:
    """All parts, in order, as one file."""
    import polars as pl

    table = pl.scan_parquet(sorted(request.parts.glob("*.parquet")), glob=False)
    write: dict[str, Callable[[Path], object]] = {
        ".parquet": table.sink_parquet,
        ".csv": table.sink_csv,
        ".jsonl": table.sink_ndjson,
    }
    with _whole(request.target) as unfinished:
        write[request.target.suffix](unfinished)
    _remove(request.parts)


def _remove(folder: Path) -> None:
    """At once: a kill in the middle must not leave a part of the parts where the next call looks for them."""
    replaced = folder.with_name(f".{folder.name}.replaced-{uuid4().hex[:8]}")
    folder.rename(replaced)
    shutil.rmtree(replaced)


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Another name to write under, which becomes `path` when the block ends well. A link stays one."""
    import polars as pl

    path = behind_links(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished-{uuid4().hex[:8]}")
    try:
        yield unfinished
        unfinished.replace(path)
    except pl.exceptions.PolarsError as error:  # as which polars reports a full disk
        raise OSError(f"{path} cannot be written: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
