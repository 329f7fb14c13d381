"""The guide for operators: its numbers are those of the service."""

from bert4rec.service import asgi, schemas, served_models, server, service
from tests.deploy.dockerfile import ROOT

GUIDE = (ROOT / "docs" / "guides" / "operating.md").read_text()


def bound_on(what: str) -> str:
    """The second column of the table on how long anything waits."""
    [row] = [line for line in GUIDE.splitlines() if line.startswith(f"| {what} |")]
    return row.split("|")[2].strip()


def test_the_bounds_are_those_of_the_service() -> None:
    assert bound_on("questions that wait for the model") == f"{served_models.MAX_WAITING} in each process"
    assert served_models.TIMEOUT == service.TIMEOUT
    assert bound_on("the answer of the model or of the store") == f"{service.TIMEOUT:g} s"
    assert bound_on("the head of a request") == f"{server.HEAD_TIMEOUT:g} s, {server.MAX_HEAD:,} bytes"
    assert bound_on("the body of a request") == f"{asgi.BODY_TIMEOUT:g} s, {schemas.MAX_BODY:,} bytes"
    assert bound_on("a connection without a request") == f"{server.KEEP_ALIVE} s"
    assert bound_on("requests in progress at a stop") == f"{server.GRACE} s"


def test_every_code_of_a_problem_that_it_names_exists() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src" / "bert4rec" / "service").glob("*.py"))
    for code in ("overloaded", "deadline_exceeded", "request_timeout", "body_too_large", "store_full"):
        assert f"`{code}`" in GUIDE and f'"{code}"' in sources, code
