"""Between a request for recommendations and its response: a question to one model, and what it found as JSON."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from pydantic_core import to_json

from bert4rec.recommend.catalogue import Id
from bert4rec.recommend.recommender import Item, Question
from bert4rec.recommend.rules.rules import RuleError
from bert4rec.service.batcher import OverloadedError
from bert4rec.service.contract import schemas as api
from bert4rec.service.problems import ProblemError, to_problem
from bert4rec.service.served_models import ServedModel, TopItems
from bert4rec.store.feedback import new_id, subject_of

Content = dict[str, Any]
"""What becomes the JSON of a response: one of the models of `schemas`, not checked again."""
Asked = api.ByHistory | api.ByUser


class Plan(NamedTuple):
    """A question to a model. It is answered by that model alone, because item numbers have a meaning to it only."""

    model: ServedModel
    question: Question
    unknown: list[Id]
    source: str
    fallback: str | None
    """Why popular items are recommended, if they are."""
    subject: str | None
    """Who asked, under a pseudonym; None if nobody in particular did."""

    @classmethod
    def of(cls, model: ServedModel, request: Asked, history: Sequence[str | int]) -> "Plan":
        try:
            question, unknown = model.recommender.question(history, request.rules)
        except RuleError as error:
            wrong = [{"field": error.field, "message": error.message}]
            raise ProblemError(
                422, "invalid_request", f"{error.field}: {error.message}", errors=wrong
            ) from error
        fallback = None
        if not len(question.history):
            fallback = "unknown_items" if history else "empty_history"
        source = "store" if isinstance(request, api.ByUser) else "request"
        subject = None if request.asker is None else subject_of(request.asker)
        return cls(model, question, unknown, source, fallback, subject)

    def content(self, found: TopItems, began: float) -> Content:
        """The response, if this was found; `began` is when the request was, by `time.monotonic`."""
        answer = self.model.recommender.answer(self.question, self.unknown, found)
        return {
            "recommendation_id": new_id(self.model.served.mark, self.subject),
            "model": name_of(self.model),
            "items": [scored(item) for item in answer.items],
            "context": {"source": self.source, "used": answer.used, "unknown_items": answer.unknown_items},
            "fallback": answer.fallback,
            "took_ms": milliseconds_since(began),
        }


class Room:
    """How much may be held in all, for answers that are being read by their clients."""

    def __init__(self, most: int) -> None:
        self._left = most

    @contextmanager
    def take(self, size: int) -> Iterator[None]:
        if size > self._left:
            raise OverloadedError
        self._left -= size
        try:
            yield
        finally:
            self._left += size


def results_of(
    plans: Sequence[Plan | Exception], outcomes: Sequence[TopItems | Exception]
) -> list[tuple[Plan, TopItems] | Content]:
    """What was found for each entry of a batch, or its problem; `outcomes` are those of the plans, in their order."""
    answered = iter(outcomes)
    results: list[tuple[Plan, TopItems] | Content] = []
    for plan in plans:
        outcome = next(answered) if isinstance(plan, Plan) else plan
        if isinstance(plan, Plan) and not isinstance(outcome, Exception):
            results.append((plan, outcome))
        else:
            assert isinstance(outcome, Exception)
            results.append({"error": to_problem(outcome, "An entry of /v1/recommend/batch").document()})
    return results


def batch_parts(
    results: Sequence[tuple[Plan, TopItems] | Content], began: float, held: ExitStack
) -> Iterator[bytes]:
    """The response to a batch, a part for each entry, made when it is asked for. `held` is let go in the end, or when
    nobody asks any more."""
    with held:
        yield b'{"results":['
        for place, result in enumerate(results):
            content = result[0].content(result[1], began) if isinstance(result, tuple) else result
            yield (b"," if place else b"") + to_json(content)
        yield b"]}"


def name_of(model: ServedModel) -> Content:
    name, version = model.version
    arm = {"arm": model.served.arm} if model.served.arm else {}
    return {"name": name, "version": version, **arm}


def facts_of(model: ServedModel) -> Content:
    """What is known of a model: what it takes, since when it is here, what it was trained on and how good it was."""
    recommender, trained = model.recommender, model.recommender.trained
    since = model.serving_since
    return {
        "num_items": recommender.catalogue.num_known,
        "max_history": recommender.max_history,
        "exclude_seen": recommender.exclude_seen,
        "loaded_at": model.loaded_at.isoformat(timespec="seconds"),
        "serving_since": since.isoformat(timespec="seconds") if since else None,
        "trained_until": trained.until if trained else None,
        "trained": {name: fact for name, fact in vars(trained).items() if name != "until"}
        if trained
        else None,
    }


def scored(item: Item) -> Content:
    # Not left to the writer of JSON, which takes four times as long for dataclasses as for dicts.
    return vars(item)


def milliseconds_since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 3)
