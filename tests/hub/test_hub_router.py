from __future__ import annotations

import json
from typing import Any

import pytest

from peen.entropy import SeededEntropy
from peen.errors import NotFound, StorageFailed, ValidationFailed
from peen.hub.request import ApiRequest, ApiResponse, MethodNotAllowed, json_response
from peen.hub.rest.health import add_health
from peen.hub.router import Router, dispatch
from peen.wire.rest import WorkspaceRoots

SESSION = "11111111-1111-4111-8111-111111111111"
UUID = "0f0f0f0f-0f0f-4f0f-8f0f-0f0f0f0f0f0f"


def echo(api: Any, request: ApiRequest) -> ApiResponse:
    roots = [str(api), request.method, *request.params.values(), request.session_id or "-", request.request_id]
    return json_response(WorkspaceRoots(roots=roots))


async def echo_later(api: Any, request: ApiRequest) -> ApiResponse:
    return echo(api, request)


def router() -> Router:
    made = Router()
    made.add("GET", "/api/v1/models", echo)
    made.add("POST", "/api/v1/models", echo_later)
    made.add("GET", "/api/v1/session", echo, session=True)
    made.add("GET", "/api/v1/session/agents/{agentRunId}/events", echo_later, session=True)
    made.add("GET", "/api/v1/session/agents/own/events", echo)
    add_health(made)
    return made


async def ask(method: str, path: str, **headers: str) -> tuple[int, Any, dict[str, str]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = ApiRequest(method, path, headers=named)
    answer = await dispatch(router(), "api", request, SeededEntropy(1))
    return answer.status, json.loads(answer.body), dict(answer.headers)


async def test_a_handler_is_called_whether_it_waits_or_not() -> None:
    status, body, headers = await ask("GET", "/api/v1/models", x_request_id=UUID)
    later_status, later_body, _ = await ask("POST", "/api/v1/models", x_request_id=UUID)

    assert (status, body["roots"]) == (200, ["api", "GET", "-", UUID])
    assert (later_status, later_body["roots"]) == (200, ["api", "POST", "-", UUID])
    assert headers == {"content-type": "application/json", "x-request-id": UUID}


@pytest.mark.parametrize("path", ["/api/v1/models", "/api/v1/models/", "/api/v1/models//"])
async def test_trailing_slashes_make_no_difference(path: str) -> None:
    assert (await ask("GET", path))[0] == 200


async def test_a_segment_in_braces_takes_one_segment_and_decodes_it() -> None:
    path = "/api/v1/session/agents/a%2Fb%20%C3%A9/events"

    _, body, _ = await ask("GET", path, x_session_id=SESSION)

    assert body["roots"][2] == "a/b é"


async def test_a_literal_path_wins_over_a_template() -> None:
    _, body, _ = await ask("GET", "/api/v1/session/agents/own/events")

    assert body["roots"][:3] == ["api", "GET", "-"]


@pytest.mark.parametrize(
    "path",
    ["/", "/api/v1", "/api/v1/model", "/API/v1/models", "/api/v1/session/agents//events", "/api/v1/models/x", "//"],
)
async def test_a_path_that_nobody_added_is_not_found(path: str) -> None:
    status, body, headers = await ask("GET", path, x_request_id=UUID)

    assert (status, body["code"], headers["x-request-id"]) == (404, "NOT_FOUND", UUID)


async def test_another_method_is_refused_with_those_that_work() -> None:
    status, body, headers = await ask("DELETE", "/api/v1/models")

    assert (status, body["code"], headers["allow"]) == (405, "BAD_REQUEST", "GET, HEAD, POST")


async def test_a_path_that_is_not_utf_8_is_refused() -> None:
    status, body, _ = await ask("GET", "/api/v1/session/agents/%ff/events", x_session_id=SESSION)

    assert (status, body["message"]) == (400, "agentRunId: is not percent-encoded UTF-8")


@pytest.mark.parametrize("header", [{}, {"x_session_id": "x"}, {"x_session_id": SESSION + " "}])
async def test_an_operation_of_a_session_needs_its_header(header: dict[str, str]) -> None:
    status, body, headers = await ask("GET", "/api/v1/session", **header)

    assert (status, body["code"]) == (400, "INVALID_SESSION_ID")
    assert "x-session-id" not in headers


async def test_a_session_is_handed_on_and_repeated_in_the_answer() -> None:
    _, body, headers = await ask("GET", "/api/v1/session", x_session_id=SESSION)

    assert body["roots"][2] == SESSION
    assert headers["x-session-id"] == SESSION


@pytest.mark.parametrize("sent", ["", "7", "not-a-uuid"])
async def test_a_request_id_that_is_no_uuid_is_replaced(sent: str) -> None:
    _, body, headers = await ask("GET", "/api/v1/models", x_request_id=sent)

    assert headers["x-request-id"] == body["roots"][-1] == str(SeededEntropy(1).uuid4())


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("", 200),
        ("*/*", 200),
        ("application/json", 200),
        ("text/html, application/json;q=0.9", 200),
        ("text/html,*/*;q=0.1", 200),
        ("application/*", 200),
        ("text/html", 406),
        ("application/json;q=0", 406),
        ("application/jsonx", 406),
    ],
)
async def test_answers_are_json_or_nothing(accept: str, status: int) -> None:
    got, body, _ = await ask("GET", "/api/v1/models", accept=accept)

    assert got == status
    assert status == 200 or body["code"] == "BAD_REQUEST"


async def test_probes_answer_whatever_is_accepted() -> None:
    for path in ("/healthz", "/ready"):
        status, body, _ = await ask("GET", path, accept="text/plain")
        assert (status, body) == (200, {"status": "ok"})


async def test_a_fault_is_told_without_its_text() -> None:
    def broken(api: Any, request: ApiRequest) -> ApiResponse:
        raise LookupError("/srv/secret.py:7")

    def unreadable(api: Any, request: ApiRequest) -> ApiResponse:
        raise StorageFailed("/srv/state/peen.db", "disk I/O error")

    made = Router()
    made.add("GET", "/broken", broken)
    made.add("GET", "/unreadable", unreadable)

    for path in ("/broken", "/unreadable"):
        answer = await dispatch(made, None, ApiRequest("GET", path))
        assert answer.status == 500
        assert answer.body == b'{"code":"INTERNAL_SERVER_ERROR","message":"internal server error"}'


def test_match_tells_what_is_wrong() -> None:
    made = router()

    with pytest.raises(NotFound):
        made.match("GET", "/nowhere")
    with pytest.raises(MethodNotAllowed):
        made.match("PUT", "/api/v1/models")
    with pytest.raises(ValidationFailed):
        made.match("GET", "/api/v1/session/agents/%ff/events")
    with pytest.raises(ValueError, match="GET /healthz"):
        add_health(made)


def test_only_what_was_added_as_public_needs_no_token() -> None:
    made = router()

    assert made.is_public("GET", "/healthz")
    assert not made.is_public("POST", "/healthz")
    assert not made.is_public("GET", "/api/v1/models")
    assert not made.is_public("GET", "/nowhere")
