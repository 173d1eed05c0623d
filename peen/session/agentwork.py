"""What an agent's tools do with paused work: the same decisions as over REST, each bound to the call that takes it."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from peen.errors import StaleClaim
from peen.session import inspection, resumption
from peen.session.writer import Writer
from peen.store import activities, executions, sessions, turns
from peen.store.database import Reader, Tx
from peen.wire.turncalls import (
    ContinuationAdmitted,
    ContinueExecution,
    ExecutionActivityResolved,
    ExecutionsRead,
    ReadExecution,
    ResolveExecutionActivity,
)
from peen.wire.workerstruct import CallingTool

AGENT: Final = "agent"
"""The caller that control events name; `turnId`, `executionId`, `activityId` and `callId` beside it say which one."""


def read(db: Reader, writer: Writer, request: ReadExecution) -> ExecutionsRead:
    """The paused executions of the session, or the one that is named, whatever its state. Raises: NotFound."""
    session = sessions.by_no(db, writer.session_no)
    assert session is not None
    if request.execution_id is None:
        rows = executions.paused_of(db, session.no, limit=inspection.MAX_LISTED + 1)
        shown = inspection.listed(session.uuid, rows[: inspection.MAX_LISTED], request.max_bytes)
        return ExecutionsRead(paused=shown, has_more=len(shown) < len(rows))
    found = inspection.found(db, session.no, request.execution_id)
    view, omitted = inspection.fitted(inspection.view(db, writer.blobs, session, found), request.max_bytes)
    return ExecutionsRead(view=view, omitted_activities=omitted)


def resolve(tx: Tx, writer: Writer, request: ResolveExecutionActivity, *, at_ms: int) -> ExecutionActivityResolved:
    """Record a decision about an uncertain activity. It resumes nothing.

    Raises: StaleClaim unless the asking call is live; NotFound, Conflict.
    """
    provenance = _caller(tx, writer, request.caller)
    found = inspection.found(tx, writer.session_no, request.execution_id)
    step = inspection.step_of(tx, found, request.activity_id)
    resumption.resolve(
        tx,
        writer.session_no,
        found.id,
        step,
        decision=request.decision,
        outcome=request.outcome,
        control_revision=request.control_revision,
        caller=AGENT,
        at_ms=at_ms,
        provenance=provenance,
    )
    return ExecutionActivityResolved(step=step)


def admit_continuation(tx: Tx, writer: Writer, request: ContinueExecution, *, at_ms: int) -> ContinuationAdmitted:
    """Store that an agent wants paused work to go on: the session carries it out when the agent's turn has ended.

    Raises: StaleClaim unless the asking call is live; NotFound, Conflict.
    """
    provenance = _caller(tx, writer, request.caller)
    wanted = inspection.found(tx, writer.session_no, request.execution_id)
    resumption.admit(
        tx,
        writer.session_no,
        wanted.id,
        control_revision=request.control_revision,
        caller=AGENT,
        automatic=False,
        at_ms=at_ms,
        provenance=provenance,
    )
    return ContinuationAdmitted()


def _caller(tx: Tx, writer: Writer, caller: CallingTool) -> dict[str, str]:
    """Who asks: a tool call that this worker generation carries out right now. Raises: StaleClaim."""
    execution = executions.held(
        tx, UUID(caller.execution_id).bytes, holder=bytes.fromhex(caller.holder), generation_no=writer.generation_no
    )
    if execution.session_no != writer.session_no or execution.state != "running":
        raise StaleClaim("the execution that asks does not run in this session (any more)")
    step = activities.live_call(tx, execution.no, caller.call_id, generation_no=writer.generation_no)
    turn = turns.by_no(tx, execution.turn_no)
    if step is None or turn is None:
        raise StaleClaim("the tool call that asks is not running under this worker generation")
    return {
        "turnId": str(UUID(bytes=turn.id)),
        "executionId": caller.execution_id,
        "activityId": inspection.activity_id(execution.id, step),
        "callId": caller.call_id,
    }
