"""The service in a thread of this process, reached over a real socket, and what its answers are checked for."""

import asyncio
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import uvloop

from bert4rec.service.app import Settings
from bert4rec.service.application import Application
from bert4rec.service.http.listening import Address, listening
from bert4rec.service.http.server import Server, on_listener

HEALTH = ("/health/live", "/livez", "/health/ready", "/readyz")


class TestClient(httpx2.Client):
    """A client of an application, which runs while this is entered."""

    __test__ = False

    def __init__(self, application: Application) -> None:
        self._application = application
        with ExitStack() as closing:
            self._listener = closing.enter_context(listening(Address(port=0)))
            self._closing = closing.pop_all()
        host, port = self._listener.getsockname()
        super().__init__(base_url=f"http://{host}:{port}", timeout=60)

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,))
        self._thread.start()
        while not ready.wait(0.1):
            assert self._thread.is_alive(), "the application did not start"
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._loop.call_soon_threadsafe(self._server.stop)
        self._thread.join()
        self._closing.close()

    def _run(self, ready: threading.Event) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._server = Server(self._application, drain=0)
            await self._server.run(on_listener(self._listener, None), on_ready=ready.set)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())


def settings_for(model: Path, folder: Path, **changes: Any) -> Settings:
    return Settings(model=model, store=f"sqlite:///{folder / 'history.db'}", **changes)


def assert_problem(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert (document["status"], document["code"]) == (status, code)
    assert document["request_id"] == response.headers["x-request-id"]
    assert document["detail"]
    return document


def event(
    event_id: str, user: str = "u1", item: str = "i1", at: str = "2026-01-01T00:00:00Z"
) -> dict[str, str]:
    return {"event_id": event_id, "user_id": user, "item_id": item, "timestamp": at}


def post_events(client: TestClient, *events: Mapping[str, object]) -> dict[str, Any]:
    response = client.post("/v1/events", json={"events": list(events)})
    assert response.status_code == 202, response.text
    answer: dict[str, Any] = response.json()
    return answer
