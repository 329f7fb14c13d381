"""The HTTP service: routes, errors, start and stop.

What is open to everybody, even where keys are asked for: whether the service is alive and ready, and the files of
the page, which hold no data. A browser sends no key when it opens an address, so a guarded page could not even
ask for one; the page is open, and everything it then fetches is not.
"""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import fastapi
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from bert4rec import __version__
from bert4rec.service import schemas as api
from bert4rec.service.batcher import OverloadedError, TooLateError
from bert4rec.service.counters import Metrics
from bert4rec.service.documents import (
    DESCRIPTION,
    PROBLEM_RESPONSE,
    describe_keys,
    docs_page,
    example_bodies,
    with_examples,
)
from bert4rec.service.gate import Gate
from bert4rec.service.keys import Keys
from bert4rec.service.operations import Operation
from bert4rec.service.page_files import DOCS_HEADERS, PAGE_HEADERS, page_files
from bert4rec.service.problems import MEDIA_TYPE, ProblemError, internal_error, invalid, problem_of
from bert4rec.service.served_models import Models, open_model
from bert4rec.service.service import Service
from bert4rec.service.store import StoreError, open_store

HEALTH = ("/health/live", "/livez", "/health/ready", "/readyz")


@dataclass(frozen=True)
class Settings:
    """What to serve and how. Can be sent to other processes."""

    model: Path
    store: str
    api_key_file: Path | None = None
    threads: int = 1
    watch: bool = False


def check(settings: Settings) -> None:
    """Raise what `create_app` would raise. Of what it would make, only an empty store stays."""
    if settings.api_key_file:
        Keys.read(settings.api_key_file)
    open_model(settings.model, settings.threads)
    open_store(settings.store).close()


def create_app(settings: Settings) -> Gate:
    """The service as an ASGI application, with its model loaded and warm. Raises what a user can mend."""
    keys = Keys.read(settings.api_key_file) if settings.api_key_file else None
    metrics = Metrics()
    models = Models(settings.model, threads=settings.threads, metrics=metrics)
    service = Service(models, open_store(settings.store), metrics)
    app = FastAPI(
        title="bert4rec",
        version=__version__,
        description=DESCRIPTION,
        lifespan=_lifespan(service, watch=settings.watch),
        default_response_class=JSONResponse,  # so that the document has the shapes of answers
        responses={"default": PROBLEM_RESPONSE},
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # we count for ourselves
    )
    operations = operations_of(service)
    examples = example_bodies(models.current.recommender.catalogue.ids)
    for path, operation in operations.items():
        app.post(
            path,
            response_model=operation.content,
            status_code=operation.status,
            openapi_extra=with_examples(examples[path]),
        )(operation.call)
    add_items(app, service)
    add_users(app, service)
    add_health(app, service)
    page = page_files()
    add_page(app, page)
    for error in (
        ProblemError,
        OverloadedError,
        TooLateError,
        StoreError,
        HTTPException,
        RequestValidationError,
    ):
        app.add_exception_handler(error, _to_problem)
    app.add_exception_handler(Exception, _to_problem)
    if keys:
        describe_keys(app, open_paths=HEALTH)
    return Gate(
        app,
        operations=operations,
        keys=keys,
        open_paths=frozenset({*HEALTH, *page}),
        metrics=metrics,
        is_overloaded=lambda: service.is_overloaded,
    )


def _lifespan(service: Service, *, watch: bool) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        watching = loop.create_task(service.models.watch()) if watch else None
        if threading.current_thread() is threading.main_thread():
            loop.add_signal_handler(signal.SIGHUP, service.models.roll_back)
        await service.start()
        yield
        if watching:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        await service.stop()

    return lifespan


def _answer(content: object) -> Response:
    return Response(to_json(content), media_type="application/json")


