"""Requests with a JSON body: read into their shape, answered, written.

FastAPI describes them in its document, but they do not pass through it: it would parse the body into dictionaries
first, look for dependencies that we do not have, and so double the time a request spends outside the model.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json

from bert4rec.service.answer import Answer
from bert4rec.service.problems import ProblemError, invalid_body


@dataclass(frozen=True)
class Operation:
    """What `POST` on one path does. `call` takes the checked body and gives the content of the answer."""

    call: Callable[[Any], Awaitable[dict[str, Any]]]
    content: type[BaseModel]
    """The shape of what it gives, for the document."""
    status: int = 200

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        (body,) = inspect.signature(self.call).parameters.values()
        return TypeAdapter(body.annotation)

    async def __call__(self, headers: Mapping[bytes, bytes], body: bytes, answer: Answer) -> None:
        media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if media_type != b"application/json":
            # Also keeps pages of other origins from posting here without a browser asking first.
            raise ProblemError(415, "unsupported_media_type", "Send JSON, as Content-Type: application/json.")
        try:
            checked = self._adapter.validate_json(body)
        except ValidationError as error:
            raise invalid_body(error) from error
        await answer.send_content(self.status, "application/json", to_json(await self.call(checked)))
