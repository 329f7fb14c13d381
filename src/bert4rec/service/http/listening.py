"""Where the service can be reached: a port or a unix socket, with a certificate or without."""

import ipaddress
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bert4rec.errors import UsageError

BACKLOG = 2048
UNIX_MODE = 0o660
"""The socket's owner and group may ask."""


@dataclass(frozen=True)
class Address:
    """Where to listen. Can be sent to other processes."""

    host: str = "127.0.0.1"
    port: int = 8000
    unix_socket: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.unix_socket or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def tls(self) -> ssl.SSLContext | None:
        """The certificate, read anew."""
        if self.certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        load_certificate(context, self)
        return context


def load_certificate(context: ssl.SSLContext, address: Address) -> None:
    """For all connections that begin from now on."""
    assert address.certificate
    try:
        # A password would be asked for at the terminal, where nobody may sit.
        context.load_cert_chain(address.certificate, address.private_key, password=lambda: "")
    except ssl.SSLError as error:
        reason = error.reason or "there is none in the file, or it needs a password"
        raise UsageError(
            f"`tls_cert`, `tls_key`: no valid certificate with its key, as PEM: {reason}."
        ) from error
    except OSError as error:
        files = " and ".join(str(each) for each in (address.certificate, address.private_key) if each)
        raise UsageError(f"`tls_cert`, `tls_key`: {files} cannot be read: {error.strerror}.") from error


@contextmanager
def listening(address: Address) -> Iterator[socket.socket]:
    """The address taken at once, before a model is loaded in vain, but no connection accepted yet."""
    if address.unix_socket:
        with _unix_socket(address.unix_socket) as listener:
            yield listener
    else:
        with _port(address.host, address.port) as listener:
            yield listener


def describe(address: Address, listener: socket.socket) -> str:
    if address.unix_socket:
        return f"unix socket {address.unix_socket}"
    host, port = listener.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if address.certificate else 'http'}://{name}:{port}"


def allow_many_files() -> None:
    """As many connections as the system lets this process have."""
    with suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _port(host: str, port: int) -> socket.socket:
    with ExitStack() as closing:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = closing.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", error)
            raise UsageError(
                f"Cannot listen on {host}:{port}: {reason}. Choose another `host` or `port`."
            ) from error
        closing.pop_all()
    return listener


@contextmanager
def _unix_socket(path: Path) -> Iterator[socket.socket]:
    """A socket that a killed process left is replaced, one that somebody listens on is not. Removed in the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            if _is_left_over(path):
                path.unlink()
            listener.bind(str(path))
            path.chmod(UNIX_MODE)
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"`unix_socket`: cannot listen on {path}: {reason}.") from error
        identity = path.stat().st_ino
        try:
            yield listener
        finally:
            with suppress(OSError):
                if path.stat().st_ino == identity:
                    path.unlink()


def _is_left_over(path: Path) -> bool:
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(str(path)) != 0
