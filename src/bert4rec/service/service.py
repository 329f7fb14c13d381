"""What each request does: from a checked request to the content of its response. Independent of HTTP.

The docstrings of the operations are their descriptions in the OpenAPI document.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain

from pydantic import TypeAdapter

from bert4rec import __version__
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.recommender import Question
from bert4rec.service.batcher import lane, outcome_of
from bert4rec.service.change_mark import ChangeMark
from bert4rec.service.contract import schemas as api
from bert4rec.service.counting import Counting
from bert4rec.service.experiment import ServedArms
from bert4rec.service.hidden_items import HiddenItems
from bert4rec.service.http.messages import NO_STORE, Response
from bert4rec.service.problems import ProblemError
from bert4rec.service.recommending import (
    Asked,
    Content,
    Plan,
    Room,
    batch_parts,
    facts_of,
    milliseconds_since,
    name_of,
    results_of,
    scored,
)
from bert4rec.service.served_models import TIMEOUT, ModelVersions, ServedModel, TopItems
from bert4rec.service.stored_events import StoredEvents
from bert4rec.service.telemetry.counters import Metrics
from bert4rec.store.events import HistoryStore

MAX_ITEMS_IN_BATCHES = 2**20
"""Recommended by batches whose answers have not been read yet: 30 MB at most."""
check_request: TypeAdapter[api.ByHistory | api.ByUser] = TypeAdapter(api.RecommendRequest)


class Service:
    """Models, store and metrics, joined. To be used from one event loop."""

    def __init__(self, arms: ServedArms, store: HistoryStore, metrics: Metrics, mark: ChangeMark) -> None:
        """`mark` is shared by all workers: it changes when the list of hidden items does."""
        self.arms, self.versions, self.store, self.metrics = arms, arms.first, store, metrics
        self.is_ready = False
        self.events = StoredEvents(store, self.versions, metrics)
        self.counting = Counting(arms, self.events, metrics)
        self.hidden = HiddenItems(self.events, self.versions, mark)
        # Explanations and searches are few and long. Nothing else must wait for them.
        self._side = lane("side", max_waiting=64, timeout=TIMEOUT)
        self._room = Room(MAX_ITEMS_IN_BATCHES)
        metrics.follow(metrics.queue_depth, lambda: sum(each.batcher.waiting for each in self._current))
        metrics.follow(
            metrics.queue_oldest_seconds, lambda: max(each.batcher.oldest for each in self._current)
        )

    async def start(self) -> None:
        await self.events.start()
        self.counting.start()
        await self.hidden.start()
        self.is_ready = True

    async def keep_metrics_fresh(self) -> None:
        """Forever: with several workers, a page shows what each of them wrote last."""
        while True:
            self.metrics.refresh()
            await asyncio.sleep(1.0)

    async def stop(self) -> None:
        """Finish what was accepted, unless the store hangs, then let go of everything."""
        self.is_ready = False
        async with (
            AsyncExitStack() as stopping
        ):  # from the last to the first, and all of them even if one fails
            stopping.callback(self.store.close)
            for _, _, versions in self.arms:
                stopping.push_async_callback(versions.stop)
            for part in (self.events, self.counting, self._side):
                stopping.push_async_callback(part.stop)

    @property
    def _current(self) -> list[ServedModel]:
        return [versions.current for _, _, versions in self.arms]

    @property
    def is_overloaded(self) -> bool:
        # Every request asks, and almost always the first arm says no.
        return self.arms.first.current.batcher.is_full and all(each.batcher.is_full for each in self._current)

    # Recommendations

    async def recommend(self, request: api.RecommendRequest) -> Content:
        """Items that should come next, by a history that is sent or by a user's stored events."""
        began = time.monotonic()
        versions = self.arms.of(request.asker)
        history: Sequence[str | int]
        if isinstance(request, api.ByHistory):
            history = request.history
        else:
            history = await self.events.items_of(request, versions.current, since=began)
        model = await self.hidden.obeyed_by(versions.current)
        return await self._answer(self._plan(model, request, history), began)

    async def _answer(self, plan: Plan, began: float) -> Content:
        content = plan.content(await plan.model.batcher.ask(plan.question, since=began), began)
        self.counting.note(plan)
        return content

    async def rank(self, request: api.RankRequest) -> Content:
        """The given items, best first."""
        began = time.monotonic()
        asked = api.ByHistory.model_construct(
            history=request.history,
            k=len(request.items),
            exclude_seen=False,
            allow=request.items,
            subject=request.subject,
        )
        plan = Plan.of(self.arms.of(request.subject).current, asked, request.history)
        self.metrics.unknown_items.inc(len(plan.unknown))
        return await self._answer(plan._replace(question=replace(plan.question, even_hidden=True)), began)

    async def recommend_batch(self, request: api.BatchRequest) -> Response:
        """Many requests at once; each gets its own response or its own error. All are taken up, or none."""
        began = time.monotonic()
        entries: list[Asked | Exception] = []
        for entry in request.requests:
            entries.append(outcome_of(partial(check_request.validate_python, entry)))
            await _let_others_go_on(len(entries))
        with ExitStack() as holding:
            holding.enter_context(self._room.take(sum(each.k for each in entries if isinstance(each, Asked))))
            plans = await self._plan_all(entries)
            results = results_of(plans, await _ask_all([each for each in plans if isinstance(each, Plan)]))
            for result in results:
                if isinstance(result, tuple):
                    self.counting.note(result[0])
            parts = batch_parts(results, began, holding.pop_all())
        # Begun, so that what it holds is let go even if nobody reads it.
        return Response(chain([next(parts)], parts), headers=NO_STORE)

    async def _plan_all(self, entries: Sequence[Asked | Exception]) -> list[Plan | Exception]:
        current = {versions: versions.current for _, _, versions in self.arms}  # of one moment
        models = {versions: await self.hidden.obeyed_by(model) for versions, model in current.items()}

        def model_of(entry: Asked) -> ServedModel:
            return models[self.arms.of(entry.asker)]

        users = [(each, model_of(each)) for each in entries if isinstance(each, api.ByUser)]
        found = iter(await self.events.items_of_all(users))
        plans: list[Plan | Exception] = []
        for entry in entries:
            if isinstance(entry, Exception):
                plans.append(entry)
                continue
            history = next(found) if isinstance(entry, api.ByUser) else entry.history
            if isinstance(history, Exception):
                plans.append(history)
            else:
                plans.append(outcome_of(partial(self._plan, model_of(entry), entry, history)))
            await _let_others_go_on(len(plans))
        return plans

    def _plan(self, model: ServedModel, request: Asked, history: Sequence[str | int]) -> Plan:
        plan = Plan.of(model, request, history)
        self.metrics.unknown_items.inc(len(plan.unknown))
        if plan.fallback:
            self.metrics.fallbacks.labels(plan.fallback).inc()
        return plan

    async def explain(self, request: api.ExplainRequest) -> Content:
        """Which actions a recommendation rests on, and where the model looked."""
        began = time.monotonic()
        model = self._model_with(request.item_id)
        found = await self._side.ask(partial(model.recommender.explain, request.history, request.item_id))
        return {
            "model": name_of(model),
            "item": scored(found.item),
            "contributions": found.contributions,
            "attention": None if found.attention is None else found.attention.tolist(),
            "unknown_items": found.unknown_items,
            "fallback": found.fallback,
            "took_ms": milliseconds_since(began),
        }

    # Items

    async def similar(self, request: api.SimilarRequest) -> Content:
        """Items that the model considers similar; the score is the cosine of their vectors."""
        began = time.monotonic()
        model = await self.hidden.obeyed_by(self._model_with(request.item_id))
        found = await self._side.ask(partial(model.visible.similar, request.item_id, request.k))
        return {
            "model": name_of(model),
            "items": [scored(item) for item in found.items],
            "took_ms": milliseconds_since(began),
        }

    def _model_with(self, item_id: str | int) -> ServedModel:
        """The model, if it knows the item. The recommender would first look for what may have been meant, which
        takes up to half a second for a million items."""
        model = self.versions.current
        if model.recommender.catalogue.number_of(item_id) is None:
            raise ProblemError(404, "unknown_item", "The model does not know an item with this id.")
        return model

    async def search(self, request: api.SearchRequest) -> Content:
        """Items by the words of their title, or by id; popular ones first."""
        catalogue = self.versions.current.recommender.catalogue
        numbers = await self._side.ask(partial(catalogue.search, request.query, request.limit))
        return {"items": [_item(catalogue, number) for number in numbers]}

    async def samples(self) -> Content:
        """Histories to try, if the model was exported with some."""
        model = self.versions.current
        catalogue = model.recommender.catalogue
        return {
            "samples": [
                {
                    "user_id": user.user_id,
                    "history": [
                        _item(catalogue, each) for each in catalogue.numbers(user.history)[0].tolist()
                    ],
                }
                for user in model.samples
            ]
        }

    # The service itself

    async def models(self) -> Content:
        """The current model and the previous one; of several that are served side by side, of each."""
        return {"models": [each for arm in self.arms for each in self._states(*arm)]}

    def _states(self, name: str, share: int, versions: ModelVersions) -> list[Content]:
        both = {"current": versions.current, "previous": versions.previous}
        in_test = {"share": share} if name else {}
        return [
            {**name_of(model), **in_test, "state": state, **facts_of(model)}
            for state, model in both.items()
            if model
        ]

    async def forget(self, request: api.UserRequest) -> Content:
        """Delete all stored events of a user, and what tests of several models counted of the user."""
        self.counting.forget(request.user_id)
        try:
            return await self.events.forget(request)
        finally:  # of what was counted meanwhile, or was being written and could not be
            self.counting.forget(request.user_id)

    async def forget_user(self, request: api.UserRequest) -> Content:
        """Forget a user: everything that is stored of them."""
        return await self.forget(request)

    async def info(self) -> Content:
        """Version and limits."""
        return {
            "service": "bert4rec",
            "version": __version__,
            "model": name_of(self.versions.current),
            "store": self.store.description.split()[0],
            "limits": api.Limits().model_dump(),
        }

    async def live(self) -> Content:
        """Whether the process runs."""
        return {"status": "live"}

    async def ready(self) -> Content:
        """Whether a model is loaded and warm."""
        if not self.is_ready:
            raise ProblemError(503, "not_ready", "The service is starting or stopping.")
        return {"status": "ready"}


async def _ask_all(plans: Sequence[Plan]) -> list[TopItems | Exception]:
    """What each plan's model finds for it. All models take up their part, or none does."""
    questions: dict[ServedModel, list[Question]] = {}
    for plan in plans:
        questions.setdefault(plan.model, []).append(plan.question)
    asked = [asyncio.ensure_future(model.batcher.ask_all(each)) for model, each in questions.items()]
    try:
        found = await asyncio.gather(*asked)
    finally:
        for each in asked:
            each.cancel()
    answers = {model: iter(each) for model, each in zip(questions, found, strict=True)}
    return [next(answers[plan.model]) for plan in plans]


async def _let_others_go_on(done: int) -> None:
    """Between the entries of a batch: a long one must not hold up all others."""
    if done % 32 == 0:
        await asyncio.sleep(0)


def _item(catalogue: Catalogue, number: int) -> Content:
    return {"item_id": catalogue.id_of(number), "title": catalogue.title_of(number)}
