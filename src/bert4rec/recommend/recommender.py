"""From a raw history to recommendations: original ids in, original ids out.

    recommender = bert4rec.load("runs/ml-1m")            # or an exported model
    for item in recommender.recommend([1193, 661, 914], k=5).items:
        print(item.score, item.title)

Python, the command line and the service all come here, so they give the same answers.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bert4rec.data.dataset import Dataset, Repeats
from bert4rec.data.trained import Trained
from bert4rec.errors import DataError, UsageError
from bert4rec.frames import Frame
from bert4rec.progress import ProgressCallback
from bert4rec.recommend.answers import (
    POPULAR,
    Explanation,
    HistoriesByUser,
    History,
    Item,
    ItemId,
    Question,
    Recommendation,
    Recommendations,
    explanation_of,
    items_of,
)
from bert4rec.recommend.catalogue import Catalogue, Id
from bert4rec.recommend.engine import Engine, Numbers, Scores
from bert4rec.recommend.ids import as_list
from bert4rec.recommend.known_users import UserScorer, history_of, user_number
from bert4rec.recommend.onnx_engine import is_exported
from bert4rec.recommend.ranker import NOTHING, Ranker
from bert4rec.recommend.rules.asking import question_of, why_not_comparable
from bert4rec.recommend.rules.attributes import NO_ATTRIBUTES, Attributes
from bert4rec.recommend.rules.rules import RuleError, Rules, Where
from bert4rec.recommend.rules.where import Filters

if TYPE_CHECKING:
    from bert4rec.recommend.bulk import Tally

__all__ = ["POPULAR", "Item", "Question", "Recommendation", "Recommendations", "Recommender", "is_exported"]

FindDataset = Callable[[Dataset | str | Path | None], Dataset]
"""The dataset that a model was trained on: the one given, which is checked, or with None from where it was."""


class Recommender:
    """A trained model with its catalogue, ready to answer. `bert4rec.load` makes one."""

    def __init__(
        self,
        engine: Engine | UserScorer,
        catalogue: Catalogue,
        *,
        name: str,
        version: str,
        repeats: Repeats = "exclude",
        attributes: Attributes = NO_ATTRIBUTES,
        find_dataset: FindDataset | None = None,
        trained: Trained | None = None,
    ) -> None:
        self.user_scorer = engine if isinstance(engine, UserScorer) else None
        num_items = engine.num_items if isinstance(engine, UserScorer) else len(engine.bias)
        if len(catalogue) != num_items:
            raise DataError(f"The model knows {num_items} items, its catalogue {len(catalogue)}.")
        self._ranker = None if isinstance(engine, UserScorer) else Ranker(engine, catalogue.counts)
        self.name, self.version, self.catalogue = name, version, catalogue
        self.filters = Filters(attributes, num_items)
        self.exclude_seen = repeats == "exclude"
        """Whether items of a history are left out by default: as the model was evaluated."""
        self.max_history = engine.max_history
        """How many items of a history the model looks at."""
        self.trained = trained
        """What the model was trained on, and until when; None if it was made by an earlier version."""
        self._find_dataset = find_dataset

    def __repr__(self) -> str:
        return f"Recommender({self.name!r}, version {self.version}, {self.catalogue.num_known:,} items)"

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        threads: int = 1,
        device: str = "auto",
        quantised: bool = True,
        approximate: bool = False,
        force: bool = False,
    ) -> "Recommender":
        """Open the folder of a run, which torch computes on `device`, or of an exported model, which needs no torch.

        Parameters
        ----------
        path
            Folder of a run or of an exported model.
        threads, device, quantised, approximate, force
            As in `bert4rec.load`.
        """
        from bert4rec.recommend.opening import open_folder

        return open_folder(
            Path(path),
            cls,
            threads=threads,
            device=device,
            quantised=quantised,
            approximate=approximate,
            force=force,
        )

    def recommend(
        self,
        history: History,
        k: int = 10,
        *,
        exclude_seen: bool | None = None,
        allow: Iterable[ItemId] | None = None,
        deny: Iterable[ItemId] | None = None,
        where: Where | None = None,
        diversity: float = 0.0,
    ) -> Recommendation:
        """The items that should follow one history.

        Parameters
        ----------
        history
            Item ids, oldest first: a list, a tuple, an array or a column of a table.
        k
            How many items to recommend, at most.
        exclude_seen
            Whether to leave out items of the history; None: as the dataset was prepared.
        allow
            Recommend nothing but these items.
        deny
            Never recommend these items.
        where
            Recommend nothing but items with these attributes, as in `{"category": ["tea"], "price": {"<": 20}}`. All
            conditions must hold: a value must be equal, a list holds alternatives, a dict comparisons ("<", "<=", ">",
            ">=") and "not". An item without a value fulfils "not" alone; of a list of values, one is enough.
        diversity
            From 0, the best items by score, to 1, items that differ as much as possible from those above them.
        """
        question, unknown = self.question(history, Rules(k, exclude_seen, allow, deny, where, diversity))
        return self.answer(question, unknown, self.top([question])[0])

    def recommend_many(
        self,
        histories: "Iterable[History] | HistoriesByUser | Frame | Dataset",
        k: int = 10,
        *,
        user: str | int | None = None,
        item: str | int | None = None,
        time: str | int | None = None,
        exclude_seen: bool | None = None,
        allow: Iterable[ItemId] | None = None,
        deny: Iterable[ItemId] | None = None,
        where: Where | None = None,
        diversity: float = 0.0,
        progress: bool | None = None,
    ) -> Recommendations:
        """The items that should follow each of many histories.

        Parameters
        ----------
        histories
            A list of histories; a dict, or a pandas Series, from users to histories; a frame (pandas, polars, Arrow, …)
            with a row for each action, or with a row for each user and a list of items; or a dataset, for everybody
            in it.
        k
            How many items to recommend to each user, at most.
        user, item, time
            Columns of a frame. They are guessed from usual names.
        exclude_seen, allow, deny, where, diversity
            As in `recommend`.
        progress
            Whether to show a progress bar; None shows one in notebooks.
        """
        from bert4rec.logs.columns import ColumnRequest
        from bert4rec.recommend.bulk import recommend_many

        columns = ColumnRequest.of(user, item, time)
        rules = Rules(k, exclude_seen, allow, deny, where, diversity)
        question, unknown = self.question((), rules)
        leaves_out = rules.leave_out_seen(by_default=self.exclude_seen)
        found = recommend_many(self, histories, columns, question, leaves_out_seen=leaves_out, show=progress)
        return replace(found, unknown_options=unknown)

    def recommend_user(
        self,
        user: ItemId,
        k: int = 10,
        *,
        dataset: Dataset | str | Path | None = None,
        exclude_seen: bool | None = None,
        allow: Iterable[ItemId] | None = None,
        deny: Iterable[ItemId] | None = None,
        where: Where | None = None,
        diversity: float = 0.0,
    ) -> Recommendation:
        """The items that should come next for a user of the dataset. Every model can do this.

        Parameters
        ----------
        user
            Id of the user; the whole history in the dataset counts.
        k
            How many items to recommend, at most.
        dataset
            A dataset or its folder; None: the one that the run was trained on.
        exclude_seen, allow, deny, where, diversity
            As in `recommend`.
        """
        data = self.known_dataset(dataset)
        number = user_number(data, user)
        history = history_of(data, number)
        question, unknown = self.question(history, Rules(k, exclude_seen, allow, deny, where, diversity))
        scorer = self.user_scorer
        found = self.top([question])[0] if scorer is None else scorer.best(number, question)
        return self.answer(question, unknown, found)

    def recommend_file(
        self,
        source: str | Path,
        target: str | Path,
        k: int = 10,
        *,
        user: str | int | None = None,
        item: str | int | None = None,
        time: str | int | None = None,
        time_format: str | None = None,
        separator: str | None = None,
        encoding: str | None = None,
        exclude_seen: bool | None = None,
        allow: Iterable[ItemId] | None = None,
        deny: Iterable[ItemId] | None = None,
        where: Where | None = None,
        diversity: float = 0.0,
        overwrite: bool = False,
        progress: bool | None = None,
        callback: ProgressCallback | None = None,
    ) -> "Tally":
        """Recommend to everybody in a file, in bounded memory. If interrupted, the same call goes on.

        The file that is written has a row for each recommended item: `user`, `rank`, `item`, `score` and `fallback`.

        Parameters
        ----------
        source
            A file with a list of items for each user (Parquet, Feather, JSON Lines), a log as `bert4rec.prepare`
            reads it, or the folder of a dataset.
        target
            The file to write: .parquet, .csv or .jsonl.
        k
            How many items to recommend to each user, at most.
        user, item, time
            Columns. They are guessed from usual names.
        time_format
            How dates that are not ISO are written, such as "%d/%m/%Y".
        separator
            Between the fields of text files.
        encoding
            Of text files that are not UTF-8, such as "latin-1".
        exclude_seen, allow, deny, where, diversity
            As in `recommend`.
        overwrite
            Replace `target`, or the parts of another request.
        progress
            Whether to show a progress bar; None shows one in notebooks.
        callback
            Called with the number of users done, and their total if it is known.
        """
        from bert4rec.logs.columns import ColumnRequest
        from bert4rec.logs.files import Hints
        from bert4rec.progress import progress_bar
        from bert4rec.recommend.bulk import Request, recommend_file

        request = Request(
            Path(source),
            Path(target),
            Rules(k, exclude_seen, allow, deny, where, diversity),
            columns=ColumnRequest.of(user, item, time),
            hints=Hints(encoding, separator, time_format),
        )
        with progress_bar("Recommending", "users", progress, callback) as report:
            return recommend_file(self, request, overwrite=overwrite, progress=report)

    def question(self, history: object, rules: Rules) -> tuple[Question, list[Id]]:
        """A question in the model's numbers, and the ids that the model does not know."""
        if rules.diversity and (why := why_not_comparable(self.user_scorer, self.max_history)):
            raise RuleError("diversity", why)
        return question_of(history, rules, self.catalogue, self.filters, exclude_seen=self.exclude_seen)

    def answer(self, question: Question, unknown: list[Id], found: tuple[Numbers, Scores]) -> Recommendation:
        """What `top` found for a question, in original ids; `unknown` as `question` gave it."""
        return Recommendation(
            items=items_of(self.catalogue, *found),
            used=min(len(question.history), self.max_history),
            unknown_items=unknown,
            fallback=None if len(question.history) else POPULAR,
        )

    def rank(self, history: History, items: Iterable[ItemId]) -> Recommendation:
        """The named items, best first; unknown ones are left out and reported.

        Parameters
        ----------
        history
            Item ids, oldest first.
        items
            Ids of the items to rank.
        """
        numbers, unknown = self._history(history)
        candidates, unknown_candidates = self.catalogue.numbers(items, "items")
        question = Question(numbers, max(1, len(candidates)), NOTHING, candidates)
        unknown = list(dict.fromkeys([*unknown, *unknown_candidates]))
        return self.answer(question, unknown, self.top([question])[0])

    def similar(
        self,
        item: ItemId,
        k: int = 10,
        *,
        allow: Iterable[ItemId] | None = None,
        deny: Iterable[ItemId] | None = None,
        where: Where | None = None,
    ) -> Recommendation:
        """The items whose vectors point most nearly in the same direction; the score is the cosine.

        Parameters
        ----------
        item
            Id of an item.
        k
            How many items to return, at most.
        allow, deny, where
            As in `recommend`.
        """
        if why := why_not_comparable(self.user_scorer, self.max_history):
            raise UsageError(why)
        question, unknown = self.question((), Rules(k, False, allow, deny, where))
        number = self.catalogue.known(item)
        found = self.ranker.similar(number, question.k, question.candidates, question.exclude)
        return Recommendation(items_of(self.catalogue, *found), 1, unknown, None)

    def explain(self, history: History, item: ItemId) -> Explanation:
        """Why an item gets its score: the effect of leaving out each action, and the attention weights.

        A history without known items explains nothing: the score is then the item's popularity.

        Parameters
        ----------
        history
            Item ids, oldest first.
        item
            Id of the item whose score is explained.
        """
        number = self.catalogue.known(item)
        numbers, unknown = self._history(history)
        score, effects, attention = self.ranker.explain(numbers, number)
        return explanation_of(self.catalogue, (number, score), numbers, effects, attention, unknown)

    def top(self, questions: Sequence[Question]) -> list[tuple[Numbers, Scores]]:
        """For each question the best numbers and their scores, best first; at most k, fewer if fewer remain."""
        return self.ranker.top(questions)

    @property
    def ranker(self) -> Ranker:
        """What answers questions about histories, in item numbers; some models answer for known users only."""
        if self.user_scorer is not None:
            raise UsageError(
                f"{self.user_scorer.title} cannot answer for a history, only for users of its dataset: use "
                "`recommend_user()`, or `recommend_many()` with the dataset."
            )
        assert self._ranker is not None
        return self._ranker

    def known_dataset(self, dataset: Dataset | str | Path | None = None) -> Dataset:
        """The dataset that the model was trained on, or `dataset` if it is given; see `recommend_user`."""
        if dataset is None or self.user_scorer is not None:
            if self._find_dataset is None:
                raise UsageError("An exported model does not know users. Pass `dataset`.")
            return self._find_dataset(dataset)
        return dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)

    def _history(self, history: object) -> tuple[Numbers, list[Id]]:
        """The numbers of what is known, and the ids of what is not."""
        return self.catalogue.numbers(as_list(history, "history", ordered=True), "history")
