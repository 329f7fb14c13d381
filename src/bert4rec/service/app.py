"""The service put together: its settings, its operations, its start and its end."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic_core import to_json

from bert4rec.service import event_schemas
from bert4rec.service import schemas as api
from bert4rec.service.asgi import Application, Keys, Operation, Request, Response
from bert4rec.service.counters import Metrics
from bert4rec.service.documents import JSON, describe, docs_page, example_bodies, page_files
from bert4rec.service.served_models import ModelVersions, open_model
from bert4rec.service.service import Service
from bert4rec.store.events import open_store


@dataclass(frozen=True)
class Settings:
    """What to serve and how. Can be sent to other processes."""

    model: Path
    store: str
    api_key_file: Path | None = None
    threads: int = 1
    quantised: bool = True
    watch: bool = False


def check(settings: Settings) -> None:
    """Raise what `create_app` would raise. Of what it would create, only an empty store stays."""
    if settings.api_key_file:
        Keys.read(settings.api_key_file)
    open_model(settings.model, settings.threads, quantised=settings.quantised)
    open_store(settings.store).close()


def create_app(settings: Settings) -> Application:
    """The service as an ASGI application, with its model loaded and warm."""
    keys = Keys.read(settings.api_key_file) if settings.api_key_file else None
    metrics = Metrics()
    versions = ModelVersions(
        settings.model, threads=settings.threads, quantised=settings.quantised, metrics=metrics
    )
    service = Service(versions, open_store(settings.store), metrics)
    operations = operations_of(service)
    examples = example_bodies(versions.current.recommender.catalogue)
    document = describe(operations, examples, has_keys=keys is not None)
    return Application(
        [*operations, *pages_of(document)],
        running=partial(running, service, watch=settings.watch),
        keys=keys,
        metrics=metrics,
        is_overloaded=lambda: service.is_overloaded,
    )


def operations_of(service: Service) -> list[Operation]:
    """What can be asked.

    Whether the service is alive and ready may be asked without a key.
    """

    async def metrics() -> Response:
        return Response(*service.metrics.page())

    live, ready = service.live, service.ready
    user_history = "/v1/users/{user_id}/history"
    return [
        Operation("POST", "/v1/recommend", service.recommend, api.Recommendations, needs_model=True),
        Operation(
            "POST", "/v1/recommend/batch", service.recommend_batch, api.BatchResponse, needs_model=True
        ),
        Operation("POST", "/v1/rank", service.rank, api.Recommendations, needs_model=True),
        Operation("POST", "/v1/explain", service.explain, api.Explanation),
        Operation("POST", "/v1/events", service.add_events, event_schemas.EventsResponse, status=202),
        Operation("DELETE", "/v1/events/{event_id}", service.remove_event, event_schemas.DeletedEvents),
        Operation("GET", "/v1/items/{item_id}/similar", service.similar, api.SimilarItems),
        Operation("GET", "/v1/items", service.search, api.FoundItems),
        Operation("GET", "/v1/samples", service.samples, api.SampleUsers),
        Operation("GET", user_history, service.history, event_schemas.UserHistory),
        Operation("DELETE", user_history, service.forget, event_schemas.DeletedEvents),
        Operation("GET", "/v1/models", service.models, api.ModelStates),
        Operation("GET", "/v1/info", service.info, api.Info),
        Operation("GET", "/health/live", live, api.Health, needs_key=False),
        Operation("GET", "/health/ready", ready, api.Health, needs_key=False),
        Operation("GET", "/livez", live, needs_key=False),
        Operation("GET", "/readyz", ready, needs_key=False),
        Operation("GET", "/metrics", metrics),
    ]


def pages_of(document: JSON) -> list[Operation]:
    """What people and programs read about the service.

    The page needs no key: a browser sends none when it opens an address, so a guarded page could not even ask for
    one. Its files hold no data, and whatever it then fetches is guarded.
    """

    async def openapi() -> Response:
        return Response(to_json(document))

    async def docs(request: Request) -> Response:
        return docs_page(document, request.headers.get(b"host", b"").decode("latin-1"))

    async def give(response: Response) -> Response:
        return response

    return [
        Operation("GET", "/openapi.json", openapi),
        Operation("GET", "/docs", docs),
        *(
            Operation("GET", path, partial(give, response), needs_key=False)
            for path, response in page_files().items()
        ),
    ]


@asynccontextmanager
async def running(service: Service, *, watch: bool) -> AsyncIterator[None]:
    """The service started, and stopped in the end. SIGHUP rolls back to the previous model."""
    loop = asyncio.get_running_loop()
    watching = loop.create_task(service.versions.watch()) if watch else None
    if threading.current_thread() is threading.main_thread():
        loop.add_signal_handler(signal.SIGHUP, service.versions.roll_back)
    await service.start()
    yield
    if watching:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    await service.stop()
