"""What a client may cost before a request of its is even looked at."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from bert4rec.service.server import MAX_HEAD, MAX_PIPELINE, BoundedProtocol
from uvicorn.server import ServerState

from bert4rec.service import server
from tests.service.servers import PATIENCE
from tests.service.test_batcher import in_a_loop

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Application:
    """Says yes to everything, when it has heard it all and as soon as it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, _scope: Any, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        while (await receive())["more_body"]:
            pass
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
        await send({"type": "http.response.body", "body": b"yes"})


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Application, Streams]]:
    application = Application()
    config = uvicorn.Config(application, http=BoundedProtocol, log_config=None, lifespan="off")
    config.load()
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: BoundedProtocol(config, ServerState(), {}), "127.0.0.1", 0)
    async with listening, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        yield application, (reader, writer)
        writer.close()


@in_a_loop
async def test_a_head_without_end_is_refused() -> None:
    async with connected() as (_, (reader, writer)):
        writer.write(b"GET / HTTP/1.1\r\nX: ".ljust(MAX_HEAD + 1, b"x"))
        assert (await reader.read()).startswith(b"HTTP/1.1 400")


@in_a_loop
async def test_a_body_may_be_larger_than_a_head() -> None:
    async with connected() as (_, (reader, writer)):
        head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (3 * MAX_HEAD) + b"x" * 3 * MAX_HEAD)
        assert (await reader.read()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("count", "answers"), [(MAX_PIPELINE + 1, MAX_PIPELINE + 1), (MAX_PIPELINE + 2, 0)])
@in_a_loop
async def test_only_so_many_requests_are_taken_ahead_of_their_answers(count: int, answers: int) -> None:
    async with connected() as (application, (reader, writer)):
        application.may_answer.clear()
        writer.write(GET * count)
        if answers:
            application.may_answer.set()
            for _ in range(answers):
                assert (await reader.readuntil(b"yes")).startswith(b"HTTP/1.1 200")
        else:
            assert (await reader.read()).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"\r\n", GET + b"\r\n", GET + b"GET"])
@in_a_loop
async def test_a_connection_on_which_no_request_comes_is_closed(said: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "HEAD_TIMEOUT", 0.05)
        async with connected() as (_, (reader, writer)):
            if said.startswith(GET):
                writer.write(GET)
                await reader.readuntil(b"yes")
            writer.write(said.removeprefix(GET))
            assert await reader.read() == b""


@in_a_loop
async def test_an_answer_may_take_longer_than_a_head() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "HEAD_TIMEOUT", 0.02)
        async with connected() as (application, (reader, writer)):
            application.may_answer.clear()
            writer.write(GET)
            asyncio.get_running_loop().call_later(0.1, application.may_answer.set)
            assert (await reader.readuntil(b"yes")).startswith(b"HTTP/1.1 200")
