"""What must not be lost, hang or fall over: kill -9, full disks, lost databases, rude clients, junk.

Everything is bounded in count, stays on this machine, and talks to real server processes.
"""

import asyncio
import random
import resource
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2

from tests.service.postgres import Postgres
from tests.service.servers import PATIENCE, RunningServer, running

USERS = 8


def event(number: int) -> dict[str, str]:
    second = f"{number // 60 % 60:02}:{number % 60:02}"
    return {
        "event_id": f"e{number}",
        "user_id": f"u{number % USERS}",
        "item_id": f"i{number % 60 + 1}",
        "timestamp": f"2026-01-01T00:{second}Z",
    }


def post(client: httpx2.Client, numbers: Iterable[int]) -> httpx2.Response:
    return client.post("/v1/events", json={"events": [event(number) for number in numbers]})


def stored(client: httpx2.Client) -> Counter[str]:
    """How often each event id is in the histories of all users."""
    histories = [client.get(f"/v1/users/u{user}/history").json()["events"] for user in range(USERS)]
    return Counter(each["event_id"] for history in histories for each in history)


def assert_kept(client: httpx2.Client, acknowledged: set[int]) -> None:
    counts = stored(client)
    assert {f"e{number}" for number in acknowledged} <= set(counts)
    assert set(counts.values()) <= {1}


def test_every_acknowledged_event_survives_kill_minus_nine_exactly_once(
    exported_model: Path, store_url: str
) -> None:
    """Eight clients post without pause; the server dies in the middle, three times."""
    acknowledged: set[int] = set()

    def post_until_it_dies(server: RunningServer, first: int, enough: int) -> None:
        with server.client() as client:
            for number in range(first, first + 1000, 2):
                try:
                    # Every second event is also in the next request, as if its acknowledgement had been lost.
                    response = post(client, (number, number + 1, number + 2))
                except httpx2.HTTPError:
                    return
                assert response.status_code == 202
                acknowledged.update((number, number + 1, number + 2))
                if len(acknowledged) > enough:
                    server.kill()

    for first in (0, 10_000, 20_000):
        enough = len(acknowledged) + 150
        with running(exported_model, store=store_url) as server, ThreadPoolExecutor(USERS) as pool:
            clients = [
                pool.submit(post_until_it_dies, server, first + 1000 * place, enough)
                for place in range(USERS)
            ]
            for client_ in clients:
                client_.result()
        assert len(acknowledged) > enough
    with running(exported_model, store=store_url) as server, server.client() as client:
        assert_kept(client, acknowledged)
        again = post(client, sorted(acknowledged)[:1000]).json()
        assert again["accepted"] == 0
        assert again["duplicates"] == min(1000, len(acknowledged))


def test_a_full_disk_loses_nothing_that_was_acknowledged_and_passes(
    exported_model: Path, tmp_path: Path
) -> None:
    """The server's files may not grow any more: what a disk without room looks like to it. A line in the log says when
    that begins and one when it ends, whatever is read meanwhile."""
    store = f"sqlite:///{tmp_path}/history.db"
    acknowledged: set[int] = set()
    with running(exported_model, store=store) as server, server.client() as client:
        pid = server.process.pid
        unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (200_000, unlimited[1]))
        refused = 0
        for first in range(0, 20_000, 20):
            response = post(client, range(first, first + 20))
            if response.status_code == 202:
                acknowledged.update(range(first, first + 20))
            else:  # the next may still fit into what is left of some page
                refused += 1
            if refused == 20:
                break
        assert len(acknowledged) > 500
        for first in range(0, 2000, 20):
            response = post(client, range(50_000 + first, 50_020 + first))
            assert (response.status_code, response.json()["code"]) == (507, "store_full")
            assert client.get("/v1/users/u0/history").status_code == 200
        assert server.log.count(" stored events fail: the disk of the history store is full.") == 1
        assert "works again" not in server.log
        assert client.post("/v1/recommend", json={"history": ["i1"]}).status_code == 200
        assert_kept(client, acknowledged)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        assert post(client, [99_998]).status_code == 202
        while "works again" not in server.log:
            post(client, [99_998])
        acknowledged.add(99_998)
        server.kill()
    with running(exported_model, store=store) as server, server.client() as client:
        assert_kept(client, acknowledged)


def test_a_database_that_goes_away_comes_back_by_itself(exported_model: Path, postgres: Postgres) -> None:
    with running(exported_model, store=postgres.new_store()) as server, server.client() as client:
        assert post(client, range(100)).status_code == 202
        postgres.stop()
        try:
            for response in (
                post(client, [500]),
                client.post("/v1/recommend", json={"user_id": "u1"}),
                client.get("/v1/users/u1/history"),
            ):
                assert response.status_code == 503
                assert response.json()["code"] == "store_unavailable"
            assert client.post("/v1/recommend", json={"history": ["i1"]}).status_code == 200
            server.wait_for_line("Requests that write stored events fail: the history store is unavailable")
        finally:
            postgres.start()
        while (response := post(client, [501])).status_code == 503:
            pass
        assert response.json()["accepted"] == 1
        while "The history store works again" not in server.log:
            post(client, [501])
        assert_kept(client, {*range(100), 501})
        assert client.post("/v1/recommend", json={"user_id": "u1"}).json()["context"]["source"] == "store"


