"""Whether acknowledged events survive: clients post events while the server is killed again and again.

A kill with -9 loses what the process held, not what the system had yet to write; a power cut is not tried here.
"""

import asyncio
import json
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.load import HOST, post
from benchmarks.serving.models import SMALL
from benchmarks.serving.plan import Found, Plan
from benchmarks.serving.servers import Server, Version, free_port, launch, serving

CLIENTS = 8
EVENTS_PER_USER = 500
"""So that a whole history fits into one answer."""
MOST_EVENTS = 3
"""Of one request: they must be stored together."""
LIFE = 0.3
"""Seconds that a server lives at most after its first answer."""
EARLY = 0.1
"""Share of the kills that come while the server is starting."""
PATIENCE = 60


def kills(plan: Plan) -> Found:
    """Every event that was acknowledged must be there in the end, once."""
    return plan.each(lambda version: _kills(version, plan))


def _kills(version: Version, plan: Plan) -> Found:
    with TemporaryDirectory() as folder:
        store = plan.store or f"sqlite:///{folder}/history.db"
        run = f"{time.time_ns():x}"
        clients = [Client(f"{run}-{number}") for number in range(CLIENTS)]
        asyncio.run(_kill_again_and_again(version, clients, plan.count, store, Path(folder) / "log"))
        with serving(version, SMALL.folder(version), store=store) as server:
            found = Counter[tuple[str, str]]()
            for client in clients:
                found += client.stored(server)
    acknowledged = {event for client in clients for event in client.acknowledged}
    return {
        "kills": plan.count,
        "store": store.partition(":")[0],
        "acknowledged": len(acknowledged),
        "attempts_without_answer": sum(client.unanswered for client in clients),
        "lost": len(acknowledged - found.keys()),
        "doubled": sum(count > 1 for count in found.values()),
        "never_acknowledged": len(found.keys() - acknowledged),
    }


@dataclass
class Client:
    """Posts events of its users, each request again until it is acknowledged."""

    name: str
    acknowledged: list[tuple[str, str]] = field(default_factory=list)
    """Event and item."""
    unanswered: int = 0
    _connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post_until(self, enough: asyncio.Event, port: int, answered: asyncio.Event) -> None:
        rng = random.Random(self.name)
        while not enough.is_set():
            events = [self._event(place, rng) for place in range(rng.randint(1, MOST_EVENTS))]
            request = post("/v1/events", {"events": events})
            while (answer := await self._ask(port, request)) is None:
                self.unanswered += 1
            assert answer["accepted"] + answer["duplicates"] == len(events), answer
            self.acknowledged += [(each["event_id"], each["item_id"]) for each in events]
            answered.set()

    def _event(self, place: int, rng: random.Random) -> dict[str, str]:
        number = len(self.acknowledged) + place
        return {
            "event_id": f"{self.name}-{number}",
            "user_id": self._user(number),
            "item_id": f"i{rng.randint(1, SMALL.items)}",
            "timestamp": "2026-01-01T00:00:00Z",
        }

    def _user(self, number: int) -> str:
        return f"{self.name}-{number // EVENTS_PER_USER}"

    async def _ask(self, port: int, request: bytes) -> Any:
        """The answer; None if there was none, or the server was not able to store."""
        try:
            async with asyncio.timeout(PATIENCE):
                self._connection = self._connection or await asyncio.open_connection(HOST, port)
                reader, writer = self._connection
                writer.write(request)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                body = await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        except (OSError, EOFError):
            if self._connection:
                self._connection[1].close()
                self._connection = None
            await asyncio.sleep(0.01)
            return None
        return json.loads(body) if head.split()[1] == b"202" else None

    def stored(self, server: Server) -> Counter[tuple[str, str]]:
        found = Counter[tuple[str, str]]()
        for first in range(0, len(self.acknowledged) + MOST_EVENTS, EVENTS_PER_USER):
            history = server.get(f"/v1/users/{self._user(first)}/history?limit=1000")
            found.update((event["event_id"], event["item_id"]) for event in history["events"])
        return found


async def _kill_again_and_again(
    version: Version, clients: list[Client], count: int, store: str, log: Path
) -> None:
    rng = random.Random(1)
    port, model = free_port(), SMALL.folder(version)
    enough, answered = asyncio.Event(), asyncio.Event()
    posting = asyncio.gather(*(client.post_until(enough, port, answered) for client in clients))
    for number in range(count + 1):
        began = time.perf_counter()
        process = launch(version, model, store=store, log=log, port=port)
        try:
            answered.clear()
            if rng.random() < EARLY and number < count:
                await asyncio.sleep(rng.uniform(0, 0.7))
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(answered.wait(), PATIENCE)
            assert answered.is_set(), f"no answer in {time.perf_counter() - began:.0f} s:\n{log.read_text()}"
            if number == count:  # the last one lives until everything is acknowledged
                enough.set()
                await posting
            else:
                await asyncio.sleep(rng.uniform(0, LIFE))
        finally:
            process.kill()
            process.wait()
