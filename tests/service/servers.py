"""Real servers in processes of their own, and models for them to serve."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import numpy as np

from bert4rec.artefact import write_manifest
from tests.spoken import Spoken

BERT4REC = str(Path(sys.executable).parent / "bert4rec")
TRAINED = {
    "model": "bert4rec+",
    "stage": "production",
    "until": "2026-01-31T12:00:00+00:00",
    "actions": 1234,
    "users": 56,
    "items": 60,
    "metrics": {"full": 0.1234, "sampled": 0.5678},
}
"""What a manifest says of the training of a model."""
LARGE_ID = 2**53 + 1
"""The first integer that JavaScript's numbers cannot hold."""
PATIENCE = 60
"""Seconds after which a test gives up waiting; never how long it waits when all is well."""


class RunningServer:
    """`bert4rec serve`, listening on a port of its own choosing."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stderr
        self._spoken = Spoken(process.stderr)
        self.wait_for_line = self._spoken.wait_for_line
        self.address = self.wait_for_line(r"Serving on (.+?) \(page").group(1)
        """As `https://127.0.0.1:8000` or `unix socket /run/socket`."""
        self.port = int(self.address.rpartition(":")[2]) if "://" in self.address else 0

    @property
    def log(self) -> str:
        return self._spoken.text

    def client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.address, timeout=PATIENCE)

    def stop(self) -> int:
        """Ask it to end; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        self._spoken.wait_for_end()
        return code

    def kill(self) -> None:
        """Without warning, with all its workers. Several threads may want it dead."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        self._spoken.wait_for_end()


@contextmanager
def running(
    model: Path, *options: str, store: str | None = None, temporary: Path | None = None
) -> Iterator[RunningServer]:
    """A server for `model`, with a store of its own and no delay at its end unless told otherwise."""
    drain = () if "--drain" in options else ("--drain", "0.0")
    store = store or f"sqlite:///{model.parent / f'history-{os.urandom(4).hex()}.db'}"
    stored = () if "--store" in options else ("--store", store)
    with subprocess.Popen(
        [BERT4REC, "serve", str(model), "--port", "0", *stored, *drain, *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **({"TMPDIR": str(temporary)} if temporary else {})},
        start_new_session=True,
    ) as process:
        try:
            yield RunningServer(process)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def variant(
    model: Path,
    target: Path,
    version: str,
    *,
    favourite: int | None = None,
    whole_numbers: bool = False,
    **facts: object,
) -> Path:
    """The same model under another version; with a favourite, that item is recommended above all others.

    With whole numbers, its ids are 1, 2, … in place of i1, i2, …, and the last one is LARGE_ID. `facts` are added to
    its manifest.
    """
    shutil.copytree(model, target)
    manifest = json.loads((target / "model.json").read_text())
    if favourite:
        bias = np.load(target / "bias.npy")
        bias[favourite - 1] += 1000
        np.save(target / "bias.npy", bias)
    if whole_numbers:
        catalogue = json.loads((target / "catalogue.json").read_text())
        ids = [each.removeprefix("i") for each in catalogue["ids"]]
        ids[-1] = str(LARGE_ID)
        (target / "catalogue.json").write_text(json.dumps({**catalogue, "ids": ids, "whole_numbers": True}))
    write_manifest(target, "model.json", {**manifest, "version": version, **facts})
    return target
