"""The REST operations over a session store in a file, called as the hub calls them, without HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final

from engine_kit import Engine, PlayedUpstream
from protocol_kit import problems
from world_kit import MODEL, ClockEntropy, Home, make_home

from peen.control.controller import build_router
from peen.hub.api import Api
from peen.hub.request import ApiRequest
from peen.hub.router import dispatch
from peen.model.stream import ModelInfo
from peen.session.spending import Terms
from peen.session.workspace import WorkspacePolicy
from peen.store.blobs.rows import Blobs
from peen.store.database import Database
from peen.store.opening import open_direct
from peen.store.sessions import SessionRow
from peen.wire.launch import WorkerSettings
from peen.wire.operations import OPERATIONS

ROUTER: Final = build_router()


@dataclass
class Office:
    """A store with the operations on top. What an operation asks of the controller is noted."""

    database: Database
    blobs: Blobs
    directory: Path
    api: Api = field(init=False)
    released: list[SessionRow] = field(default_factory=list)
    signalled: list[tuple[str, str, str]] = field(default_factory=list)
    while_releasing: Callable[[SessionRow], None] | None = None

    def __post_init__(self) -> None:
        async def release(session: SessionRow) -> None:
            self.released.append(session)
            if self.while_releasing is not None:
                self.while_releasing(session)

        async def stop(_session_id: str) -> bool:
            raise AssertionError("no test of this kit stops a session")

        async def never(*_given: object) -> None:
            raise AssertionError("no test of this kit goes on with paused work")

        async def signal_job(session_id: str, job_id: str, signal: str) -> bool:
            self.signalled.append((session_id, job_id, signal))
            return True

        self.api = Api(
            database=self.database,
            blobs=self.blobs,
            policy=WorkspacePolicy(self.directory, self.directory / "state", self.directory / "config"),
            models=[ModelInfo(name=MODEL, connection_name="scripted", model_id="script")],
            configured_default=MODEL,
            root_agent="peen",
            agent_space="control",
            max_context_tokens=None,
            max_summary_bytes=4096,
            max_data_bytes=65_536,
            entropy=ClockEntropy(3),
            stop=stop,
            resume=never,
            continue_input=never,
            signal_job=signal_job,
            release=release,
        )

    async def ask(
        self, method: str, path: str, *, session: Home | str | None = None, body: bytes = b"", **query: Any
    ) -> tuple[int, Any]:
        """Status and decoded body of one call below the mount; a success is held against its published schema."""
        headers = {}
        if session is not None:
            headers["x-session-id"] = session if isinstance(session, str) else session.uuid
        parameters = {name: [str(value)] for name, value in query.items()}
        request = ApiRequest(method, f"/api/v1{path}", query=parameters, headers=headers, body=body)
        answer = await dispatch(ROUTER, self.api, request, self.api.entropy)
        found = json.loads(answer.body)
        if answer.status < 300:
            assert problems(_schema_of(request), found) == []
        return answer.status, found

    async def get(self, path: str, session: Home | str | None = None, **query: Any) -> Any:
        """The body of a call that succeeds."""
        status, found = await self.ask("GET", path, session=session, **query)
        assert status == 200, found
        return found

    async def refusal(
        self, method: str, path: str, session: Home | str | None = None, *, body: bytes = b"", **query: Any
    ) -> tuple[int, str]:
        """Status and code of a call that is refused."""
        status, found = await self.ask(method, path, session=session, body=body, **query)
        assert status >= 400, found
        return status, found["code"]


@asynccontextmanager
async def office(directory: Path) -> AsyncIterator[Office]:
    """An office with its store in `directory`. Reads may use threads: no virtual time here."""
    migrations = resources.files("peen.store") / "migrations"
    async with open_direct(directory / "peen.db", migrations=migrations, name="peen", seed=1) as database:
        yield Office(database, await Blobs.open(database), directory)


async def engine_in(
    own: Office, upstream: PlayedUpstream, *, number: int = 1, terms: Terms | None = None, **settings: Any
) -> Engine:
    """A worker's engine whose turns are stored in the office; `settings` are fields of WorkerSettings."""
    chosen = WorkerSettings(upstreams=[], default_model="up/m", **settings)
    return Engine(own.database, await make_home(own.database, number), upstream, chosen, seed=1, terms=terms)


def _schema_of(request: ApiRequest) -> str:
    route, _ = ROUTER.match(request.method, request.path)
    template = "/" + "/".join(route.template)
    row = next(row for row in OPERATIONS if (row.method, row.path) == (request.method, template))
    return f"rest.{row.answer.__name__}"
