"""Sessions: opened by naming a workspace, listed, looked at."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Literal

import structlog

from peen.errors import AgentSpaceNotAllowed
from peen.hub.api import Api
from peen.hub.request import (
    ApiRequest,
    ApiResponse,
    check_no_body,
    check_query,
    decode_body,
    json_response,
    page,
    path_uuid,
)
from peen.hub.rest.usage import used_so_far
from peen.hub.router import Router
from peen.model.price import dollars, picos
from peen.store import deletion, executions, sessions
from peen.store.sessions import SessionRow
from peen.wire.records import Budget
from peen.wire.rest import (
    CancelAccepted,
    OpenBudget,
    OpenedSession,
    OpenSession,
    Session,
    SessionDeleted,
    SessionLimits,
    SessionPage,
    rfc3339,
)

log = structlog.get_logger(__name__)


def add_sessions(router: Router) -> None:
    router.add("POST", "/api/v1/sessions/open", open_session)
    router.add("GET", "/api/v1/sessions", list_sessions)
    router.add("DELETE", "/api/v1/sessions/{sessionId}", delete_session)
    router.add("GET", "/api/v1/session", get_session, session=True)
    router.add("POST", "/api/v1/session/cancel", cancel_session, session=True)


async def open_session(api: Api, request: ApiRequest) -> ApiResponse:
    """The session of a workspace, made if there is none.

    An existing one keeps its agent space; a budget that is named replaces the one it has.
    """
    check_query(request)
    body = decode_body(request, OpenSession)
    if body.agent_space is not None and body.agent_space != api.agent_space:
        raise AgentSpaceNotAllowed("agentSpace: this deployment does not offer it")
    workspace = str(api.policy.resolve(body.workspace))
    existing = sessions.by_workspace(api.database.reader, workspace)
    if existing is not None and body.budget is None:
        return _opened(api, existing, created=False)
    change = partial(
        sessions.open_or_create,
        new_id=api.entropy.uuid4().bytes,
        workspace=workspace,
        agent_space=api.agent_space,
        root_agent=api.root_agent,
        model=api.default_model,
        at_ms=api.entropy.now_ms(),
        budget=None if body.budget is None else _budget(body.budget),
    )
    row, created = await api.database.write(change)
    if row.budget_cost and (warning := api.terms.uncounted(api.default_model)):
        log.warning(warning, session_id=row.uuid, limit="budget.costUsd", model=api.default_model)
    return _opened(api, row, created=created)


def list_sessions(api: Api, request: ApiRequest) -> ApiResponse:
    """Most recently used first."""
    wanted = page(request)
    rows = sessions.page(api.database.reader, limit=wanted.limit + 1, offset=wanted.offset)
    items = [resource(api, row) for row in rows[: wanted.limit]]
    return json_response(
        SessionPage(items=items, limit=wanted.limit, offset=wanted.offset, has_more=len(rows) > wanted.limit)
    )


def get_session(api: Api, request: ApiRequest) -> ApiResponse:
    check_query(request)
    return json_response(resource(api, api.session(request.session)))


async def cancel_session(api: Api, request: ApiRequest) -> ApiResponse:
    """Stop. Answers once nothing begins any more; what runs ends within seconds, and its frames tell."""
    check_query(request)
    check_no_body(request)
    return json_response(CancelAccepted(cancel_requested=await api.stop(request.session)), status=202)


async def delete_session(api: Api, request: ApiRequest) -> ApiResponse:
    """Remove a session with everything that is stored of it. Answers when nothing of it is left.

    From the first step on nothing finds it any more, and the rest is done even if the controller ends meanwhile.
    """
    check_query(request)
    check_no_body(request)
    session_id = path_uuid(request, "sessionId").bytes
    # On a full disk this is how space comes back, so it may use the reserve.
    mark = partial(deletion.mark, session_id=session_id, at_ms=api.entropy.now_ms())
    session = await api.database.write(mark, terminal=True)
    await api.release(session)
    await deletion.remove(api.database, session.no)
    await deletion.give_back(api.database)
    return json_response(SessionDeleted(deleted=True))


def resource(api: Api, row: SessionRow) -> Session:
    """A session as clients see it. `running` wins over `paused`: paused work does not keep a session from working."""
    is_running = row.active_turn_cursor is not None
    status: Literal["running", "paused", "idle"] = (
        "running" if is_running else "paused" if row.paused_executions else "idle"
    )
    return Session(
        id=row.uuid,
        created_at=rfc3339(row.created_at_ms),
        updated_at=rfc3339(row.updated_at_ms),
        last_message_at=None if row.last_message_at_ms is None else rfc3339(row.last_message_at_ms),
        message_count=row.message_count,
        completed_turn_count=row.completed_turn_count,
        active_turn=is_running,
        status=status,
        pause_reason=executions.pause_reason(api.database.reader, row.no) if status == "paused" else None,
        agent=row.root_agent,
        model=row.model,
        workspace=row.workspace,
        agent_space=row.agent_space,
        feed_sequence=row.feed_sequence,
        active_turn_feed_sequence=row.active_turn_cursor,
        usage=used_so_far(row.spent),
        budget=_limits(api.terms.budget(row)),
    )


def _budget(wanted: OpenBudget) -> tuple[int, int]:
    """Tokens and trillionths of a dollar."""
    return wanted.tokens or 0, picos(Decimal(wanted.cost_usd or "0"))


def _limits(budget: Budget | None) -> SessionLimits | None:
    if budget is None:
        return None
    cost_usd = dollars(budget.max_cost) if budget.max_cost else None
    return SessionLimits(cost_usd=cost_usd, tokens=budget.max_tokens or None)


def _opened(api: Api, row: SessionRow, *, created: bool) -> ApiResponse:
    answer = OpenedSession(session=resource(api, row), created=created)
    return json_response(answer, headers={"x-session-id": row.uuid})
