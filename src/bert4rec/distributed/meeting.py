"""How processes find each other, also after some of them were killed and started anew.

`torchrun` keeps one store for all its attempts, in which the addresses of killed processes are still to be found; and
how often it has started anew, each machine counts for itself. So the processes of an attempt agree on a name that no
earlier ones know, and meet under that name.
"""

import json
import time
from datetime import timedelta
from hashlib import sha256
from uuid import uuid4

from torch.distributed import Store

SECONDS_BETWEEN_LOOKS = 0.05


def meet(store: Store, rank: int, ranks: int, *, is_restarted: bool, patience: timedelta) -> tuple[str, bool]:
    """The name of this meeting, and whether any of its processes was restarted."""
    me = [uuid4().hex, is_restarted]
    store.set(f"here/{rank}", json.dumps(me))
    until = time.monotonic() + patience.total_seconds()
    while time.monotonic() < until:
        if rank == 0:
            store.set("list", json.dumps([json.loads(store.get(f"here/{each}")) for each in range(ranks)]))
        listed = store.get("list")
        name = sha256(listed).hexdigest()[:16]
        if me in (
            present := json.loads(listed)
        ):  # Otherwise it is the list of an earlier attempt, or not up to date.
            store.set(f"seen/{rank}", name)
            if rank == 0 and _have_all_seen(store, ranks, name):
                store.set(f"begin/{name}", "")
            if store.check([f"begin/{name}"]):
                return name, any(restarted for _, restarted in present)
        time.sleep(SECONDS_BETWEEN_LOOKS)
    raise RuntimeError("timed out waiting for other processes")


def _have_all_seen(store: Store, ranks: int, name: str) -> bool:
    keys = [f"seen/{each}" for each in range(ranks)]
    return store.check(keys) and all(store.get(key).decode() == name for key in keys)
