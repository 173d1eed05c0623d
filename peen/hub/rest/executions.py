"""Executions: what was done step by step, and decisions about work that is paused."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from msgspec import Raw

from peen.errors import Conflict, NotFound, ValidationFailed
from peen.hub.api import Api
from peen.hub.request import ApiRequest, ApiResponse, check_no_body, check_query, decode_body, json_response, page
from peen.hub.rest.sessions import resource as session_resource
from peen.hub.router import Router
from peen.ids import derived_id, parse_uuid4
from peen.session.requests import ResumeRequest
from peen.session.resumption import abandon, resolve
from peen.store import executions, inbox, keys
from peen.store.executions import ExecutionDetails, StepRow
from peen.store.sessions import SessionRow
from peen.wire.execution import (
    AbandonExecution,
    Activity,
    ContinueInput,
    ControlEvent,
    Execution,
    ExecutionPage,
    ExecutionView,
    ResolveActivity,
    ResumeExecution,
    WaitingMessage,
)
from peen.wire.rest import rfc3339

CALLER = "api"
_ONE = "/api/v1/session/executions/{executionId}"


def add_executions(router: Router) -> None:
    router.add("GET", "/api/v1/session/executions", list_executions, session=True)
    router.add("GET", _ONE, get_execution, session=True)
    router.add("POST", f"{_ONE}/pause", pause_execution, session=True)
    router.add("POST", f"{_ONE}/resume", resume_execution, session=True)
    router.add("POST", f"{_ONE}/abandon", abandon_execution, session=True)
    router.add("POST", f"{_ONE}/activities/{{activityId}}/resolve", resolve_activity, session=True)
    router.add("POST", "/api/v1/session/continue", continue_input, session=True)


def list_executions(api: Api, request: ApiRequest) -> ApiResponse:
    """Newest first."""
    session, wanted = api.session(request.session), page(request)
    rows = executions.page(api.database.reader, session.no, limit=wanted.limit + 1, offset=wanted.offset)
    items = [_resource(session.uuid, row) for row in rows[: wanted.limit]]
    has_more = len(rows) > wanted.limit
    return json_response(ExecutionPage(executions=items, limit=wanted.limit, offset=wanted.offset, has_more=has_more))


def get_execution(api: Api, request: ApiRequest) -> ApiResponse:
    """With every step, every decision, and the messages that wait for it. Reading resumes nothing."""
    check_query(request)
    session = api.session(request.session)
    return json_response(_view(api, session, _found(api, session, request)))


async def pause_execution(api: Api, request: ApiRequest) -> ApiResponse:
    """Stop the running root: the same as `/session/cancel`, for the execution that the caller looked at."""
    check_query(request)
    check_no_body(request)
    session = api.session(request.session)
    found = _found(api, session, request)
    if found.state != "running":
        raise Conflict(f"this execution is {found.state}, not running")
    await api.stop(session.uuid)
    return _after(api, session, request, status=202)


async def resume_execution(api: Api, request: ApiRequest) -> ApiResponse:
    """Go on with paused work, as it was inspected. While another turn runs, it waits for its end."""
    check_query(request)
    body = decode_body(request, ResumeExecution)
    session = api.session(request.session)
    found = _found(api, session, request)
    await api.resume(session.uuid, ResumeRequest(str(UUID(bytes=found.id)), body.control_revision, CALLER))
    return _after(api, session, request, status=202)


async def abandon_execution(api: Api, request: ApiRequest) -> ApiResponse:
    """Give paused work up."""
    check_query(request)
    body = decode_body(request, AbandonExecution)
    session = api.session(request.session)
    found = _found(api, session, request)
    change = partial(
        abandon,
        session_no=session.no,
        execution_id=found.id,
        control_revision=body.control_revision,
        caller=CALLER,
        at_ms=api.entropy.now_ms(),
    )
    await api.database.write(change)
    return _after(api, session, request)


async def resolve_activity(api: Api, request: ApiRequest) -> ApiResponse:
    """Record a decision about an uncertain step. It resumes nothing."""
    check_query(request)
    body = decode_body(request, ResolveActivity)
    session = api.session(request.session)
    found = _found(api, session, request)
    wanted = request.params["activityId"]
    steps = executions.steps(api.database.reader, found.no)
    step = next((row.step for row in steps if _activity_id(found, row) == wanted), None)
    if step is None:
        raise NotFound("no such activity in this execution")
    if body.decision == "retry" and body.outcome is not None:
        raise ValidationFailed("outcome: only an accepted activity has one; leave it out, or accept")
    change = partial(
        resolve,
        session_no=session.no,
        execution_id=found.id,
        step=step,
        decision=body.decision,
        outcome=body.outcome,
        control_revision=body.control_revision,
        caller=CALLER,
        at_ms=api.entropy.now_ms(),
    )
    await api.database.write(change)
    return _after(api, session, request)


async def continue_input(api: Api, request: ApiRequest) -> ApiResponse:
    """Let a message that a Stop left waiting open a turn of its own."""
    check_query(request)
    body = decode_body(request, ContinueInput)
    if parse_uuid4(body.request_id) is None:
        raise ValidationFailed("requestId: must be a version 4 UUID in lower case with dashes")
    session = api.session(request.session)
    await api.continue_input(session.uuid, body.request_id, body.stop_revision)
    return json_response(session_resource(api.database.reader, api.session(request.session)), status=202)


def _found(api: Api, session: SessionRow, request: ApiRequest) -> ExecutionDetails:
    wanted = parse_uuid4(request.params["executionId"])
    found = None if wanted is None else executions.details(api.database.reader, wanted.bytes)
    if found is None or found.session_no != session.no:
        raise NotFound("no such execution in this session")
    return found


def _after(api: Api, session: SessionRow, request: ApiRequest, *, status: int = 200) -> ApiResponse:
    return json_response(_view(api, session, _found(api, session, request)), status=status)


def _resource(session_id: str, row: ExecutionDetails) -> Execution:
    return Execution(
        id=str(UUID(bytes=row.id)),
        session_id=session_id,
        turn_id=str(UUID(bytes=row.turn_id)),
        kind=row.kind,
        state=row.state,
        pause_reason=row.pause_reason if row.state == "paused" else None,
        control_revision=row.control_revision,
        round_limit=row.round_limit,
        created_at=rfc3339(row.created_at_ms),
        ended_at=None if row.ended_at_ms is None else rfc3339(row.ended_at_ms),
    )


def _view(api: Api, session: SessionRow, row: ExecutionDetails) -> ExecutionView:
    reader = api.database.reader
    return ExecutionView(
        execution=_resource(session.uuid, row),
        stop_revision=api.session(session.uuid).stop_revision,
        activities=[_activity(row, step) for step in executions.steps(reader, row.no)],
        control_events=[
            ControlEvent(type=event_type, data=Raw(data), created_at=rfc3339(at_ms))
            for event_type, data, at_ms in executions.events(reader, row.no)
        ],
        inbox=[
            WaitingMessage(request_id=str(UUID(bytes=waiting.request_id)), message=waiting.content)
            for waiting in inbox.queued(reader, session.no, row.turn_id)
        ],
    )


def _activity(execution: ExecutionDetails, row: StepRow) -> Activity:
    return Activity(
        id=_activity_id(execution, row),
        step=row.step,
        kind=row.kind,
        call_id=row.call_id,
        state=row.state,
        attempt=row.attempt,
        input=Raw(row.given),
        output=Raw(b"null") if row.output is None else Raw(row.output),
    )


def _activity_id(execution: ExecutionDetails, row: StepRow) -> str:
    return derived_id("activity", execution.id, keys.step_position(row.step))
