"""The service put together: its settings, its operations, its start and its end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from bert4rec.service.admission.access import Keys
from bert4rec.service.admission.names import Names
from bert4rec.service.application import Application, Operation, Request
from bert4rec.service.change_mark import ChangeMark
from bert4rec.service.contract import event_schemas, feedback_schemas, hidden_schemas, model_schemas
from bert4rec.service.contract import schemas as api
from bert4rec.service.contract.documents import JSON, describe, docs_page, example_bodies, page_files
from bert4rec.service.experiment import Arm, ServedArms, name_of_test
from bert4rec.service.http.messages import Response
from bert4rec.service.problems import ProblemError
from bert4rec.service.served_models import ModelVersions, ServedModel, open_model
from bert4rec.service.service import Service
from bert4rec.service.telemetry.counters import Metrics
from bert4rec.service.telemetry.request_log import LogFormat, RequestLog
from bert4rec.service.telemetry.tracing import Tracer
from bert4rec.store.events import open_store


@dataclass(frozen=True)
class Settings:
    """What to serve and how. Can be sent to other processes."""

    model: Path
    store: str
    api_key_file: Path | None = None
    allow_host: tuple[str, ...] = ()
    any_host: bool = False
    """Whether it answers to every name unless some are listed, because no page can reach it."""
    threads: int = 1
    workers: int = 1
    quantised: bool = True
    approximate: bool = False
    force: bool = False
    watch: bool = False
    log_format: LogFormat = "text"
    log_requests: bool = False
    log_user_ids: bool = False
    otel: bool = False
    tested: tuple[Arm, ...] = ()
    """Several models side by side, of which the first is `model`; empty if there is but one."""

    @property
    def arms(self) -> tuple[Arm, ...]:
        return self.tested or (Arm("", self.model, 1),)


def check(settings: Settings) -> None:
    """Raise what `create_app` would raise. Of what it would create, only an empty store stays."""
    if settings.api_key_file:
        Keys.read(settings.api_key_file)
    Names(settings.allow_host)
    Tracer(export=settings.otel).stop()
    for arm in settings.arms:
        open_model(
            arm.model,
            settings.threads,
            quantised=settings.quantised,
            approximate=settings.approximate,
            force=settings.force,
        )
    open_store(settings.store).close()


def create_app(settings: Settings, mark: ChangeMark | None = None) -> Application:
    """The service as an application, with its model loaded and warm. All workers of a service share a `mark`."""
    keys = Keys.read(settings.api_key_file, workers=settings.workers) if settings.api_key_file else None
    names = Names(settings.allow_host, any_by_default=settings.any_host or keys is not None)
    metrics, tracer = Metrics(), Tracer(export=settings.otel)
    requests = RequestLog(settings.log_format, user_ids=settings.log_user_ids)
    load = partial(
        ServedModel,
        threads=settings.threads,
        quantised=settings.quantised,
        approximate=settings.approximate,
        force=settings.force,
        metrics=metrics,
        test=name_of_test(settings.arms),
    )
    arms = ServedArms(
        [
            (arm, ModelVersions(arm.model, partial(load, arm=arm.name), metrics, arm.name))
            for arm in settings.arms
        ]
    )
    service = Service(arms, open_store(settings.store), metrics, mark or ChangeMark())
    life = ServiceLife(service, keys, tracer, watch=settings.watch)
    operations = operations_of(service, life)
    examples = example_bodies(None if keys else arms.first.current.recommender.catalogue)
    document = describe(operations, examples, has_keys=keys is not None)
    return Application(
        [*operations, *pages_of(document)],
        life=life,
        names=names,
        keys=keys,
        metrics=metrics,
        is_overloaded=lambda: service.is_overloaded,
        tracer=tracer,
        requests=requests if settings.log_requests else None,
    )


class ServiceLife:
    """The service from its start to its end, and what it is told meanwhile."""

    def __init__(self, service: Service, keys: Keys | None, tracer: Tracer, *, watch: bool) -> None:
        self._service, self._keys, self._tracer, self._watch = service, keys, tracer, watch
        self._tasks: set[asyncio.Task[None]] = set()
        self.tell_others: Callable[[str], None] = lambda _: None
        """Called when this process goes back to the model before, with the name of its arm: other workers must do so
        too."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The service started, and stopped in the end."""
        if self._watch:
            for _, _, versions in self._service.arms:
                self._begin(versions.watch())
        self._begin(self._service.keep_metrics_fresh())
        self._begin(self._service.hidden.watch())
        await self._service.start()
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._service.stop()
            await asyncio.to_thread(self._tracer.stop)

    def drain(self) -> None:
        """From now on the service says that it is not ready, but answers."""
        self._service.is_ready = False

    def reload(self) -> None:
        """Read the keys again, and take over the model in the folder if it is another one."""
        if self._keys:
            self._keys.reload()
        for _, _, versions in self._service.arms:
            self._begin(versions.look())

    def roll_back(self, arm: str) -> None:
        """Back to the model before, as another worker has done."""
        if versions := self._service.arms.named(arm):
            versions.roll_back()

    async def roll_back_all(self, request: api.RollbackRequest) -> dict[str, Any]:
        """Go back to the model before; of several models, `arm` says for which. Once more brings back the newer one."""
        arm = request.arm or ""
        versions = self._service.arms.named(arm)
        if versions is None:
            names = ", ".join(name for name, _, _ in self._service.arms if name)
            detail = (
                f"`arm` must be one of: {names}." if names else "There is but one model: leave out `arm`."
            )
            raise ProblemError(404 if arm else 422, "unknown_arm", detail)
        if not versions.roll_back():
            raise ProblemError(409, "no_previous_model", "There is no previous model to go back to.")
        self.tell_others(arm)
        return await self._service.models()

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def operations_of(service: Service, life: ServiceLife) -> list[Operation]:
    """What can be asked.

    Whether the service is alive and ready may be asked without a key.
    """

    async def metrics() -> Response:
        return Response(*service.metrics.page())

    live, ready = service.live, service.ready
    user_history, hidden_item = "/v1/users/{user_id}/history", "/v1/items/{item_id}/hidden"
    return [
        Operation("POST", "/v1/recommend", service.recommend, api.Recommendations, needs_model=True),
        Operation(
            "POST", "/v1/recommend/batch", service.recommend_batch, api.BatchResponse, needs_model=True
        ),
        Operation("POST", "/v1/rank", service.rank, api.Recommendations, needs_model=True),
        Operation("POST", "/v1/explain", service.explain, api.Explanation),
        Operation(
            "POST",
            "/v1/events",
            service.events.add_events,
            event_schemas.EventsResponse,
            status=202,
            role="write",
        ),
        Operation(
            "DELETE",
            "/v1/events/{event_id}",
            service.events.remove_event,
            event_schemas.DeletedEvents,
            role="write",
        ),
        Operation(
            "POST",
            "/v1/feedback",
            service.counting.add_feedback,
            feedback_schemas.FeedbackResponse,
            status=202,
            role="write",
        ),
        Operation("GET", "/v1/items/{item_id}/similar", service.similar, api.SimilarItems),
        Operation("GET", "/v1/items", service.search, api.FoundItems),
        Operation("PUT", hidden_item, service.hidden.hide, hidden_schemas.HiddenItem, role="write"),
        Operation("DELETE", hidden_item, service.hidden.unhide, hidden_schemas.ShownItem, role="write"),
        Operation("GET", "/v1/items/hidden", service.hidden.hidden, hidden_schemas.HiddenItems),
        Operation("GET", "/v1/samples", service.samples, api.SampleUsers),
        Operation("GET", user_history, service.events.history, event_schemas.UserHistory),
        Operation("DELETE", user_history, service.forget, event_schemas.DeletedEvents, role="write"),
        Operation(
            "DELETE", "/v1/users/{user_id}", service.forget_user, event_schemas.DeletedEvents, role="write"
        ),
        Operation("GET", "/v1/models", service.models, model_schemas.ModelStates),
        Operation("POST", "/v1/models/rollback", life.roll_back_all, model_schemas.ModelStates, role="admin"),
        Operation("GET", "/v1/info", service.info, api.Info),
        Operation("GET", "/health/live", live, api.Health, role=None),
        Operation("GET", "/health/ready", ready, api.Health, role=None),
        Operation("GET", "/livez", live, role=None),
        Operation("GET", "/readyz", ready, role=None),
        Operation("GET", "/metrics", metrics),
    ]


def pages_of(document: JSON) -> list[Operation]:
    """What people and programs read about the service.

    None of it needs a key: a browser sends none when it opens an address, so a guarded page could not even ask for
    one. These hold no data, and whatever the page then fetches is guarded.
    """

    async def openapi() -> Response:
        return Response(to_json(document))

    async def docs(request: Request) -> Response:
        return docs_page(document, request.headers.get(b"host", b"").decode("latin-1"))

    async def give(response: Response) -> Response:
        return response

    return [
        Operation("GET", "/openapi.json", openapi, role=None),
        Operation("GET", "/docs", docs, role=None),
        *(
            Operation("GET", path, partial(give, response), role=None)
            for path, response in page_files().items()
        ),
    ]
