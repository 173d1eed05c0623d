"""A foreign program reads openapi.yaml and tries everything that it allows, and much that it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from crash_kit import Client, short_directory, wait_for
from hypothesis import HealthCheck, settings
from protocol_kit import FOLDER
from schemathesis import Case, GenerationMode
from schemathesis.core import NotSet
from schemathesis.core.parameters import ParameterLocation

from peen.testing.daemon import Daemon

schema = schemathesis.openapi.from_path(FOLDER / "openapi.yaml")
schema.config.generation.update(modes=list(GenerationMode))


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[str, str]]:
    """Base URL of a controller, and a session in which something has happened and something is paused.

    Paused work keeps the session when `prune` is called with a small age. Nobody is connected any more: the thread that
    keeps a socket alive draws from `random`, which Hypothesis takes for a fault of whatever it generates meanwhile.
    """
    with short_directory() as home, Daemon(home) as daemon:
        (daemon.workspace_root / "hello.txt").write_text("hello\n")
        with Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            client.ask(session, "read hello.txt")
            stopped = client.send(session, "run `touch started; sleep 60`")
            wait_for((daemon.workspace_root / "started").exists, "the command to start")
            client.http.post("/session/cancel", headers={"X-Session-ID": session}, json={})
            client.answered(stopped)
            assert client.get("/session", session)["status"] == "paused"
        yield daemon.address, session
        with Client(daemon) as client:
            assert client.get("/session", session)["id"] == session, "a call took the session from those after it"


@schema.parametrize()
@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_the_controller_behaves_as_its_openapi_document_says(case: Case[Any], world: tuple[str, str]) -> None:
    address, session = world
    if "X-Session-ID" in case.headers and not _is_broken(case, ParameterLocation.HEADER):
        case.headers["X-Session-ID"] = session
    if case.method not in ("GET", "HEAD") and isinstance(case.body, NotSet):
        # The document says in words what it has no form for: this header is needed even without a body.
        case.headers["Content-Type"] = "application/json"

    answer = case.call(base_url=address)

    case.validate_response(answer)


def _is_broken(case: Case[Any], where: ParameterLocation) -> bool:
    """Whether the generator made this part of the call wrong on purpose."""
    component = case.meta.components.get(where) if case.meta is not None else None
    return component is not None and component.mode is GenerationMode.NEGATIVE
