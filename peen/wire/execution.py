"""Executions as the REST API shows them, and the decisions that it takes about them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Raw

from peen.wire.rest import Answer, Body, Image, Paged

Revision = Annotated[int, Meta(ge=0)]


class Admission(Answer, frozen=True, kw_only=True):
    """Somebody has asked for paused work to go on: it does when the turn that runs has ended, unless a Stop comes."""

    caller: str
    admitted_at: str


class Execution(Answer, frozen=True, kw_only=True):
    """The durable record of one agent's work on one turn. Its revision changes with every pause and resumption."""

    id: str
    session_id: str
    turn_id: str
    kind: str
    state: str
    pause_reason: str | None = None
    admission: Admission | None = None
    control_revision: int
    round_limit: int
    created_at: str
    ended_at: str | None = None


class Activity(Answer, frozen=True, kw_only=True):
    """One step. `uncertain`: it was cut off and may have had an effect. `output` is null until it has ended."""

    id: str
    step: str
    kind: str
    call_id: str | None = None
    state: str
    attempt: int
    input: Raw
    output: Raw


class ControlEvent(Answer, frozen=True, kw_only=True):
    """A pause, a resumption, a decision."""

    type: str
    data: Raw
    created_at: str


class WaitingMessage(Answer, frozen=True, kw_only=True):
    """An accepted message that has not reached the model."""

    request_id: str
    message: str
    images: list[Image] | None = None


class ExecutionPage(Paged, frozen=True, kw_only=True):
    """`waiting` are the accepted messages of the session that a Stop or an interruption left waiting, the oldest first,
    on every page; one of them may go on by itself with `requestId` and `stopRevision`.
    """

    executions: list[Execution]
    stop_revision: int
    waiting: list[WaitingMessage]


class ExecutionRun(Answer, frozen=True, kw_only=True):
    """One stretch of an execution: from its creation, or from a resumption, to the next pause or to its end.

    `outcome` is `running`, `paused`, `completed`, `failed` or `cancelled`; `reason` is that of a pause, `caller` who
    let it go on, `worker_generation_id` the worker that took hold of it, if one did.
    """

    worker_generation_id: str | None = None
    caller: str | None = None
    started_at: str
    ended_at: str | None = None
    outcome: str
    reason: str | None = None


class ExecutionView(Answer, frozen=True, kw_only=True):
    """An execution with everything that a decision needs. `runs` is left out of what an agent reads."""

    execution: Execution
    stop_revision: int
    runs: list[ExecutionRun] | None = None
    activities: list[Activity]
    control_events: list[ControlEvent]
    inbox: list[WaitingMessage]


class ResumeExecution(Body, frozen=True, kw_only=True):
    control_revision: Revision


class AbandonExecution(Body, frozen=True, kw_only=True):
    control_revision: Revision


class ResolveActivity(Body, frozen=True, kw_only=True):
    """`accept`: it happened, and `outcome` is what the model reads of it. `retry`: it may be done again."""

    decision: Literal["accept", "retry"]
    outcome: str | None = None
    control_revision: Revision


class ContinueInput(Body, frozen=True, kw_only=True):
    request_id: str
    stop_revision: Revision