def operations_of(service: Service) -> dict[str, Operation]:
    """What is asked with a JSON body."""
    return {
        "/v1/recommend": Operation(service.recommend, api.Recommendations),
        "/v1/recommend/batch": Operation(service.recommend_batch, api.BatchResponse),
        "/v1/rank": Operation(service.rank, api.Recommendations),
        "/v1/explain": Operation(service.explain, api.Explained),
        "/v1/events": Operation(service.add_events, api.EventsResponse, status=202),
    }


def add_items(app: FastAPI, service: Service) -> None:
    """What is known of items."""

    @app.get("/v1/items/{item_id:path}/similar", response_model=api.Similar)
    async def similar(item_id: Annotated[api.Id, fastapi.Path()], k: api.K = 10) -> Response:
        """Items that the model holds to be alike; the score is the cosine of their vectors."""
        return _answer(await service.similar(item_id, k))

    @app.get("/v1/items", response_model=api.CatalogueItems)
    async def search(
        query: Annotated[str, Query(max_length=api.MAX_ID)], limit: api.SearchLimit = 20
    ) -> Response:
        """Items by the words of their title, or by id; popular ones first."""
        return _answer(await service.search(query, limit))

    @app.get("/v1/samples", response_model=api.Samples)
    async def samples() -> Response:
        """Histories to try, where the exported model has some."""
        return _answer(service.samples())


def add_users(app: FastAPI, service: Service) -> None:
    """What users did."""

    user = "/v1/users/{user_id:path}/history"

    @app.get(user, response_model=api.UserHistory)
    async def history(
        user_id: Annotated[api.Id, fastapi.Path()], limit: api.HistoryLimit = api.MAX_HISTORY
    ) -> Response:
        """A user's newest events, oldest first. Nobody is unknown: there may just be no events."""
        return _answer(await service.history(user_id, limit))

    @app.delete(user, response_model=api.Forgotten)
    async def forget(user_id: Annotated[api.Id, fastapi.Path()]) -> Response:
        """Remove everything that is stored of a user."""
        return _answer(await service.forget(user_id))


def add_health(app: FastAPI, service: Service) -> None:
    """How the service is."""

    @app.get("/v1/models", response_model=api.ModelStates)
    async def models() -> Response:
        """The model that answers and the one before it."""
        return _answer(service.describe_models())

    @app.get("/v1/info", response_model=api.Info)
    async def info() -> Response:
        """Version and limits."""
        return _answer(service.info())

    @app.get("/livez", include_in_schema=False)
    @app.get("/health/live", response_model=api.Health)
    async def live() -> Response:
        """Whether the process runs."""
        return _answer({"status": "live"})

    @app.get("/readyz", include_in_schema=False)
    @app.get("/health/ready", response_model=api.Health)
    async def ready() -> Response:
        """Whether a model is loaded and warm."""
        if not service.is_ready:
            raise ProblemError(503, "not_ready", "The service is starting or stopping.")
        return _answer({"status": "ready"})

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        content, media_type = service.metrics.page()
        return Response(content, media_type=media_type)


def add_page(app: FastAPI, page: dict[str, tuple[bytes, str]]) -> None:
    """What people look at."""

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        content = docs_page(app.openapi(), request.url.netloc)
        return Response(content, media_type="text/html", headers=DOCS_HEADERS)

    async def give(request: Request) -> Response:
        content, media_type = page[request.url.path]
        return Response(content, media_type=media_type, headers=PAGE_HEADERS)

    for path in page:
        app.add_api_route(path, give, include_in_schema=False)


async def _to_problem(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        problem = invalid(error.errors())
    elif isinstance(error, HTTPException):
        phrase = HTTPStatus(error.status_code).phrase
        code = phrase.lower().replace(" ", "_")
        problem = ProblemError(
            error.status_code, code, f"{phrase}: {request.method} {request.url.path}.", headers=error.headers
        )
    else:
        problem = problem_of(error) or internal_error()
    content = to_json(problem.document())
    return Response(content, problem.status, problem.headers, MEDIA_TYPE)
