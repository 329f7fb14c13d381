"""A cluster of Spark in its standalone mode: a master and workers, each a process of its own on this machine."""

import ctypes
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyspark

from tests.spoken import PATIENCE, Spoken

SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
PR_SET_PDEATHSIG = 1
"""Of Linux: which signal a process gets when its parent is gone, however that ended."""


class Worker:
    """Has one core, and 1 GB for its executors."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr
        self._process, self._spoken = process, Spoken(process.stderr)
        self._spoken.wait_for_line("Successfully registered with master")

    def kill(self) -> None:
        """With -9, and all that runs on it, as when a machine is lost."""
        for process in _session(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait(PATIENCE)


class Cluster:
    """A master and its workers. A worker that was killed stays lost; start another one."""

    def __init__(self, folder: Path, processes: ExitStack) -> None:
        self._folder, self._processes = folder, processes
        master = self._start("master.Master")
        assert master.stderr
        self._spoken = Spoken(master.stderr)
        self.master = self._spoken.wait_for_line(r"Starting Spark master at (spark://\S+)")[1]
        """Its address, as Spark takes it."""
        self.workers: list[Worker] = []

    def start_worker(self) -> Worker:
        work = self._folder / f"worker-{len(self.workers)}"
        resources = ("--cores", "1", "--memory", "1g", "--work-dir", str(work))
        worker = Worker(self._start("worker.Worker", self.master, *resources))
        self.workers.append(worker)
        return worker

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        address = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        process = subprocess.Popen(
            [SPARK_CLASS, f"org.apache.spark.deploy.{program}", *address, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._folder,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"},
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 (it calls the system, and nothing of Python)
        )
        self._processes.callback(_end, process)
        return process


@contextmanager
def running_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A cluster that is stopped at the end, whatever ends it."""
    with ExitStack() as processes:
        cluster = Cluster(folder, processes)
        for _ in range(workers):
            cluster.start_worker()
        yield cluster


def _end(process: subprocess.Popen[str]) -> None:
    for each in _session(process.pid):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    process.wait(PATIENCE)
    if process.stderr:
        process.stderr.close()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _session(leader: int) -> list[int]:
    """A process and all that it started. Spark's Python workers leave its process group, but not its session."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()  # behind the name, which may hold anything
            if int(fields[3]) == leader:
                found.append(int(status.parent.name))
    return found


class Gate:
    """Tasks of a job wait here, until as many have come as a test wants; then something happens, and all may go on."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._server.getsockname()
        self._waiting: list[socket.socket] = []
        self.is_open = False
        self._keeper: threading.Thread | None = None

    def __enter__(self) -> "Gate":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)  # wakes the keeper
        self._server.close()
        if self._keeper:
            self._keeper.join(PATIENCE)
        for each in self._waiting:
            each.close()

    def when_reached(self, count: int, happens: Callable[[], None]) -> None:
        self._keeper = threading.Thread(target=self._keep, args=(count, happens), daemon=True)
        self._keeper.start()

    def _keep(self, count: int, happens: Callable[[], None]) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._waiting.append(connection)
                if len(self._waiting) == count:
                    happens()
                    self.is_open = True
                if self.is_open:
                    while self._waiting:
                        self._waiting.pop().close()
