"""Recommendations for many users: in memory, or from file to file in bounded memory and without losing work.

What may be read: see `bulk_input`. A file that is written has a row for each recommended item: `user`, `rank` (from 1),
`item`, `score`, and `fallback`, which is "popular" if nothing of the user's history is known.

Finished parts of a file are in a folder beside it; a second call with the same request continues behind them,
whatever ended the first. The folder is locked meanwhile: two calls never write to one file.
"""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple, dataclass, field
from glob import escape
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from bert4rec.artefact import behind_links, held, write_text
from bert4rec.errors import DataError, UsageError
from bert4rec.logs.columns import ColumnRequest
from bert4rec.logs.files import Hints, find_files
from bert4rec.progress import ProgressCallback, progress_bar
from bert4rec.recommend.answers import Question, Recommendations, table_of
from bert4rec.recommend.bulk_input import Users, input_facts, open_users, users_of, users_of_lists
from bert4rec.recommend.bulk_ranking import fallbacks, top_of_users
from bert4rec.recommend.catalogue import Id
from bert4rec.recommend.engine import Numbers, Scores
from bert4rec.recommend.onnx_engine import is_exact
from bert4rec.recommend.ranker import NOTHING
from bert4rec.recommend.rules.rules import Rules

if TYPE_CHECKING:
    import polars as pl

    from bert4rec.recommend.recommender import Recommender

log = logging.getLogger("bert4rec")
USERS_PER_PART = 2**14
"""How much is held in memory, and how much work a killed process can lose."""
ANSWERS_PER_PART = 2**24
"""The same, where many items are recommended to each user."""
ENDINGS = (".parquet", ".csv", ".jsonl")


@dataclass(frozen=True)
class Request:
    """What to recommend to everybody in a file."""

    source: Path
    target: Path
    rules: Rules = field(default_factory=Rules)
    columns: ColumnRequest = ColumnRequest()
    hints: Hints = Hints()
    users_per_part: int = USERS_PER_PART

    @property
    def parts(self) -> Path:
        """The folder of what is finished."""
        return self.target.with_name(f"{self.target.name}.parts")

    def leaves_out_seen(self, recommender: "Recommender") -> bool:
        return self.rules.leave_out_seen(by_default=recommender.exclude_seen)

    def check_target(self, *, overwrite: bool) -> None:
        """Refuse a target that cannot be written before any long work."""
        if self.target.suffix not in ENDINGS:
            raise UsageError(f"{self.target}: expected a name that ends in {', '.join(ENDINGS)}.")
        if self.target.exists() and any(
            path.exists() and self.target.samefile(path) for path in find_files([self.source])
        ):
            raise UsageError(f"{self.target} is the input. Choose another `target`.")
        if self.target.exists() and not overwrite:
            raise UsageError(
                f"{self.target} already exists. Choose another `target`, or use `overwrite=True`."
            )
        if self.parts.is_dir():
            with self.held():
                pass

    def held(self) -> AbstractContextManager[None]:
        """Keep the folder of what is finished for this process, or refuse if another one is at work there."""
        busy = f"Another process is writing {self.target}. Wait for it, or choose another `target`."
        return held(self.parts, wait=False, busy=busy)

    def per_part(self, recommender: "Recommender") -> int:
        """How many users are answered at a time."""
        return min(self.users_per_part, most_users(recommender, self.rules.k))

    def fingerprint(self, recommender: "Recommender") -> dict[str, Any]:
        """Everything that decides the content of the parts."""
        return {
            "model": recommender.version,
            "input": [list(facts) for facts in input_facts(self.source)],
            "k": self.rules.k,
            "exclude_seen": self.leaves_out_seen(recommender),
            "columns": vars(self.columns),
            "hints": vars(self.hints),
            "users_per_part": self.per_part(recommender),
            **self.rules.facts(),
            **(
                {}
                if recommender.user_scorer or is_exact(recommender.ranker.engine)
                else {"approximate": True}
            ),
        }


