"""Executions: what was done step by step, and decisions about work that is paused."""

from __future__ import annotations

from functools import partial
from uuid import UUID

import msgspec

from peen.errors import Conflict, ValidationFailed
from peen.hub.api import Api
from peen.hub.request import ApiRequest, ApiResponse, check_no_body, check_query, decode_body, json_response, page
from peen.hub.rest.sessions import resource as session_resource
from peen.hub.router import Router
from peen.ids import parse_uuid4
from peen.session import inspection
from peen.session.requests import ResumeRequest
from peen.session.resumption import abandon, resolve
from peen.session.runs import runs_of, shown
from peen.store import executions, inbox
from peen.store.executions import ExecutionDetails
from peen.store.sessions import SessionRow
from peen.wire.execution import (
    AbandonExecution,
    ContinueInput,
    ExecutionPage,
    ExecutionView,
    ResolveActivity,
    ResumeExecution,
)

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
    """Newest first, with the messages that wait until somebody lets them go on."""
    session, wanted = api.session(request.session), page(request)
    rows = executions.page(api.database.reader, session.no, limit=wanted.limit + 1, offset=wanted.offset)
    items = [inspection.resource(session.uuid, row) for row in rows[: wanted.limit]]
    has_more = len(rows) > wanted.limit
    return json_response(
        ExecutionPage(
            executions=items,
            stop_revision=session.stop_revision,
            waiting=inspection.waiting(inbox.stopped(api.database.reader, session.no)),
            limit=wanted.limit,
            offset=wanted.offset,
            has_more=has_more,
        )
    )


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
    step = inspection.step_of(api.database.reader, found, request.params["activityId"])
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
    return json_response(session_resource(api, api.session(request.session)), status=202)


def _found(api: Api, session: SessionRow, request: ApiRequest) -> ExecutionDetails:
    return inspection.found(api.database.reader, session.no, request.params["executionId"])


def _after(api: Api, session: SessionRow, request: ApiRequest, *, status: int = 200) -> ApiResponse:
    return json_response(_view(api, session, _found(api, session, request)), status=status)


def _view(api: Api, session: SessionRow, row: ExecutionDetails) -> ExecutionView:
    view = inspection.view(api.database.reader, api.blobs, api.session(session.uuid), row)
    found = runs_of(api.database.reader, row) if api.runs is None else api.runs(row)
    return msgspec.structs.replace(view, runs=shown(found))
