"""The guide for operators: its numbers are those of the service."""

from bert4rec.service import served_models
from bert4rec.service.contract import schemas
from bert4rec.service.http import connections, server
from tests.deploy.dockerfile import ROOT

GUIDE = (ROOT / "docs" / "guides" / "operating.md").read_text()


def bound_on(what: str) -> str:
    """The second column of the table on how long anything waits."""
    [row] = [line for line in GUIDE.splitlines() if line.startswith(f"| {what} |")]
    return row.split("|")[2].strip()


def test_the_bounds_are_those_of_the_service() -> None:
    waiting = bound_on("a question in the queue of the model, or of reads by user")
    assert waiting.startswith(f"{served_models.MAX_WAIT:g} s, ")
    assert waiting.endswith(f"{served_models.MAX_WAITING:,} in each process")
    in_groups = f"{served_models.MAX_WAITING_IN_GROUPS:,} in each process"
    assert bound_on("entries of batches in that queue") == in_groups
    assert bound_on("the answer of the model or of the store") == f"{served_models.TIMEOUT:g} s"
    head = f"{connections.HEAD_TIMEOUT:g} s, {connections.MAX_HEAD:,} bytes"
    assert bound_on("the head of a request") == head
    body = f"{connections.BODY_TIMEOUT:g} s, {schemas.MAX_BODY:,} bytes"
    assert bound_on("the body of a request") == body
    received = f"{connections.MAX_RECEIVED:,} bytes"
    assert bound_on("requests that are being read or answered, together") == received
    assert bound_on("an answer that is not read") == f"{connections.WRITE_TIMEOUT:g} s"
    assert bound_on("answers that are not read, together") == f"{connections.MAX_BUFFERED:,} bytes"
    assert bound_on("a connection without a request") == f"{connections.KEEP_ALIVE:g} s"
    assert bound_on("connections") == f"{connections.MAX_CONNECTIONS:,} in each process"
    assert bound_on("requests in progress at a stop") == f"{server.GRACE:g} s"


def test_every_code_of_a_problem_that_it_names_exists() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src" / "bert4rec" / "service").rglob("*.py"))
    codes = ("overloaded", "deadline_exceeded", "request_timeout", "body_too_large", "head_too_large")
    for code in (*codes, "store_full", "no_worker", "rate_limited"):
        assert f"`{code}`" in GUIDE and f'"{code}"' in sources, code