@dataclass(frozen=True)
class Tally:
    """What became of the users of a file."""

    users: int = 0
    unknown: int = 0
    """Actions on items that the model does not know; they were skipped."""
    fallbacks: int = 0
    """Users without any known action, who were recommended what is popular."""
    resumed: int = 0
    """Users whose recommendations an earlier call had left behind."""
    unknown_options: tuple[Id, ...] = ()
    """Ids in `allow` and `deny` that the model does not know."""

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*map(add, astuple(self), astuple(other)))


def recommend_many(
    recommender: "Recommender",
    source: object,
    columns: ColumnRequest,
    question: Question,
    *,
    leaves_out_seen: bool,
    show: bool | None,
) -> Recommendations:
    """What `Recommender.recommend_many` does. `question` has what all users have in common; its history is empty."""
    import polars as pl

    per_part = min(USERS_PER_PART, most_users(recommender, question.k))
    parts: list[Users] = []
    tables: list[tuple[Numbers, Scores]] = []
    with (
        progress_bar("Recommending", "users", show) as report,
        users_of(
            source, columns, recommender.catalogue, per_part=per_part, check_dataset=recommender.known_dataset
        ) as (total, users),
    ):
        done = 0
        for part in _one_ahead(users):
            is_part = bool(parts) or len(part.ids) == per_part
            parts.append(part)
            found = top_of_users(
                recommender, part, question, leaves_out_seen=leaves_out_seen, is_part=is_part
            )
            tables.append(found)
            done += len(part.ids)
            report(done, total)
    unknown: dict[int, list[Id]] = {}
    first = 0
    for part in parts:
        for row, item_id in zip(part.unknown_rows.tolist(), part.unknown_ids, strict=True):
            unknown.setdefault(first + row, []).append(item_id)
        first += len(part.ids)
    lengths = np.concatenate([NOTHING, *(part.histories.lengths for part in parts)])
    width = min(question.k, len(recommender.catalogue))
    empty = np.empty((0, width), np.int32), np.empty((0, width), np.float32)
    numbers, scores = (np.concatenate(column) for column in zip(empty, *tables, strict=True))
    is_fallback = np.concatenate([np.empty(0, bool), *(fallbacks(recommender, part) for part in parts)])
    if is_fallback.any():
        cold = int(np.count_nonzero(is_fallback))
        log.warning(
            "No known item in the history of %s of %s users: they get the most popular items.",
            f"{cold:,}",
            f"{len(is_fallback):,}",
        )
    return Recommendations(
        users=pl.concat([part.ids for part in parts], how="vertical"),
        numbers=numbers,
        scores=scores,
        used=np.minimum(lengths, recommender.max_history),
        is_fallback=is_fallback,
        unknown=unknown,
        catalogue=recommender.catalogue,
    )


def answer_lists(
    recommender: "Recommender",
    lists: "pl.DataFrame",
    question: Question,
    *,
    leaves_out_seen: bool,
    titles: bool,
) -> "tuple[pl.DataFrame, Tally]":
    """What `recommend_file` writes for users in a table with the columns `user` and `item`, and what became of them."""
    users = users_of_lists(lists, recommender.catalogue)
    numbers, scores = top_of_users(
        recommender, users, question, leaves_out_seen=leaves_out_seen, is_part=True
    )
    is_fallback = fallbacks(recommender, users)
    answers = table_of(users.ids, numbers, scores, is_fallback, recommender.catalogue, titles=titles)
    return answers, Tally(len(users.ids), users.unknown, int(np.count_nonzero(is_fallback)))


