"""A PostgreSQL server for tests: in a folder of its own, reachable by a Unix socket in that folder alone."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
import psycopg.sql


def find_programs() -> Path | None:
    """The folder of pg_ctl and its like. Debian keeps them off the PATH."""
    found = shutil.which("pg_ctl")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((each for each in folders if (each / "initdb").exists() and (each / "pg_ctl").exists()), None)


@dataclass(frozen=True)
class Postgres:
    folder: Path
    user: str

    @classmethod
    @contextmanager
    def running(cls) -> Iterator["Postgres"]:
        # Not pytest's folder: the server refuses to run as root, and nobody else may look into that.
        with tempfile.TemporaryDirectory(prefix="bert4rec-postgres-") as name:
            server = cls(Path(name), _other_than_root())
            shutil.chown(name, server.user)
            server._run(
                "initdb", "-D", name, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"
            )
            server.start()
            try:
                yield server
            finally:
                server.stop()

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off -c max_connections=30"
        self._run(
            "pg_ctl", "start", "-w", "-D", str(self.folder), "-o", options, "-l", str(self.folder / "log")
        )

    def stop(self) -> None:
        """At once, as in a crash; clients are cut off."""
        self._run("pg_ctl", "stop", "-w", "-D", str(self.folder), "-m", "immediate")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All its processes stand still: connections stay open, and nothing is answered."""
        postmaster = int((self.folder / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        processes = [postmaster, *map(int, children)]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                os.kill(process, signal.SIGCONT)

    def new_database(self, encoding: str) -> str:
        """The address of an empty database."""
        address, name = f"postgresql://postgres@/{{}}?host={self.folder}", f"test_{uuid4().hex}"
        with psycopg.connect(address.format("postgres"), autocommit=True) as connection:
            connection.execute(
                psycopg.sql.SQL("CREATE DATABASE {} ENCODING {} TEMPLATE template0").format(
                    psycopg.sql.Identifier(name), psycopg.sql.Literal(encoding)
                )
            )
        return address.format(name)

    def new_store(self) -> str:
        """The address of a place without tables: a schema of its own, which is faster made than a database."""
        name = f"test_{uuid4().hex}"
        address = f"postgresql://postgres@/postgres?host={self.folder}"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("CREATE SCHEMA {}").format(psycopg.sql.Identifier(name)))
        return f"{address}&options=-csearch_path%3D{name}"

    def _run(self, program: str, *arguments: str) -> None:
        folder = find_programs()
        assert folder is not None
        as_user = {"user": self.user} if os.geteuid() == 0 else {}
        subprocess.run(
            [folder / program, *arguments],
            check=True,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **as_user,  # type: ignore[call-overload]
        )


def _other_than_root() -> str:
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    names = {each.pw_name for each in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)
