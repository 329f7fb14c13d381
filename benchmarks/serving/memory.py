"""What the service holds: over many requests, and while clients do not read their answers."""

import asyncio
import socket
import time
from contextlib import ExitStack
from functools import partial

import numpy as np

from benchmarks.load import HOST, Crowd, Outcome, closed_loop, post, run
from benchmarks.serving.models import BEAUTY, SMALL, Shape
from benchmarks.serving.plan import Found, Plan, told
from benchmarks.serving.servers import Version, serving
from benchmarks.serving.speed import USUAL

UNREAD, LARGEST_BATCH, LARGEST_K = 60, 256, 500
"""An answer to the largest batch takes about 11 MB."""
UNFINISHED, LARGEST_BODY = 500, 2**20
ARRIVING, STAYING = 15.0, 5.0
"""Seconds. All at once, the queue would refuse most of them, and there would be no answers to leave unread."""
SINGLES_PER_SECOND = 20
PARTS = 10


def requests(plan: Plan) -> Found:
    """Resident memory over many requests, half of them by user id: at the start, at every tenth, and its slope."""

    def one(version: Version) -> Found:
        with serving(version, SMALL.folder(version)) as server:
            mixed = [*SMALL.by_user(server), *SMALL.by_history()]
            closed_loop(server.port, mixed, connections=USUAL, seconds=1)
            resident = [server.resident_mb()]
            for _ in range(PARTS):
                crowd = Crowd(server.port, mixed, connections=USUAL)
                run(crowd.closed_loop(float("inf"), limit=plan.requests // PARTS))
                resident.append(server.resident_mb())
        # The first tenths fill caches; what counts is whether it goes on.
        second_half = resident[PARTS // 2 :]
        per_part = np.polyfit(np.arange(len(second_half)), second_half, 1)[0]
        return {
            "requests": plan.requests,
            "resident_mb": [round(each, 1) for each in resident],
            "second_half_mb_per_million": round(float(per_part) * PARTS * 1e6 / plan.requests, 2),
        }

    return plan.each(one)


def unread(plan: Plan) -> Found:
    """Clients that ask for large answers and never read them, and clients that never end a large request."""
    kinds = {
        "small": (SMALL, _never_read(SMALL)),
        "beauty": (BEAUTY, _never_read(BEAUTY)),
        "unfinished": (SMALL, _never_end()),
    }
    return plan.each_kind({kind: partial(_beside, plan, *which) for kind, which in kinds.items()})


def _never_read(shape: Shape) -> list[bytes]:
    return [shape.batch(LARGEST_BATCH, k=LARGEST_K, length=1)] * UNREAD


def _never_end() -> list[bytes]:
    """All but the last byte of the largest body that the service takes."""
    whole = post("/v1/recommend/batch", {"requests": ["x" * (LARGEST_BODY - 100)]})
    return [whole[:-1]] * UNFINISHED


def _beside(plan: Plan, shape: Shape, sent: list[bytes], version: Version) -> Found:
    """Memory before, at its highest and afterwards, and how others are answered meanwhile."""
    requests = shape.by_history()
    with serving(version, shape.folder(version)) as server:
        closed_loop(server.port, requests, connections=USUAL, seconds=1)
        before = server.resident_mb()
        server.forget_peak()
        singles = run(_singles_beside(server.port, requests, sent))
        peak = server.peak_mb()
        time.sleep(1)  # for the server to see that they are gone
        after = closed_loop(server.port, requests, connections=USUAL, seconds=plan.turn)
        return {
            "before_mb": round(before),
            "peak_mb": round(peak),
            "after_mb": round(server.resident_mb()),
            "singles": told(singles),
            "afterwards": told(after),
        }


async def _singles_beside(port: int, requests: list[bytes], sent: list[bytes]) -> Outcome:
    loop = asyncio.get_running_loop()
    singles = asyncio.create_task(
        Crowd(port, requests, connections=USUAL).paced(ARRIVING + STAYING, SINGLES_PER_SECOND)
    )
    with ExitStack() as stack:
        sending = []
        for content in sent:
            connection = stack.enter_context(socket.create_connection((HOST, port)))
            connection.setblocking(False)
            sending.append(loop.create_task(loop.sock_sendall(connection, content)))
            await asyncio.sleep(ARRIVING / len(sent))
        outcome = await singles
        for task in sending:  # a server may refuse to read it all, and close the connection
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
    return outcome
