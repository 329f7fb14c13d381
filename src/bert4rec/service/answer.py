"""An answer on its way to one client."""

import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from pydantic_core import to_json

from bert4rec.service.problems import MEDIA_TYPE, ProblemError

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI application."""


class Answer:
    """Carries the request's id, and remembers how far it has come."""

    def __init__(self, send: Send, request_id: str, route: str) -> None:
        """The route is as it is written in the code; what clients make up would be counted without end."""
        self._send = send
        self.request_id, self.route = request_id, route
        self.began = time.perf_counter()
        self.status = 500
        self.is_started = self.is_complete = self.client_is_gone = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_started = True
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self.request_id.encode())]
        elif not message.get("more_body"):
            self.is_complete = True
        await self._send(message)

    async def send_problem(self, problem: ProblemError) -> None:
        """Unless something else was already being said: then the connection's end must speak for itself."""
        if not self.is_started:
            await self.send_content(problem.status, MEDIA_TYPE, to_json(problem.document()), problem.headers)

    async def send_content(
        self, status: int, media_type: str, content: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        all_headers = {"content-type": media_type, "content-length": str(len(content)), **(headers or {})}
        encoded = [(name.encode(), value.encode()) for name, value in all_headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": content})
