"""By which names the service may be called: whoever else's name leads here is not to be answered.

A page in a browser may ask any address that its own name resolves to, and read what comes back, as if the service were
its own. So a service without keys answers only to names that nobody else can point at it: addresses in numbers,
`localhost`, and what `allow_host` lists. With keys the page would have to know one, so every name will do, unless some
are listed.
"""

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from bert4rec.errors import UsageError
from bert4rec.service.http.messages import Head
from bert4rec.service.problems import ProblemError

ANY = "*"
READING = ("GET", "HEAD")
HOST = re.compile(rb"(?:(\w[\w.-]*)|\[([0-9A-Fa-f:.]+)\])(?::[0-9]*)?", re.ASCII)
"""A name or an address, and a port. Whatever else a parser of addresses might find one in is not taken apart."""


class Names:
    """The names that requests may carry in `Host`, and pages that may ask in `Origin`."""

    def __init__(self, listed: Iterable[str] = (), *, any_by_default: bool = False) -> None:
        self._listed = {_checked(name).lower().rstrip(".") for name in listed}
        self._takes_any = ANY in self._listed or (any_by_default and not self._listed)
        self._known: set[bytes] = set()
        """Values of `Host` that were found to be right, since nearly all requests carry the same."""

    def check(self, head: Head) -> None:
        """Raise a problem for a request that is not meant for this service, or comes from another's page."""
        host = head.headers.get(b"host")
        if host is None and self._takes_any:
            return  # HTTP/1.0, by which some balancers look whether a service is there
        host = host or b""
        if host not in self._known:
            self._check_host(host)
        origin = head.headers.get(b"origin")
        if origin is not None and head.method not in READING:
            self._check_origin(origin, host)

    def _check_host(self, host: bytes) -> None:
        name = _name_of(host)
        if name is None or not (self._takes_any or name in self._listed or _is_safe(name)):
            detail = "The service does not answer to this name. If it should, start it with `allow_host`."
            raise ProblemError(421, "misdirected_request", detail)
        if len(self._known) < 100:
            self._known.add(host)

    def _check_origin(self, origin: bytes, host: bytes) -> None:
        """Pages of other origins may not change anything. A proxy may have given the request another name."""
        try:
            authority = urlsplit(origin.decode("ascii")).netloc
        except ValueError:
            authority = ""
        if authority.encode() != host and _name_of(authority.encode()) not in self._listed:
            detail = "Pages of other origins may not send this. If they should, start with `allow_host`."
            raise ProblemError(403, "cross_origin", detail)


def _name_of(host: bytes) -> str | None:
    """Without the port; None if it is no host."""
    found = HOST.fullmatch(host)
    return (found[1] or found[2]).decode().lower().rstrip(".") if found else None


def _is_safe(name: str) -> bool:
    """Whether no name server can make this lead elsewhere."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _checked(name: str) -> str:
    if name != ANY and _name_of(name.encode()) != name.lower().rstrip("."):
        raise UsageError(f"`allow_host` takes names such as 'shop.example', without port; found {name!r}.")
    return name
