"""An image and a container without Docker: the commands of the Dockerfile, in folders that become their root.

In place of the base image, a root has this system's programs and Python, read-only. A container has besides what
`docker run --read-only --tmpfs /tmp --cap-drop ALL` gives: its own network, and nothing to write to but its volumes.
Needs Linux and root.
"""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import environ
from pathlib import Path

from tests.deploy.dockerfile import BUILD, FINAL, ROOT, Stage, is_sent

BASE = [Path("/usr"), Path("/dev"), Path("/proc"), Path("/sys"), Path(sys.base_prefix)]
FOR_PIP = [Path("/etc"), Path(sys.prefix), *Path("/opt").glob("*")]
"""Only while packages are installed: pip itself, its settings, and an index of packages if this machine has its own."""
LOOPBACK_UP = """
import fcntl, socket, struct
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS: IFF_UP
"""


def build_image(folder: Path) -> Path:
    """What `docker build` does. The root of the final stage."""
    build, final = folder / "build", folder / "final"
    _run_stage(BUILD, build, borrowed=[*BASE, *FOR_PIP])
    (final / "etc").mkdir(parents=True)
    (final / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (final / "etc" / "group").write_text("root:x:0:\n")
    _run_stage(FINAL, final, borrowed=BASE, earlier=build)
    return final


def _run_stage(stage: Stage, root: Path, *, borrowed: Sequence[Path], earlier: Path | None = None) -> None:
    folder = root
    for word, argument in stage.instructions:
        if word == "WORKDIR":
            folder = root / argument[1:]
            folder.mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            *sources, target = argument.split()
            if earlier and sources.pop(0) == "--from=build":
                (root / target[1:]).parent.mkdir(exist_ok=True)
                (earlier / sources[0][1:]).rename(root / target[1:])
            else:
                _copy([ROOT / source for source in sources], folder / target)
        elif word == "RUN":
            enter = f"cd /{folder.relative_to(root)} && {argument}"
            script = f"{_mounts(root, borrowed)} exec chroot {root} /bin/sh -c {shlex.quote(enter)}"
            path = f"{Path(sys.executable).parent}:{environ['PATH']}:/usr/sbin"
            done = subprocess.run(
                ["unshare", "--mount", "/bin/sh", "-e", "-c", script],
                env={**environ, **stage.arguments, "PATH": path},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{argument}\n{done.stdout}{done.stderr}"


def _copy(sources: Sequence[Path], target: Path) -> None:
    """What .dockerignore lets through; of folders, their content."""
    for source in sources:
        for path in [source] if source.is_file() else source.rglob("*"):
            if path.is_file() and is_sent(path):
                copy = target / (path.name if source.is_file() else path.relative_to(source))
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)


def _mounts(root: Path, borrowed: Sequence[Path]) -> str:
    """A script, for a namespace of its own, that puts parts of this system into a root."""
    script = ""
    (root / "tmp").mkdir(parents=True, exist_ok=True)
    for path in sorted(set(borrowed)):
        (root / path.relative_to("/")).mkdir(parents=True, exist_ok=True)
        script += f"mount --rbind {path} {root}{path}; mount -o remount,bind,ro {root}{path};"
    for link in ("bin", "sbin", "lib", "lib64"):
        if not (root / link).is_symlink():
            (root / link).symlink_to(f"usr/{link}")
    return script


class Container:
    """A running one. Programs can be run inside, as its user."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stderr
        self.first_lines: list[str] = []
        for line in process.stderr:
            self.first_lines.append(line)
            if "Serving on" in line:
                return
        raise AssertionError("".join(self.first_lines))

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        enter = ["nsenter", f"--target={self.process.pid}", "--mount", "--net", "--root"]
        return subprocess.run(
            [*enter, *_as_user(), *command], env=_environment(), capture_output=True, text=True, check=False
        )


@contextmanager
def running_container(root: Path, volumes: Mapping[str, Path]) -> Iterator[Container]:
    """What `docker run` does. Volumes end in :ro where they are read-only."""
    script = f"mount --bind {root} {root};" + _mounts(root, BASE)
    for target, source in volumes.items():
        path, _, mode = target.partition(":")
        (root / path[1:]).mkdir(exist_ok=True)
        script += f"mount -o bind,{mode or 'rw'} {source} {root}{path};"
    script += f"mount -t tmpfs tmpfs {root}/tmp; mount -o remount,bind,ro {root};"
    script += f"{sys.executable} -c {shlex.quote(LOOPBACK_UP)};"
    command = [*_as_user(), *FINAL.words("ENTRYPOINT"), *FINAL.words("CMD")]
    script += f"exec chroot {root} {shlex.join(command)}"
    with subprocess.Popen(
        ["unshare", "--mount", "--net", "/bin/sh", "-e", "-c", script],
        env=_environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Container(process)
        finally:
            process.kill()


def _as_user() -> list[str]:
    user, group = FINAL.one("USER").split(":")
    powerless = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    folder = f"--chdir={FINAL.one('WORKDIR')}"
    return ["setpriv", f"--reuid={user}", f"--regid={group}", *powerless, "env", folder]


def _environment() -> dict[str, str]:
    usual = "/usr/local/bin:/usr/bin:/bin:/usr/sbin"
    return {
        name: value.replace("$PATH", usual) for name, value in FINAL.environment.items()
    }  # and nothing of this process
