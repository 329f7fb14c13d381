"""From a raw history to recommendations: original ids in, original ids out.

    recommender = Recommender.load("runs/ml-1m")        # or a folder that `bert4rec export` wrote
    for item in recommender.recommend(["1193", "661", "914"], k=5).items:
        print(item.score, item.title)

Python, the command line and the service all come here, so they give the same answers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from pathlib import Path
from typing import overload
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import Repeats
from bert4rec.data.histories import Histories
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.engine import Engine, Numbers, Scores
from bert4rec.recommend.ids import as_list, is_list
from bert4rec.recommend.onnx_engine import MANIFEST, OnnxEngine, read_model

ItemId = str | int | float | UUID | np.generic
"""6, 6.0 and "6" name the same item."""
History = Iterable[ItemId]
"""A list, a tuple, an array, a column of a table; oldest item first."""
POPULAR = "popular"
"""The fallback's name: without a known item to go by, the most popular items are the answer."""


@dataclass(frozen=True)
class Question:
    """What should follow one history. All arrays hold item numbers."""

    history: Numbers
    """Oldest first. Empty: popularity answers."""
    k: int
    exclude: Numbers
    """Never recommended."""
    allow: Numbers | None = None
    """Where given, nothing else is recommended."""


@dataclass(frozen=True)
class Item:
    """One recommended item. Scores can be compared within an answer, not between answers."""

    item_id: str
    title: str | None
    score: float


@dataclass(frozen=True)
class Recommendation:
    """Items, best first, and what they rest on."""

    items: list[Item]
    used: int
    """How many items of the history the model looked at: the newest that it knows."""
    unknown_items: list[str]
    """Ids in the question that the model does not know; they were skipped."""
    fallback: str | None
    """"popular" where the history held nothing known, so that the most popular items are the answer."""


@dataclass(frozen=True)
class Contribution:
    """What one action of the history did for an item's score."""

    item_id: str
    title: str | None
    effect: float
    """How much the score falls when this action is left out; below 0 where it spoke against the item."""


@dataclass(frozen=True)
class Explanation:
    """Why an item gets its score."""

    item: Item
    contributions: list[Contribution]
    """One for each action the model looked at, oldest first."""
    attention: NDArray[np.float32] | None
    """[layers, heads, actions + 1]: how much the place in question looks at each action and, last, at itself."""
    unknown_items: list[str]
    """Ids of the history that the model does not know; they were skipped."""
    fallback: str | None
    """"popular" where the history held nothing known, so that the score is the item's count."""