def most_users(recommender: "Recommender", k: int) -> int:
    """How many users may be answered at a time, so that the answers fit into memory."""
    return max(1, ANSWERS_PER_PART // min(k, len(recommender.catalogue)))


def recommend_file(
    recommender: "Recommender",
    request: Request,
    *,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> Tally:
    """Write `request.target`, which is complete or absent. Continues where an earlier call was interrupted."""
    request.check_target(overwrite=overwrite)
    question, unknown = recommender.question((), request.rules)
    tally = Tally(unknown_options=tuple(unknown))
    with request.held():
        _clear_away(request)
        with open_users(
            request.source,
            request.columns,
            recommender.catalogue,
            per_part=request.per_part(recommender),
            hints=request.hints,
            check_dataset=recommender.known_dataset,
        ) as (total, users):
            _open_parts(request, recommender, overwrite=overwrite)
            for finished in _finished_parts(request, recommender, question, _one_ahead(users)):
                tally += finished
                if progress:
                    progress(tally.users, total)
        if not tally.users:
            _remove(request.parts)
            raise DataError(f"No users found in {request.source}.")
        _merge(request)
    return tally


def _clear_away(request: Request) -> None:
    """Remove what killed processes left half-written or half-removed. Nobody else is at work here."""
    target = behind_links(request.target)
    for path, kind in ((target, "unfinished"), (request.parts, "replaced")):
        for left in path.parent.glob(f".{escape(path.name)}.{kind}-*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    for left in request.parts.glob(".*.unfinished-*"):
        left.unlink()


def _finished_parts(
    request: Request, recommender: "Recommender", question: Question, users: Iterator[Users]
) -> Iterator[Tally]:
    """What became of each part, once it is on disk. It is written while the next one is answered.

    Writing takes moments, answering may take long: that is done in the caller's thread, which Ctrl-C interrupts.
    """
    leaves_out_seen = request.leaves_out_seen(recommender)
    with ThreadPoolExecutor(max_workers=1) as writer:
        being_written: Future[Tally] | None = None
        for number, part in enumerate(users):
            path = request.parts / f"{number:06d}.parquet"
            found = None
            if not path.exists():
                found = top_of_users(
                    recommender, part, question, leaves_out_seen=leaves_out_seen, is_part=True
                )
            if being_written:
                yield being_written.result()
            being_written = writer.submit(_write_part, path, part, found, recommender)
        if being_written:
            yield being_written.result()


def _write_part(
    path: Path, users: Users, found: tuple[Numbers, Scores] | None, recommender: "Recommender"
) -> Tally:
    """What became of the users. Where nothing was `found`, because nobody was asked, the part is already there."""
    is_fallback = fallbacks(recommender, users)
    if found:
        answers = table_of(users.ids, *found, is_fallback, recommender.catalogue, titles=False)
        with _whole(path) as unfinished:
            answers.write_parquet(unfinished)
    count, cold = len(users.ids), int(np.count_nonzero(is_fallback))
    return Tally(count, users.unknown, cold, 0 if found else count)


def _one_ahead(users: Iterator[Users]) -> Iterator[Users]:
    """The same parts; the next one is read while this one is answered."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = reader.submit(next, users, None)
        while (part := coming.result()) is not None:
            coming = reader.submit(next, users, None)
            yield part


def _open_parts(request: Request, recommender: "Recommender", *, overwrite: bool) -> None:
    """Make the folder of finished parts, or make sure that what it holds belongs to the same request."""
    note, fingerprint = request.parts / "request.json", request.fingerprint(recommender)
    if note.exists():
        if json.loads(note.read_text(encoding="utf-8")) == fingerprint:
            return
        if not overwrite:
            raise UsageError(
                f"{request.parts} holds parts of another request: its model, input or parameters differ. "
                "Use `overwrite=True` to start again."
            )
        # The note last, and the folder stays, because it is locked: a kill leaves fewer parts of that other request.
        for part in request.parts.glob("*.parquet"):
            part.unlink()
    elif any(request.parts.iterdir()):
        raise UsageError(
            f"{request.parts} was not written by bert4rec: it has no {note.name}. "
            "Move it away, or choose another `target`."
        )
    write_text(note, json.dumps(fingerprint, indent=2))


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
