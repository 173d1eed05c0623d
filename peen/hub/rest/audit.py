"""The audit of models: each run with its calls, as they were asked and answered."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final, Literal, cast
from uuid import UUID

import msgspec

from peen.errors import NotFound
from peen.hub.api import MAX_PAGE_BYTES, Api
from peen.hub.request import ApiRequest, ApiResponse, Page, json_response, page, path_uuid, query_choice
from peen.hub.rest.costs import costs_of
from peen.hub.rest.modelcalls import SUMMARIZING, RunRequests, messages_of, model_calls, summary_said
from peen.hub.rest.pages import fill
from peen.hub.rest.usage import token_usage
from peen.hub.router import Router
from peen.store import audit, messages
from peen.store.audit import RunRow
from peen.store.blobs.rows import Blobs
from peen.store.database import Reader
from peen.store.sessions import SessionRow
from peen.wire.audit import ModelCallPage, ModelRun, ModelRunPage
from peen.wire.rest import encode, rfc3339

STAGES: Final = ("turn", "child", "compaction")
STATES: Final = ("running", "completed", "failed", "cancelled", "interrupted")

_decode_settings: Final = msgspec.json.Decoder(dict[str, object]).decode


def add_audit(router: Router) -> None:
    router.add("GET", "/api/v1/session/model-runs", list_model_runs, session=True)
    router.add("GET", "/api/v1/session/model-runs/{modelRunId}/calls", list_model_calls, session=True)


async def list_model_runs(api: Api, request: ApiRequest) -> ApiResponse:
    """Newest first; `stage` and `state` leave out the others."""
    session, wanted = api.session(request.session), page(request, also=("stage", "state"))
    stage, state = query_choice(request, "stage", STAGES), query_choice(request, "state", STATES)
    return await api.scan(partial(runs_page, session=session, stage=stage, state=state, wanted=wanted))


async def list_model_calls(api: Api, request: ApiRequest) -> ApiResponse:
    """In the order of the rounds."""
    session, wanted = api.session(request.session), page(request)
    run_id = path_uuid(request, "modelRunId").bytes
    return await api.scan(partial(calls_page, blobs=api.blobs, session=session, run_id=run_id, wanted=wanted))


def runs_page(db: Reader, session: SessionRow, *, stage: str | None, state: str | None, wanted: Page) -> ApiResponse:
    rows = audit.runs(db, session.no, stage=stage, state=state, limit=wanted.limit + 1, offset=wanted.offset)
    runs: Iterator[ModelRun] = (_model_run(db, session, row) for row in rows)
    found, has_more = fill(runs, limit=wanted.limit)
    return json_response(ModelRunPage(model_runs=found, limit=wanted.limit, offset=wanted.offset, has_more=has_more))


def calls_page(db: Reader, blobs: Blobs, session: SessionRow, *, run_id: bytes, wanted: Page) -> ApiResponse:
    """Raises: NotFound, also for a run of another session."""
    run = audit.run_by_id(db, session.no, run_id)
    if run is None:
        raise NotFound("this session has no such model run")
    requests = RunRequests(db, blobs, session.no, run)
    rounds = audit.rounds(db, run.no, limit=wanted.limit + 1, offset=wanted.offset)
    shown = _model_run(db, session, run)
    left = MAX_PAGE_BYTES - len(encode(shown))
    calls, has_more = fill(model_calls(session, run, requests, rounds), limit=wanted.limit, max_bytes=left)
    return json_response(
        ModelCallPage(
            model_run=shown,
            calls=calls,
            limit=wanted.limit,
            offset=wanted.offset,
            has_more=has_more,
        )
    )


def _model_run(db: Reader, session: SessionRow, row: RunRow) -> ModelRun:
    attempts = [attempt for attempts in audit.rounds(db, row.no) for attempt in attempts]
    completed = [attempt for attempt in attempts if attempt.state == "completed"]
    # What a summarizer says stands in no transcript.
    own = [] if row.stage == SUMMARIZING else messages.of_turn(db, row.turn_no)
    summary = summary_said(db, row) if row.stage == SUMMARIZING and row.state == "completed" else None
    answered = [message for message in own if message.message.role in ("assistant", "tool")]
    # The last answer of a run that completed is its outcome; any other run has none.
    outcome = [m.message for m in answered if m.message.role == "assistant"][-1:] if row.state == "completed" else []
    costs = costs_of(attempts)
    connection, _, model_id = row.model.partition("/")
    return ModelRun(
        id=str(UUID(bytes=row.id)),
        session_id=session.uuid,
        turn_id=str(UUID(bytes=row.turn_id)),
        stage=cast('Literal["turn", "child", "compaction"]', row.stage),
        model_reference=row.model,
        connection_name=connection,
        requested_model_id=model_id,
        response_model_id=(completed[-1].response_model or "") if completed else "",
        request_settings=_decode_settings(row.request_settings),
        state=cast('Literal["running", "completed", "failed", "cancelled", "interrupted"]', row.state),
        response_text=summary or "".join(message.content for message in outcome),
        response_thinking="".join(message.thinking or "" for message in outcome),
        finish_reason=row.finish_reason,
        response_messages=messages_of(answered),
        response_injections=messages_of(m for m in own if m.message.role == "user" and m.message.injected),
        response_usage=token_usage(attempts),
        response_cost_amount=costs.response,
        retry_cost_amount=costs.retry,
        billed_cost_amount=costs.billed,
        cost_known=costs.known,
        failure_classification=row.failure_classification,
        failure_detail=row.failure_detail,
        started_at=rfc3339(row.started_at_ms),
        completed_at=None if row.completed_at_ms is None else rfc3339(row.completed_at_ms),
    )
