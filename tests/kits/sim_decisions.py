"""What a user does about paused work: looks at it as it is now, and decides one thing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol
from uuid import UUID

from sim_world import Home

from peen.entropy import Entropy
from peen.session import inspection
from peen.session.registry import Sessions
from peen.session.requests import ResumeRequest
from peen.session.resumption import abandon, resolve
from peen.store import executions, inbox, sessions
from peen.store.blobs.rows import Blobs
from peen.store.database import Database
from peen.store.executions import ExecutionDetails
from peen.store.sessions import SessionRow
from peen.wire.execution import Activity, ExecutionView

CALLER = "api"
Decision = Callable[[], Awaitable[None]]


class Controller(Protocol):
    """What a decision needs of a controller, simulated or not."""

    @property
    def database(self) -> Database: ...

    @property
    def blobs(self) -> Blobs: ...

    @property
    def sessions(self) -> Sessions: ...

    @property
    def entropy(self) -> Entropy: ...


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to become of paused work.

    `uncertain` effects are accepted, with `outcome` as what they came to, or retried; then the work is resumed. Or it
    is abandoned, or stays as it is. With `releases` messages that a Stop left waiting open turns of their own.
    """

    work: Literal["resume", "abandon", "stay"] = "resume"
    uncertain: Literal["accept", "retry"] = "retry"
    outcome: str | None = None
    releases: bool = False


def next_decision(controller: Controller, home: Home, wish: Wish) -> Decision | None:
    """What there is to do, by what the store says in this moment; None if all is as it was wished for.

    A decision that comes too late raises as the API would answer: NotFound, Conflict or SessionBusy.
    """
    reader = controller.database.reader
    session = sessions.by_no(reader, home.no)
    assert session is not None
    paused = executions.paused_of(reader, home.no, limit=inspection.MAX_LISTED)
    if wish.work != "stay" and paused:
        oldest = paused[-1]
        return _about(controller, session, oldest, inspection.view(reader, controller.blobs, session, oldest), wish)
    waiting = inbox.stopped(reader, home.no) if wish.releases else []
    if waiting:
        request_id = str(UUID(bytes=waiting[0].request_id))
        return partial(controller.sessions.continue_input, home.uuid, request_id, session.stop_revision)
    return None


def _about(
    controller: Controller, session: SessionRow, row: ExecutionDetails, view: ExecutionView, wish: Wish
) -> Decision:
    revision = view.execution.control_revision
    if wish.work == "abandon":
        return partial(_abandon, controller, row, revision)
    uncertain = [activity for activity in view.activities if activity.state == "uncertain"]
    if uncertain:
        return partial(_resolve, controller, row, uncertain[0], revision, wish)
    request = ResumeRequest(view.execution.id, revision, CALLER)
    return partial(controller.sessions.resume, session.uuid, request)


async def _abandon(controller: Controller, row: ExecutionDetails, revision: int) -> None:
    change = partial(
        abandon, session_no=row.session_no, execution_id=row.id, control_revision=revision, caller=CALLER,
        at_ms=controller.entropy.now_ms(),
    )  # fmt: skip
    await controller.database.write(change)


async def _resolve(
    controller: Controller, row: ExecutionDetails, activity: Activity, revision: int, wish: Wish
) -> None:
    change = partial(
        resolve, session_no=row.session_no, execution_id=row.id,
        step=inspection.step_of(controller.database.reader, row, activity.id), decision=wish.uncertain,
        outcome=wish.outcome, control_revision=revision, caller=CALLER, at_ms=controller.entropy.now_ms(),
    )  # fmt: skip
    await controller.database.write(change)
