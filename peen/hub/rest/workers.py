"""The worker processes that a session had, and the spaces and directories where there may be some."""

from __future__ import annotations

from functools import partial
from typing import Literal, cast
from uuid import UUID

from peen.hub.api import Api
from peen.hub.request import ApiRequest, ApiResponse, Page, check_query, json_response, page
from peen.hub.rest.pages import fill
from peen.hub.router import Router
from peen.store import generations
from peen.store.database import Reader
from peen.store.generations import GenerationRecord
from peen.store.sessions import SessionRow
from peen.wire.rest import AgentSpace, AgentSpaceList, WorkerGeneration, WorkerPage, WorkspaceRoots, rfc3339


def add_workers(router: Router) -> None:
    router.add("GET", "/api/v1/session/workers", list_workers, session=True)
    router.add("GET", "/api/v1/agent-spaces", list_agent_spaces)
    router.add("GET", "/api/v1/workspace-roots", list_workspace_roots)


async def list_workers(api: Api, request: ApiRequest) -> ApiResponse:
    """Newest first."""
    session, wanted = api.session(request.session), page(request)
    return await api.scan(partial(workers_page, session=session, wanted=wanted))


def workers_page(db: Reader, session: SessionRow, wanted: Page) -> ApiResponse:
    rows = generations.page(db, session.no, limit=wanted.limit + 1, offset=wanted.offset)
    found, has_more = fill((_generation(session.uuid, row) for row in rows), limit=wanted.limit)
    return json_response(WorkerPage(items=found, limit=wanted.limit, offset=wanted.offset, has_more=has_more))


def list_agent_spaces(api: Api, request: ApiRequest) -> ApiResponse:
    """What `agentSpace` may name. `control` is the controller's own machine and user, and grants nothing beyond."""
    check_query(request)
    space = AgentSpace(name=api.agent_space, host_root_equivalent=False, capability_warnings=[])
    return json_response(AgentSpaceList(items=[space], default=api.agent_space))


def list_workspace_roots(api: Api, request: ApiRequest) -> ApiResponse:
    check_query(request)
    return json_response(WorkspaceRoots(roots=[str(api.policy.root)]))


def _generation(session_id: str, row: GenerationRecord) -> WorkerGeneration:
    return WorkerGeneration(
        id=str(UUID(bytes=row.id)),
        session_id=session_id,
        kind=cast('Literal["native", "docker"]', row.kind),
        agent_space=row.agent_space,
        agent_space_revision=row.agent_space_revision,
        state=cast('Literal["requested", "starting", "ready", "stopping", "stopped", "failed"]', row.state),
        workspace=row.workspace,
        container_id=row.container_id,
        image_digest=row.image_digest,
        # The store keeps for every end why it came; that of an orderly one is no failure.
        failure_detail=row.failure_detail if row.state == "failed" else None,
        created_at=rfc3339(row.created_at_ms),
        started_at=None if row.started_at_ms is None else rfc3339(row.started_at_ms),
        ended_at=None if row.ended_at_ms is None else rfc3339(row.ended_at_ms),
    )