def request_bytes(body: bytes, *, length: int | None = None, extra: bytes = b"") -> bytes:
    head = b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + extra + b"Content-Length: %d\r\n\r\n" % (len(body) if length is None else length) + body


def test_clients_that_hang_up_are_forgotten(exported_model: Path) -> None:
    whole = request_bytes(b'{"history": ["i1", "i2"], "k": 500}')
    with running(exported_model) as server, server.client() as client:
        for number in range(200):
            with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
                connection.sendall(whole if number % 2 else whole[:-10])
                # Closing then means a reset, as when a process dies or a cable is cut.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        while metric(client, 'bert4rec_requests_total{code="499",route="/v1/recommend"}') < 100:
            pass
        assert client.post("/v1/recommend", json={"history": ["i1"]}).status_code == 200
        assert metric(client, "bert4rec_queue_depth") == 0
        assert server.stop() == 0
        assert "Traceback" not in server.log


def metric(client: httpx2.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} ")), 0.0)


VALID = b'{"history": ["i1", "i2", "i3"], "k": 10, "exclude_seen": true, "candidates": null}'
PATHS = [
    b"/",
    b"/v1/recommend",
    b"/v1/users/u/history",
    b"/v1/items/i1/similar?k=\xff",
    b"/metrics",
    b"/%00",
    b"*",
]
METHODS = [b"GET", b"POST", b"DELETE", b"PATCH", b"TRACE", b"BREW", b"get", b""]
CLOSE = b"Connection: close\r\n"


def noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randint(1, 400)) + b"\r\n\r\n"


def odd_head(rng: random.Random) -> bytes:
    version = rng.choice([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"HTTP"])
    names = [
        rng.choice([b"X-API-Key: ", b"Authorization: Bearer ", b"X-Request-ID: ", b"Content-Length: ", b": "])
    ]
    header = names[0] + rng.randbytes(rng.randint(0, 30)).replace(b"\n", b"")
    line = b" ".join([rng.choice(METHODS), rng.choice(PATHS), version])
    return line + b"\r\nHost: localhost\r\n" + CLOSE + header + b"\r\n\r\n"


def many_headers(rng: random.Random) -> bytes:
    headers = b"".join(b"X-%d: %d\r\n" % (number, number) for number in range(rng.randint(100, 500)))
    return request_bytes(VALID, extra=CLOSE + headers)


def mutated_json(rng: random.Random) -> bytes:
    body = bytearray(VALID)
    for _ in range(rng.randint(1, 5)):
        body[rng.randrange(len(body))] = rng.choice(b'{}[]",:0123456789eE.-\\\x00\xffiu')
    return request_bytes(bytes(body), extra=CLOSE)


def deep_json(rng: random.Random) -> bytes:
    return request_bytes(rng.choice([b"[", b'{"history":']) * rng.randint(100, 5000), extra=CLOSE)


def wrong_length(rng: random.Random) -> bytes:
    """Too short: what is left over is the next request. Too long: the rest never comes."""
    return request_bytes(VALID, length=rng.choice([0, 5, len(VALID) + 50, 2**40]), extra=CLOSE)


def odd_chunks(rng: random.Random) -> bytes:
    head = b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Transfer-Encoding: chunked\r\n"
    chunks = rng.choice(
        [b"zz\r\n", b"5\r\nabc", b"0\r\n\r\n", b"ffffffffffffffff\r\nabc", b"2\r\n{}\r\n0\r\n\r\n"]
    )
    return head + CLOSE + b"\r\n" + chunks


JUNK: list[Callable[[random.Random], bytes]] = [
    noise,
    odd_head,
    many_headers,
    mutated_json,
    deep_json,
    wrong_length,
    odd_chunks,
]


WHOLE = (many_headers, mutated_json)
"""Requests that end by themselves. Of all others it has to be said that nothing follows; who says so at once may get no
answer, since it looks like hanging up."""


async def send_junk(port: int, make: Callable[[random.Random], bytes], rng: random.Random) -> int:
    """The status of the answer, 0 where the connection just ends. Nothing may take for ever."""
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(make(rng))
            if make not in WHOLE:
                writer.write_eof()
            answer = await reader.read()
        except ConnectionError:
            answer = b""
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    return int(answer[9:12]) if answer else 0


def test_ten_thousand_junk_requests_change_nothing(exported_model: Path) -> None:
    rng = random.Random(1)

    async def send_all(port: int) -> Counter[int]:
        statuses: Counter[int] = Counter()
        for _ in range(10_000 // 50):
            kinds = rng.choices(JUNK, k=50)
            statuses.update(await asyncio.gather(*(send_junk(port, make, rng) for make in kinds)))
        return statuses

    with running(exported_model) as server:
        statuses = asyncio.run(send_all(server.port))
        with server.client() as client:
            answer: dict[str, Any] = client.post("/v1/recommend", json={"history": ["i1"], "k": 3}).json()
            assert len(answer["items"]) == 3
        assert sum(statuses.values()) == 10_000
        assert not [status for status in statuses if status >= 500]
        assert {400, 404, 405, 413, 422} <= set(statuses)
        assert server.stop() == 0
        assert "Traceback" not in server.log