class Recommender:
    """A trained model with its catalogue, ready to answer."""

    def __init__(
        self,
        engine: Engine,
        catalogue: Catalogue,
        *,
        name: str,
        version: str,
        repeats: Repeats = "exclude",
    ) -> None:
        if len(catalogue) != len(engine.bias):
            raise DataError(f"The model knows {len(engine.bias)} items, its catalogue {len(catalogue)}.")
        self.name, self.version, self.catalogue = name, version, catalogue
        self.exclude_seen = repeats == "exclude"
        """Whether items of a history are left out where nobody says: as the model was judged."""
        self.max_history = engine.max_history
        self._engine = engine

    @classmethod
    def load(cls, path: str | Path, *, threads: int = 1, device: str = "cpu") -> "Recommender":
        """Open a run, which torch then computes on `device`, or an exported model, which needs no torch.

        `threads` is how many processors one answer of an exported model may use.
        """
        folder = Path(path)
        if (folder / "config.json").is_file():
            return cls._load_run(folder, device)
        if not is_exported(folder):
            found = "is not" if folder.exists() else "does not exist; expected"
            raise NotFoundError(
                f"{folder} {found} a run that `bert4rec train` wrote or a model that `bert4rec export` wrote."
            )
        manifest = read_model(folder)
        engine = OnnxEngine(folder, manifest, threads=threads)
        catalogue = Catalogue.read(folder / "catalogue.json")
        repeats: Repeats = manifest.get("repeats", "exclude")
        return cls(engine, catalogue, name=manifest["name"], version=manifest["version"], repeats=repeats)

    @classmethod
    def _load_run(cls, folder: Path, device: str) -> "Recommender":
        from bert4rec.recommend.torch_engine import load_run

        engine, run = load_run(folder, device)
        version = str(run.manifest["files"]["model.safetensors"]["sha256"])[:8]
        catalogue = Catalogue.read_table(folder / "items.parquet")
        return cls(engine, catalogue, name=run.plan.dataset_name, version=version, repeats=run.plan.repeats)

    @overload  # a text is a sequence of texts, so mypy sees an overlap
    def recommend(  # type: ignore[overload-overlap]
        self,
        history: History,
        k: int = 10,
        *,
        exclude_seen: bool | None = None,
        allow: Iterable[ItemId] | None = None,
        deny: Iterable[ItemId] | None = None,
    ) -> Recommendation: ...

    @overload
    def recommend(
        self,
        history: Iterable[History],
        k: int = 10,
        *,
        exclude_seen: bool | None = None,
        allow: Iterable[ItemId] | None = None,
        deny: Iterable[ItemId] | None = None,
    ) -> list[Recommendation]: ...

    def recommend(
        self,
        history: History | Iterable[History],
        k: int = 10,
        *,
        exclude_seen: bool | None = None,
        allow: Iterable[ItemId] | None = None,
        deny: Iterable[ItemId] | None = None,
    ) -> Recommendation | list[Recommendation]:
        """The k items that should follow a history, oldest item first; fewer where fewer may be recommended.

        A list of histories gets a list of answers; an empty list is one history without items. Lists may be tuples,
        arrays, columns of a table or whatever else can be gone through in order.

        Whether items of the history are left out says `exclude_seen` or, where it is None, the data that the model
        was made from; those in `deny` are never recommended; with `allow`, nothing else is.
        """
        histories = as_list(history, "history", ordered=True)
        is_one = not histories or not is_list(histories[0])
        rows = [(histories, ())] if is_one else [(each, (row,)) for row, each in enumerate(histories)]
        asked = [
            self.question(each, k, exclude_seen=exclude_seen, allow=allow, deny=deny, row=row)
            for each, row in rows
        ]
        found = self.top([question for question, _ in asked])
        answers = [self.answer(*one, best) for one, best in zip(asked, found, strict=True)]
        return answers[0] if is_one else answers

    def question(
        self,
        history: object,
        k: int,
        *,
        exclude_seen: bool | None = None,
        allow: Iterable[ItemId] | None = None,
        deny: Iterable[ItemId] | None = None,
        row: tuple[int, ...] = (),
    ) -> tuple[Question, list[str]]:
        """What is asked, in the model's numbers, and the ids that it does not know.

        `row` is the place of the history among many, to name it in errors.
        """
        seen, unknown = self._history(history, *row)
        allowed, unknown_allowed = (None, []) if allow is None else self.catalogue.numbers(allow, "allow")
        denied, unknown_denied = self.catalogue.numbers(() if deny is None else deny, "deny")
        leaves_out = self.exclude_seen if exclude_seen is None else exclude_seen
        excluded = np.concatenate([seen, denied]) if leaves_out else denied
        return (
            Question(seen, check_k(k), excluded, allowed),
            list(dict.fromkeys([*unknown, *unknown_allowed, *unknown_denied])),
        )

    def rank(self, history: History, items: Iterable[ItemId]) -> Recommendation:
        """The named items, best first; unknown ones are left out and reported."""
        numbers, unknown = self._history(history)
        candidates, unknown_candidates = self.catalogue.numbers(items, "items")
        question = Question(numbers, max(1, len(candidates)), _NOTHING, candidates)
        unknown = list(dict.fromkeys([*unknown, *unknown_candidates]))
        return self.answer(question, unknown, self.top([question])[0])

    def similar(self, item: ItemId, k: int = 10) -> Recommendation:
        """The items whose vectors point most nearly in the same direction; the score is the cosine."""
        number = self._number(item)
        k = check_k(k)
        scores = np.einsum("vd,d->v", self._engine.rows, self._engine.rows[number - 1])
        scores /= self._norms * self._norms[number - 1]
        scores[number - 1] = -np.inf
        k = min(k, len(scores) - 1)
        best = np.argpartition(-scores, k)[:k]
        best = best[np.argsort(-scores[best], kind="stable")]
        return Recommendation(self._items((best + 1).astype(np.int32), scores[best]), 1, [], None)

    def explain(self, history: History, item: ItemId) -> Explanation:
        """Why an item gets its score: the effect of leaving out each action, and the attention weights.

        A history without known items explains nothing: the score is then the item's popularity.
        """
        number = self._number(item)
        numbers, unknown = self._history(history)
        used = numbers[-self.max_history :]
        if not len(used):
            score = float(self.catalogue.counts[number - 1])
            return Explanation(self._item(number, score), [], None, unknown, POPULAR)
        without = [np.delete(used, place) for place in range(len(used))]
        queries = self._queries([used, *without])
        whole, *lessened = queries @ self._engine.rows[number - 1] + self._engine.bias[number - 1]
        contributions = [
            Contribution(self.catalogue.id_of(each), self.catalogue.title_of(each), float(whole - score))
            for each, score in zip(used, lessened, strict=True)
        ]
        attention = self._engine.attention(used)
        return Explanation(self._item(number, float(whole)), contributions, attention, unknown, None)

    def top(self, questions: Sequence[Question]) -> list[tuple[Numbers, Scores]]:
        """For each question the best numbers and their scores, best first; at most k, fewer where fewer remain."""
        among_all = iter(self._best([each for each in questions if each.allow is None]))
        among_allowed = iter(self._best_allowed([each for each in questions if each.allow is not None]))
        return [next(among_all if each.allow is None else among_allowed) for each in questions]

    def top_rows(self, histories: Histories, excluded: Histories, k: int) -> tuple[Numbers, Scores]:
        """As `top`, for many histories at once: tables [rows, k], filled up with number 0 and score -inf.

        They have no more columns than there are items. `excluded` has for each history the numbers never to be
        recommended.
        """
        k = min(k, len(self.catalogue))
        numbers = np.zeros((len(histories), k), np.int32)
        scores = np.full((len(histories), k), -np.inf, np.float32)
        recent = histories.newest(self.max_history)
        order = np.argsort(-recent.lengths, kind="stable")
        num_warm = np.count_nonzero(recent.lengths)
        rows, cold = order[:num_warm], order[num_warm:]
        if len(rows):
            found, scores[rows] = self._engine_top(recent[rows], excluded[rows], k)
            numbers[rows] = np.where(scores[rows] > -np.inf, found, 0)
        for row in cold:
            not_these = excluded[row : row + 1].flat()[1]
            # The order of the numbers is that of popularity.
            popular = np.arange(1, min(len(self.catalogue), k + len(not_these)) + 1, dtype=np.int32)
            popular = np.setdiff1d(popular, not_these)[:k]
            numbers[row, : len(popular)], scores[row, : len(popular)] = popular, self._counts(popular)
        return numbers, scores

    def _engine_top(self, histories: Histories, excluded: Histories, k: int) -> tuple[Numbers, Scores]:
        numbers, scores = self._engine.top(histories, excluded, k)
        if np.isnan(scores).any():
            raise DataError("The model's scores are not numbers (NaN found): it has diverged. Train it anew.")
        return numbers, scores

    def _best(self, questions: Sequence[Question]) -> list[tuple[Numbers, Scores]]:
        if not questions:
            return []
        if len(questions) == 1 and len(questions[0].history):
            return [self._best_alone(questions[0])]
        histories = _joined([question.history for question in questions])
        excluded = _joined([question.exclude for question in questions])
        tables = self.top_rows(histories, excluded, max(question.k for question in questions))
        answers = []
        for question, numbers, scores in zip(questions, *tables, strict=True):
            found = np.count_nonzero(numbers[: question.k])
            answers.append((numbers[:found], scores[:found]))
        return answers

    def _best_alone(self, question: Question) -> tuple[Numbers, Scores]:
        """One history needs no tables to be sorted into and out of; without them, it is answered a tenth sooner."""
        recent, excluded = _joined([question.history[-self.max_history :]]), _joined([question.exclude])
        numbers, scores = self._engine_top(recent, excluded, min(question.k, len(self.catalogue)))
        found = np.count_nonzero(scores[0] > -np.inf)
        return numbers[0, :found], scores[0, :found]

    def _best_allowed(self, questions: Sequence[Question]) -> list[tuple[Numbers, Scores]]:
        """Only the allowed items are scored, however many there are."""
        if not questions:
            return []
        answers = []
        queries = self._queries([question.history for question in questions])
        for question, query in zip(questions, queries, strict=True):
            assert question.allow is not None
            candidates = np.setdiff1d(question.allow, question.exclude)
            scores = self._scores(candidates, query) if len(question.history) else self._counts(candidates)
            best = np.argsort(-scores, kind="stable")[: question.k]
            answers.append((candidates[best], scores[best]))
        return answers

    def _scores(self, numbers: Numbers, query: NDArray[np.float32]) -> Scores:
        # Not a matrix product: NumPy's would take as many threads as there are processors.
        scores: Scores = np.einsum("nd,d->n", self._engine.rows[numbers - 1], query)
        return scores + self._engine.bias[numbers - 1]

    def _counts(self, numbers: Numbers) -> Scores:
        return self.catalogue.counts[numbers - 1].astype(np.float32)

    def _queries(self, histories: Sequence[Numbers]) -> NDArray[np.float32]:
        """The query of each history, [rows, D]."""
        recent = _joined(histories).newest(self.max_history)
        order = np.argsort(-recent.lengths, kind="stable")
        queries = np.empty((len(recent), self._engine.rows.shape[1]), np.float32)
        queries[order] = self._engine.queries(recent[order])
        return queries

    def answer(self, question: Question, unknown: list[str], found: tuple[Numbers, Scores]) -> Recommendation:
        """What `top` found for a question, in original ids; `unknown` as `question` gave it."""
        return Recommendation(
            items=self._items(*found),
            used=min(len(question.history), self.max_history),
            unknown_items=unknown,
            fallback=None if len(question.history) else POPULAR,
        )

    def _items(self, numbers: Numbers, scores: Scores) -> list[Item]:
        return [self._item(*each) for each in zip(numbers.tolist(), scores.tolist(), strict=True)]

    def _item(self, number: int, score: float) -> Item:
        return Item(self.catalogue.id_of(number), self.catalogue.title_of(number), score)

    def _history(self, history: object, *row: int) -> tuple[Numbers, list[str]]:
        """The numbers of what is known, and the ids of what is not; `row` where it is one of many histories."""
        return self.catalogue.numbers(as_list(history, "history", *row, ordered=True), "history", *row)

    def _number(self, item: ItemId) -> int:
        number = self.catalogue.number_of(item)
        if number is None:
            near = self.catalogue.near(str(item))
            hint = (
                f"Did you mean {self.catalogue.describe(near)}?"
                if near
                else f"One that it knows is {self.catalogue.id_of(1)!r}."
            )
            raise NotFoundError(f"The model knows no item {str(item)!r}. {hint}")
        return number

    @cached_property
    def _norms(self) -> NDArray[np.float32]:
        """The length of each item's vector; never 0, so that it can be divided by."""
        squares = np.einsum("vd,vd->v", self._engine.rows, self._engine.rows)
        norms: NDArray[np.float32] = np.sqrt(np.maximum(squares, np.finfo(np.float32).tiny))
        return norms


def is_exported(folder: Path) -> bool:
    """Whether this is a model that `bert4rec export` wrote, rather than a run."""
    return (folder / MANIFEST).is_file()


_NOTHING = np.empty(0, np.int32)


def check_k(k: int) -> int:
    """Also NumPy's whole numbers are ints from here on."""
    try:
        if not isinstance(k, bool) and index(k) >= 1:
            return index(k)
    except TypeError:
        pass
    raise UsageError(f"k is how many items to recommend, a whole number, at least 1; found {k!r}.")


def _joined(rows: Sequence[Numbers]) -> Histories:
    limits = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return Histories(rows[0] if len(rows) == 1 else np.concatenate(rows), limits[:-1], limits[1:])
