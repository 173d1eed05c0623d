"""What stands behind the REST operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar
from uuid import UUID

from peen.entropy import Entropy
from peen.errors import SessionNotFound
from peen.model.stream import ModelInfo
from peen.session.requests import ResumeRequest
from peen.session.spending import Terms
from peen.session.workspace import WorkspacePolicy
from peen.store import sessions
from peen.store.blobs.rows import Blobs
from peen.store.database import Database, Reader
from peen.store.executions import ExecutionDetails
from peen.store.reading import read_in_thread
from peen.store.runs import Run
from peen.store.sessions import SessionRow
from peen.wire.jobcalls import JobSignalName

T = TypeVar("T")

MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
"""Every list page ends before it passes this, so that one page of large rows cannot fill memory."""


@dataclass(frozen=True, slots=True)
class Api:
    """Handed to every operation. Reads go to the store's reader, changes to its writer."""

    database: Database
    blobs: Blobs
    policy: WorkspacePolicy
    models: Sequence[ModelInfo]
    configured_default: str
    """Name of the default model as it was known at the start; empty if no provider had answered."""
    root_agent: str
    agent_space: str
    max_context_tokens: int | None
    max_summary_bytes: int
    max_data_bytes: int
    entropy: Entropy
    resume: Callable[[str, ResumeRequest], Awaitable[None]]
    """Goes on with a paused execution of a session."""
    continue_input: Callable[[str, str, int], Awaitable[None]]
    """Lets a message that a Stop left waiting open a turn: session id, request id, stop revision."""
    stop: Callable[[str], Awaitable[bool]]
    """Stops a session by its id; True if a turn was running."""
    signal_job: Callable[[str, str, JobSignalName], Awaitable[bool]]
    """Begins to end a job: session id, job id, how; False if nothing of it lives."""
    release: Callable[[SessionRow], Awaitable[None]]
    """Ends everything that lives for a session that was marked for deletion: its actor, then its worker."""

    terms: Terms = field(default_factory=Terms)
    runs: Callable[[ExecutionDetails], Sequence[Run]] | None = None
    """Looks up the runs of an execution; without it they are read from its record."""

    @property
    def default_model(self) -> str:
        """Name of the default model; empty while no provider has answered since the start and none is configured."""
        return self.configured_default or next((model.name for model in self.models), "")

    def session(self, session_id: str) -> SessionRow:
        """The session's row. Raises: SessionNotFound."""
        row = sessions.by_id(self.database.reader, UUID(session_id).bytes)
        if row is None:
            raise SessionNotFound("no such session; POST /api/v1/sessions/open opens one")
        return row

    async def scan(self, function: Callable[[Reader], T]) -> T:
        """What `function` reads away from the Trio thread: for everything that may look at more than 1,000 rows.

        Raises: as `read_in_thread`, and what `function` raises.
        """
        return await read_in_thread(self.database.path, function)
