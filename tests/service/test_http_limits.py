"""What a client may cost: heads, bodies, connections, and answers that it does not read."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from bert4rec.service.http import connections as bounds
from bert4rec.service.http.connection import CLIENT_GONE, Connection
from bert4rec.service.http.connections import MAX_HEAD, MAX_PIPELINE, Connections
from bert4rec.service.http.messages import Head, Response
from tests.service.servers import PATIENCE
from tests.service.test_batcher import in_a_loop

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
MAX_BODY = 2**20


class Handler:
    """Says yes to every body as soon as it may; refuses whoever asks for /no, and answers /much without end."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.opened: list[Head] = []
        self.bodies: list[bytes] = []
        self.closed: list[int] = []
        self.parts = 0

    def open(self, head: Head) -> "Exchange":
        self.opened.append(head)
        exchange = Exchange(self, head.path)
        if head.path == "/no":
            exchange.refuse(401, "no", "no")
        return exchange

    def refuse(self, status: int, code: str, detail: str) -> "Exchange":
        exchange = Exchange(self, "")
        exchange.refuse(status, code, detail)
        return exchange

    def much(self) -> Iterator[bytes]:
        for self.parts in itertools.count():
            yield bytes(30_000)


@dataclass
class Exchange:
    handler: Handler
    path: str
    refusal: Response | None = None
    identity: str = field(default="id")

    def refuse(self, status: int, code: str, detail: str) -> None:
        self.refusal = Response(b"no", status=status)

    async def respond(self, body: bytes) -> Response:
        self.handler.bodies.append(body)
        await self.handler.may_answer.wait()
        match self.path:
            case "/much":
                return Response(self.handler.much())
            case "/large":
                return Response(bytes(2**24))  # more than the system holds on the way
        return Response(b"yes")

    def close(self, status: int, sent: int) -> None:
        self.handler.closed.append(status)


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Handler, Connections, int]]:
    handler = Handler()
    connections = Connections(handler, max_body=MAX_BODY)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(connections), "127.0.0.1", 0)
    async with server, asyncio.timeout(PATIENCE):
        yield handler, connections, server.sockets[0].getsockname()[1]
        await connections.close(grace=0)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Handler, Streams]]:
    async with listening() as (handler, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        yield handler, (reader, writer)
        writer.close()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything may take a moment only."""
    for name in ("HEAD_TIMEOUT", "BODY_TIMEOUT", "WRITE_TIMEOUT", "LINGER"):
        monkeypatch.setattr(bounds, name, 0.05)
    monkeypatch.setattr(bounds, "SWEEP_EVERY", 0.01)


def post(body: bytes, *headers: bytes, path: bytes = b"/", length: int | None = None) -> bytes:
    lines = [b"POST %b HTTP/1.1" % path, b"Host: x", *headers]
    lines.append(b"Content-Length: %d" % (len(body) if length is None else length))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


# Heads


@pytest.mark.parametrize("ending", [b"", b"\r\n\r\n"])
@in_a_loop
async def test_a_head_that_is_too_large_is_refused_whether_it_ends_or_not(ending: bytes) -> None:
    """Also where all of it comes at once."""
    async with connected() as (handler, (reader, writer)):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX: ".ljust(MAX_HEAD + 100_000, b"x") + ending)
        assert (await reader.read()).startswith(b"HTTP/1.1 431")
        assert handler.opened == []


@in_a_loop
async def test_many_small_headers_are_one_large_head() -> None:
    async with connected() as (handler, (reader, writer)):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 40_000 + b"\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 431")
        assert handler.opened == []


@in_a_loop
async def test_a_head_may_come_in_pieces_and_right_behind_a_body() -> None:
    async with connected() as (_, (reader, writer)):
        head = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(
            b"x%d: %b\r\n" % (n, b"x" * 9000) for n in range(6)
        )
        for place in range(0, len(head), 9000):
            writer.write(head[place : place + 9000])
            await writer.drain()
            await asyncio.sleep(0.001)
        writer.write(b"\r\n")
        assert (await reader.readuntil(b"yes")).startswith(b"HTTP/1.1 200")
        request = post(bytes(100_000))
        writer.write(request[:10_000])
        await asyncio.sleep(0.01)
        writer.write(request[10_000:] + GET[:10])
        assert (await reader.readuntil(b"yes")).startswith(b"HTTP/1.1 200")
        writer.write(GET[10:])
        assert (await reader.readuntil(b"yes")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("hosts", [0, 2])
@in_a_loop
async def test_a_request_names_one_host(hosts: int) -> None:
    async with connected() as (handler, (reader, writer)):
        writer.write(b"GET / HTTP/1.1\r\n" + b"Host: x\r\n" * hosts + b"\r\n")
        assert (await reader.readuntil(b"no")).startswith(b"HTTP/1.1 400")
        assert handler.opened == []


@in_a_loop
async def test_in_the_first_version_of_http_a_host_may_be_missing_and_the_connection_ends() -> None:
    async with connected() as (_, (reader, writer)):
        writer.write(b"GET /much HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".replace(b"much", b"small"))
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"connection: close\r\n\r\nyes")


@in_a_loop
async def test_trailers_are_not_headers() -> None:
    async with connected() as (handler, (reader, writer)):
        writer.write(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: X-API-Key\r\n\r\n"
            b"2\r\nab\r\n0\r\nX-API-Key: secret\r\n\r\n"
        )
        await reader.readuntil(b"yes")
        assert handler.bodies == [b"ab"]
        assert b"x-api-key" not in handler.opened[0].headers


@in_a_loop
async def test_of_a_header_that_is_sent_twice_the_first_counts() -> None:
    async with connected() as (handler, (reader, writer)):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nA: 1\r\na: 2\r\n\r\n")
        await reader.readuntil(b"yes")
        assert handler.opened[0].headers[b"a"] == b"1"


@in_a_loop
async def test_a_head_alone_is_answered_by_a_head_alone() -> None:
    async with connected() as (_, (reader, writer)):
        writer.write(GET.replace(b"GET", b"HEAD") + GET)
        first = await reader.readuntil(b"\r\n\r\n")
        assert b"content-length: 3\r\n" in first
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(3) == b"yes"


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"\r\n", GET + b"\r\n", GET + b"GET"])
@pytest.mark.usefixtures("hurried")
@in_a_loop
async def test_a_connection_on_which_no_request_comes_is_closed(said: bytes) -> None:
    async with connected() as (_, (reader, writer)):
        if said.startswith(GET):
            writer.write(GET)
            await reader.readuntil(b"yes")
        writer.write(said.removeprefix(GET))
        assert await reader.read() == b""


@pytest.mark.usefixtures("hurried")
@in_a_loop
async def test_an_answer_may_take_longer_than_a_head() -> None:
    async with connected() as (handler, (reader, writer)):
        handler.may_answer.clear()
        writer.write(GET)
        asyncio.get_running_loop().call_later(0.2, handler.may_answer.set)
        assert (await reader.readuntil(b"yes")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "junk", [b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET %ff HTTP/1.1\r\nHost: x\r\n\r\n"]
)
@in_a_loop
async def test_what_is_no_request_is_refused_and_the_connection_ends(junk: bytes) -> None:
    async with connected() as (_, (reader, writer)):
        writer.write(junk)
        writer.write_eof()
        assert (await reader.read()).startswith(b"HTTP/1.1 400")


@in_a_loop
async def test_a_path_is_decoded_and_one_that_is_no_text_is_refused() -> None:
    async with connected() as (handler, (reader, writer)):
        writer.write(b"GET /%C3%BC%2F?a=%C3%BC HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"yes")
        assert (handler.opened[0].path, handler.opened[0].query) == ("/ü/", b"a=%C3%BC")
        writer.write(b"GET /%ff HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"no")).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(("path", "status"), [(b"/", b"200"), (b"/no", b"401")])
@in_a_loop
async def test_another_protocol_that_is_offered_is_not_taken_up(path: bytes, status: bytes) -> None:
    """And the client is told that nothing more is read."""
    async with connected() as (_, (reader, writer)):
        writer.write(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n" % path)
        writer.write(GET)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert answer.count(b"HTTP/1.1") == 1
        assert b"connection: close" in answer


# Bodies


@in_a_loop
async def test_a_body_may_be_larger_than_a_head_and_comes_whole() -> None:
    async with connected() as (handler, (reader, writer)):
        body = bytes(range(256)) * 1000
        writer.write(post(body))
        assert (await reader.readuntil(b"yes")).startswith(b"HTTP/1.1 200")
        assert handler.bodies == [body]


@in_a_loop
async def test_a_body_that_is_announced_as_too_large_is_refused_before_it_comes() -> None:
    async with connected() as (handler, (reader, writer)):
        writer.write(post(b"", length=MAX_BODY + 1))
        assert (await reader.read()).startswith(b"HTTP/1.1 413")
        assert handler.opened == []


@in_a_loop
async def test_a_body_that_becomes_too_large_is_refused() -> None:
    async with connected() as (handler, (reader, writer)):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(17):
            writer.write(b"10000\r\n" + bytes(2**16) + b"\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 413")
        assert handler.bodies == []
        assert handler.closed == [413]


@pytest.mark.usefixtures("hurried")
@in_a_loop
async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async with connected() as (_, (reader, writer)):
        writer.write(post(b"abc", length=10))
        assert (await reader.read()).startswith(b"HTTP/1.1 408")


@in_a_loop
async def test_a_client_that_asks_first_is_told_to_go_on_or_not_to() -> None:
    async with connected() as (_, (reader, writer)):
        writer.write(post(b"", b"Expect: 100-continue", length=3))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert (await reader.readuntil(b"yes")).startswith(b"HTTP/1.1 200")
        writer.write(post(b"", b"Expect: 100-continue", path=b"/no", length=3))
        assert (await reader.read()).startswith(b"HTTP/1.1 401")


@in_a_loop
async def test_a_refused_head_has_no_content_and_an_old_client_is_not_told_to_go_on() -> None:
    async with connected() as (_, (reader, writer)):
        writer.write(post(b"", path=b"/no", length=9).replace(b"POST", b"HEAD"))
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 401") and answer.endswith(b"\r\n\r\n")
    async with connected() as (_, (reader, writer)):
        writer.write(post(b"abc", b"Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (await reader.read()).startswith(b"HTTP/1.1 200")


@in_a_loop
async def test_whoever_is_refused_may_ask_again_if_all_was_read() -> None:
    async with connected() as (handler, (reader, writer)):
        writer.write(post(b"abc", path=b"/no"))
        assert (await reader.readuntil(b"no")).startswith(b"HTTP/1.1 401")
        writer.write(post(b"abc"))
        assert (await reader.readuntil(b"yes")).startswith(b"HTTP/1.1 200")
        assert handler.closed == [401, 200]


@in_a_loop
async def test_the_body_of_whoever_is_refused_is_not_read_on() -> None:
    """A client that sends without end is cut off, and has its answer nevertheless."""
    async with connected() as (handler, (reader, writer)):
        writer.write(post(b"x", path=b"/no", length=MAX_BODY))
        assert b"connection: close" in await reader.readuntil(b"no")
        sent = 0
        with pytest.raises(ConnectionError):
            while True:
                writer.write(bytes(2**16))
                await writer.drain()
                sent += 2**16
        assert sent < 20 * MAX_BODY  # what the system holds on the way
        assert handler.closed == [401]


@in_a_loop
async def test_all_requests_together_may_hold_so_much() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "MAX_RECEIVED", 3 * 2**19)
        async with listening() as (_, connections, port):
            first = await asyncio.open_connection("127.0.0.1", port)
            first[1].write(post(bytes(2**20 - 1), length=2**20))
            while connections.received < 2**20:
                await asyncio.sleep(0)
            second = await asyncio.open_connection("127.0.0.1", port)
            second[1].write(post(bytes(2**20 - 1), length=2**20))
            assert (await second[0].read()).startswith(b"HTTP/1.1 503")
            first[1].write(b"x")
            assert (await first[0].readuntil(b"yes")).startswith(b"HTTP/1.1 200")
            assert connections.received == 0
            for _, writer in (first, second):
                writer.close()


@in_a_loop
async def test_what_is_answered_is_no_longer_held_though_more_is_always_under_way() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "MAX_RECEIVED", 10 * len(GET))
        async with listening() as (_, connections, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET * 4)
            for _ in range(100):
                assert (await reader.readuntil(b"yes")).startswith(b"HTTP/1.1 200")
                writer.write(GET)
            for _ in range(4):
                await reader.readuntil(b"yes")
            assert connections.received == 0
            writer.close()


@in_a_loop
async def test_a_request_that_is_complete_gets_one_answer_however_much_is_held() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "MAX_RECEIVED", 10)
        async with connected() as (_, (reader, writer)):
            writer.write(GET)
            await reader.readuntil(b"yes")
            writer.write(GET)
            assert (await reader.readuntil(b"yes")).count(b"HTTP/1.1 200") == 1


# Pipelines and connections


@pytest.mark.parametrize(("count", "answers"), [(MAX_PIPELINE + 1, MAX_PIPELINE + 1), (MAX_PIPELINE + 2, 0)])
@in_a_loop
async def test_only_so_many_requests_are_taken_ahead_of_their_answers(count: int, answers: int) -> None:
    async with connected() as (handler, (reader, writer)):
        handler.may_answer.clear()
        writer.write(GET * count)
        while len(handler.opened) < MAX_PIPELINE + 1:
            await asyncio.sleep(0)
        handler.may_answer.set()
        for _ in range(MAX_PIPELINE + 1):
            assert (await reader.readuntil(b"yes")).startswith(b"HTTP/1.1 200")
        if not answers:
            assert (await reader.read()).startswith(b"HTTP/1.1 400")


@in_a_loop
async def test_answers_come_in_the_order_of_the_requests() -> None:
    async with connected() as (_, (reader, writer)):
        writer.write(GET + post(b"x", path=b"/no") + GET.replace(b"GET", b"HEAD") + GET)
        answer = b""
        while answer.count(b"HTTP/1.1") < 4 or not answer.endswith(b"yes"):
            answer += await reader.read(1000)
        assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"401", b"200", b"200"]


@in_a_loop
async def test_a_client_that_hangs_up_stops_the_work_on_all_its_requests() -> None:
    async with connected() as (handler, (_, writer)):
        handler.may_answer.clear()
        writer.write(GET * 3)
        while len(handler.opened) < 3:
            await asyncio.sleep(0)
        writer.close()
        while len(handler.closed) < 3:
            await asyncio.sleep(0)
        assert handler.closed == [CLIENT_GONE] * 3


@in_a_loop
async def test_past_the_bound_on_connections_the_next_is_told_so() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "MAX_CONNECTIONS", 2)
        async with listening() as (_, connections, port):
            writers = []
            for number in range(2):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writers.append(writer)
                while len(connections) <= number:
                    await asyncio.sleep(0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert (await reader.read()).startswith(b"HTTP/1.1 503")
            for each in (*writers, writer):
                each.close()


# Answers that are not read


@in_a_loop
async def test_an_answer_in_parts_is_made_as_fast_as_it_is_read() -> None:
    async with connected() as (handler, (reader, writer)):
        writer.write(GET.replace(b"/ ", b"/much "))
        before = -1
        while handler.parts > before or not handler.parts:  # until nothing more fits on the way
            before = handler.parts
            await asyncio.sleep(0.05)
        assert handler.parts < 1000
        await reader.readexactly(2 * 30_000 * handler.parts)
        assert handler.parts > before


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("path", [b"/much", b"/large"])
@in_a_loop
async def test_an_answer_that_nobody_reads_is_given_up(path: bytes) -> None:
    async with listening() as (handler, connections, port):
        # A small buffer on our side, so that not all of it is on the way.
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**10)
        writer.write(GET.replace(b"/ ", path + b" "))
        while not connections.unread:
            await asyncio.sleep(0)
        while len(connections):
            await asyncio.sleep(0)
        assert handler.closed == [CLIENT_GONE]
        writer.close()
        del reader


@in_a_loop
async def test_what_all_clients_leave_unread_is_bounded_and_the_oldest_is_given_up_first() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "MAX_BUFFERED", 2**18)
        async with listening() as (_, connections, port):
            streams = []
            for _ in range(8):
                streams.append(await asyncio.open_connection("127.0.0.1", port, limit=2**10))
                streams[-1][1].write(GET.replace(b"/ ", b"/large "))
            while not connections.unread:
                await asyncio.sleep(0)
            reader, _ = streams[-1]
            assert len(await reader.readexactly(2**21)) == 2**21, "the newest is still being sent"
            for _, each in streams:
                each.close()


# The end


@in_a_loop
async def test_when_draining_every_answer_is_the_last_on_its_connection() -> None:
    async with listening() as (_, connections, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        assert b"connection: close" not in await reader.readuntil(b"yes")
        connections.is_draining = True
        writer.write(GET)
        assert (await reader.read()).endswith(b"connection: close\r\n\r\nyes")
        writer.close()


@in_a_loop
async def test_closing_waits_for_answers_and_ends_what_is_idle_at_once() -> None:
    async with listening() as (handler, connections, port):
        idle, busy = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        handler.may_answer.clear()
        busy[1].write(GET)
        while not handler.bodies:
            await asyncio.sleep(0)
        connections.is_draining = True
        closing = asyncio.create_task(connections.close(grace=PATIENCE))
        assert await idle[0].read() == b""
        assert not closing.done()
        handler.may_answer.set()
        assert (await busy[0].read()).endswith(b"yes")
        assert await closing == 0
        for _, writer in (idle, busy):
            writer.close()
