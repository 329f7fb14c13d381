"""Servers to measure: `bert4rec serve` of this checkout and of another, as commands, on a core of their own."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from benchmarks.load import Outcome

THIS = Path(__file__).parents[2] / "src"
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, LOAD_CORE = CORES[0], CORES[-1]
START_SECONDS, STOP_SECONDS = 300, 60


@dataclass(frozen=True)
class Version:
    """A checkout whose service is measured."""

    name: str
    source: Path
    """The folder in which the package bert4rec is."""

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.source)}

    @cached_property
    def _help(self) -> str:
        return self.call([sys.executable, "-m", "bert4rec", "serve", "--help"])

    def knows(self, option: str) -> bool:
        return option in self._help

    def call(self, command: Sequence[str]) -> str:
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=self.environment)
        return done.stdout


@dataclass
class Server:
    """One that runs."""

    process: subprocess.Popen[bytes]
    port: int
    ready_seconds: float
    """From the start of the command."""

    @property
    def pids(self) -> list[int]:
        """The process and its workers."""
        return [self.process.pid, *_descendants(self.process.pid)]

    def processor_seconds(self) -> float:
        return sum(processor_seconds_of(self.pids))

    def settle(self) -> None:
        """Wait until nothing is being computed any more."""
        before = -1.0
        while (now := self.processor_seconds()) - before > 0.02:
            before = now
            time.sleep(0.5)

    def resident_mb(self) -> float:
        return sum(_memory(pid, "VmRSS") for pid in self.pids)

    def forget_peak(self) -> None:
        for pid in self.pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def peak_mb(self) -> float:
        """Since `forget_peak`."""
        return sum(_memory(pid, "VmHWM") for pid in self.pids)

    def during(self, load: Callable[[], Outcome]) -> Outcome:
        """The outcome, with what the server used of the processor meanwhile."""
        began = self.processor_seconds()
        outcome = load()
        outcome.processor_seconds = self.processor_seconds() - began
        return outcome

    def get(self, path: str) -> Any:
        with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as response:
            return json.load(response)

    def send(self, path: str, content: object) -> Any:
        request = Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(content).encode(),
            {"Content-Type": "application/json"},
        )
        with urlopen(request, timeout=30) as response:
            return json.load(response)


@contextmanager
def serving(
    version: Version,
    model: Path,
    *options: str,
    store: str | None = None,
    drain: float = 0,
    cores: Sequence[int] = (SERVER_CORE,),
) -> Iterator[Server]:
    """A server that is ready; by default with an empty store of its own. It is stopped in the end."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        address = store or f"sqlite:///{folder}/history.db"
        server = start(version, model, *options, store=address, drain=drain, cores=cores, log=log)
        try:
            yield server
        finally:
            server.process.terminate()
            try:
                server.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()


def start(
    version: Version,
    model: Path,
    *options: str,
    store: str,
    log: Path,
    drain: float = 0,
    cores: Sequence[int] = (SERVER_CORE,),
    port: int | None = None,
) -> Server:
    """The caller must stop it."""
    began = time.perf_counter()
    port = port or free_port()
    process = launch(version, model, *options, store=store, log=log, drain=drain, cores=cores, port=port)
    while not is_ready(port):
        if process.poll() is not None or time.perf_counter() - began > START_SECONDS:
            process.kill()
            raise RuntimeError(f"The server of {version.source} did not start:\n{log.read_text()}")
        time.sleep(0.01)
    return Server(process, port, time.perf_counter() - began)


def launch(
    version: Version,
    model: Path,
    *options: str,
    store: str,
    log: Path,
    port: int,
    drain: float = 0,
    cores: Sequence[int] = (SERVER_CORE,),
) -> subprocess.Popen[bytes]:
    """Does not wait until it is ready. What it logs goes to a file: a pipe that nobody reads would stop it."""
    command = [sys.executable, "-m", "bert4rec", "serve", str(model), f"--port={port}", f"--store={store}"]
    if version.knows("--drain"):
        command.append(f"--drain={drain:g}")
    if version.knows("--force"):
        command.append("--force")  # random weights may give everybody the same list
    with log.open("ab") as sink:
        process = subprocess.Popen([*command, *options], stdout=sink, stderr=sink, env=version.environment)
    os.sched_setaffinity(
        process.pid, cores
    )  # while Python has not even begun; threads and workers inherit it
    return process


def is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [each for child in map(int, children) for each in (child, *_descendants(child))]


def _processor_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processor_seconds_of(pids: Sequence[int]) -> list[float]:
    return [_processor_seconds(pid) for pid in pids]


def _memory(pid: int, which: str) -> float:
    """Megabytes."""
    (kibibytes,) = re.findall(rf"{which}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(kibibytes) * 1024 / 1e6
