"""Going on with paused work, deciding about uncertain steps, giving work up: each one transaction with a revision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal
from uuid import UUID

import msgspec

from peen.errors import Conflict, NotFound
from peen.execution.decide import ToolOutput
from peen.ids import SessionNo
from peen.store import activities, admissions, audit, controlevents, executions, feed, inbox, messages, sessions, turns
from peen.store.activities import StepRow
from peen.store.database import Tx
from peen.store.executions import ExecutionDetails
from peen.store.feed import NewEvent
from peen.store.inbox import InboxRow
from peen.wire.records import MessageRecord

UNKNOWN_OUTCOME: Final = (
    "Peen was interrupted while this call ran, so its outcome is unknown: it may have happened in full, in part or not "
    "at all. It was not repeated. Look at the present state before you go on."
)
NOTE: Final = (
    "Work on this turn was paused ({reason}) and goes on now. Other turns may have run meanwhile, and files may have "
    "changed: check what you rely on."
)


@dataclass(frozen=True, slots=True)
class Resumed:
    """A turn that runs again, and the message that had opened it."""

    turn_id: str
    request_id: str
    execution_id: str
    opener: InboxRow


def resume(
    tx: Tx,
    session_no: SessionNo,
    execution_id: bytes,
    *,
    control_revision: int,
    caller: str,
    automatic: bool,
    at_ms: int,
    provenance: Mapping[str, str] | None = None,
) -> Resumed:
    """Let a paused root run again: same turn, same ids, a new segment that `turn.resumed` opens.

    An uncertain step keeps it from going on until somebody has decided, unless the resumption is `automatic`: then
    its call reaches the model as an error that says so, and is not repeated.
    Raises: as `paused`; Conflict while something is undecided.
    """
    found = paused(tx, session_no, execution_id, control_revision=control_revision)
    if not automatic:
        check_decided(tx, found)
    for step in _undecided(tx, found):
        _settle(tx, found, step, ToolOutput(content=UNKNOWN_OUTCOME, is_error=True), "unknown", caller, at_ms=at_ms)
    if not turns.reopen(tx, found.turn_no):
        raise Conflict("the turn of this execution has completed")
    note = MessageRecord(role="system", content=NOTE.format(reason=found.pause_reason), injected=True)
    messages.append(tx, session_no, [note], turn_no=found.turn_no, at_ms=at_ms)
    messages.mark_complete(tx, found.turn_no)
    audit.reopen_runs(tx, found.turn_no)
    revision = executions.resume(
        tx, found.no, control_revision=control_revision, at_ms=at_ms, caller=caller, provenance=provenance
    )
    assert revision is not None, "its revision was checked in this transaction"
    admissions.drop(tx, found.no)
    uuid = str(UUID(bytes=execution_id))
    frame = NewEvent("turn.resumed", msgspec.json.encode({"executionId": uuid, "controlRevision": revision}))
    feed.append(tx, session_no, [frame], at_ms=at_ms, turn_no=found.turn_no)
    opener = inbox.by_turn(tx, session_no, found.turn_id)
    assert opener is not None, "every turn begins with an accepted message"
    return Resumed(str(UUID(bytes=found.turn_id)), str(UUID(bytes=opener.request_id)), uuid, opener)


def admit(
    tx: Tx,
    session_no: SessionNo,
    execution_id: bytes,
    *,
    control_revision: int,
    caller: str,
    automatic: bool,
    at_ms: int,
    provenance: Mapping[str, str] | None = None,
) -> None:
    """Store that a paused root is to go on when the turn that runs has ended: a crash does not forget it, a Stop does.

    To ask for it again at the same revision changes nothing. Raises: as `resume`.
    """
    found = paused(tx, session_no, execution_id, control_revision=control_revision)
    if not automatic:
        check_decided(tx, found)
    is_new = admissions.admit(
        tx, session_no, found.no, control_revision=control_revision, caller=caller, is_automatic=automatic,
        provenance=msgspec.json.encode(provenance or {}), at_ms=at_ms,
    )  # fmt: skip
    if is_new:
        data = {"controlRevision": control_revision, "caller": caller, **(provenance or {})}
        controlevents.add_event(tx, found.no, "execution.continueRequested", data, at_ms=at_ms)


def withdraw(tx: Tx, execution_no: int, *, reason: str, at_ms: int) -> None:
    """Forget an admitted continuation that has turned out not to be possible."""
    if admissions.drop(tx, execution_no):
        controlevents.add_event(tx, execution_no, "execution.continuationDropped", {"reason": reason}, at_ms=at_ms)


def resolve(
    tx: Tx,
    session_no: SessionNo,
    execution_id: bytes,
    step: str,
    *,
    decision: Literal["accept", "retry"],
    outcome: str | None,
    control_revision: int,
    caller: str,
    at_ms: int,
    provenance: Mapping[str, str] | None = None,
) -> None:
    """Record what was found out about an uncertain step: it happened (`accept`), or it may be done again (`retry`).

    It does not resume the execution. `provenance` is recorded beside `caller`. Raises: NotFound, Conflict.
    """
    found = paused(tx, session_no, execution_id, control_revision=control_revision)
    row = next((row for row in activities.steps(tx, found.no) if row.step == step), None)
    if row is None:
        raise NotFound("no such activity in this execution")
    if row.state != "uncertain":
        raise Conflict(f"this activity is {row.state}: only an uncertain one needs a decision")
    if decision == "accept":
        content = outcome if outcome is not None else "The outcome was inspected and accepted; no output is known."
        _settle(tx, found, row, ToolOutput(content=content), "accept", caller, at_ms=at_ms, provenance=provenance)
    else:
        resolution: dict[str, object] = {"decision": "retry", "caller": caller, **(provenance or {})}
        activities.resolve(tx, found.no, step, output=None, resolution=resolution, at_ms=at_ms)


def abandon(
    tx: Tx, session_no: SessionNo, execution_id: bytes, *, control_revision: int, caller: str, at_ms: int
) -> None:
    """Give paused work up: it ends as cancelled, and messages that waited for it are undelivered. Raises: Conflict.

    Where a Stop is still ending the turn, that end names them first.
    """
    found = paused(tx, session_no, execution_id, control_revision=control_revision)
    turn = turns.by_no(tx, found.turn_no)
    assert turn is not None
    if turn.state != "running":
        for row in inbox.queued(tx, session_no, found.turn_id):
            inbox.settle(tx, row.no, state="undelivered", turn_no=found.turn_no)
    executions.abandon(tx, found.no, control_revision=control_revision, at_ms=at_ms, caller=caller)
    admissions.drop(tx, found.no)


def continue_input(tx: Tx, session_no: SessionNo, request_id: bytes, *, stop_revision: int, turn_id: bytes) -> InboxRow:
    """Let a message that a Stop left waiting open a turn of its own. Raises: SessionNotFound, NotFound, Conflict."""
    sessions.check_kept(tx, session_no)
    session = sessions.by_no(tx, session_no)
    assert session is not None
    current_revision = session.stop_revision
    row = inbox.by_request(tx, session_no, request_id)
    if row is None:
        raise NotFound("requestId: no accepted message of this session has it")
    if stop_revision != current_revision:
        raise Conflict(f"stopRevision: the session is at {current_revision}; look again before you go on")
    turn = None if row.turn_id is None else turns.by_id(tx, row.turn_id)
    if row.state != "queued" or (turn is not None and turn.state == "running"):
        raise Conflict(f"this message is {row.state} and does not wait for a decision")
    inbox.defer(tx, row.no, turn_id=turn_id)
    return row._replace(turn_id=turn_id, state="deferred")


def paused(tx: Tx, session_no: SessionNo, execution_id: bytes, *, control_revision: int) -> ExecutionDetails:
    """The paused execution, if it is still at the revision that the caller has inspected.

    Raises: SessionNotFound if its session is being deleted; NotFound, Conflict.
    """
    sessions.check_kept(tx, session_no)  # the caller has looked before this transaction
    found = executions.details(tx, execution_id)
    if found is None or found.session_no != session_no:
        raise NotFound("no such execution in this session")
    if found.state != "paused":
        raise Conflict(f"this execution is {found.state}, not paused")
    if found.control_revision != control_revision:
        raise Conflict(f"controlRevision: it is {found.control_revision} now; look at the execution again")
    return found


def check_decided(tx: Tx, found: ExecutionDetails) -> None:
    """Raises: Conflict while nobody has decided about an uncertain step."""
    if uncertain := _undecided(tx, found):
        names = ", ".join(step.step for step in uncertain)
        raise Conflict(
            f"nobody has decided about the interrupted effect of {names}: resolve it as accept or retry first"
        )


def _undecided(tx: Tx, found: ExecutionDetails) -> list[StepRow]:
    return [step for step in activities.steps(tx, found.no) if step.state == "uncertain"]


def _settle(
    tx: Tx,
    found: ExecutionDetails,
    step: StepRow,
    output: ToolOutput,
    decision: str,
    caller: str,
    *,
    at_ms: int,
    provenance: Mapping[str, str] | None = None,
) -> None:
    """An uncertain call gets its result: for the execution that goes on, and for the transcript."""
    resolution: dict[str, object] = {"decision": decision, "caller": caller, **(provenance or {})}
    encoded = msgspec.json.encode(output)
    activities.resolve(tx, found.no, step.step, output=encoded, resolution=resolution, at_ms=at_ms)
    result = MessageRecord(role="tool", content=output.content, tool_call_id=step.call_id, is_error=output.is_error)
    messages.append(tx, found.session_no, [result], turn_no=found.turn_no, at_ms=at_ms)
