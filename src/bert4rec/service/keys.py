"""API keys: who may ask."""

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from bert4rec.errors import NotFoundError, UsageError


class Keys:
    """Known keys, as digests: equally long whatever the key, and of no use to whoever reads this memory."""

    def __init__(self, keys: frozenset[bytes]) -> None:
        self._digests = [_digest(key) for key in sorted(keys)]

    @classmethod
    def read(cls, path: Path) -> "Keys":
        """From a file with one key a line; empty lines and lines that begin with # do not count."""
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError as error:
            raise NotFoundError(f"--api-key-file: {path} does not exist.") from error
        except OSError as error:
            raise UsageError(f"--api-key-file: {path} cannot be read: {error.strerror}.") from error
        keys = frozenset(line.strip() for line in lines if line.strip() and not line.strip().startswith(b"#"))
        if not keys:
            raise UsageError(
                f"--api-key-file: {path} holds no key. Write one a line, or leave the option out."
            )
        return cls(keys)

    def admit(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the request carries a known key, as `Authorization: Bearer KEY` or as `X-API-Key: KEY`."""
        scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
        given = credentials.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        digest = _digest(given)
        # All of them, always: the time taken says nothing about which key matched, or how nearly.
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
