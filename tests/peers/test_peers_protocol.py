"""The published protocol against a running controller: what it says must be so, to the letter."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from crash_kit import Client, Frame, command, script, scripted_daemon, short_directory
from protocol_kit import FOLDER, problems

from peen.testing.daemon import Daemon
from peen.wire.operations import OPERATIONS, Choice, Operation, Whole, failures_of
from peen.wire.publish.guide import ACK_FAILURES

SCRIPT = script(
    {
        "works": [[
            {"thinking": "first look", "text": "I look.", "chunk": 3,
             "calls": [{"name": "readFile", "arguments": {"path": "hello.txt"}},
                       {"name": "readFile", "arguments": "no object"}]},
            command("echo done; exit 3"),
            {"text": "That was it.", "finishReason": "stop"},
        ]],
        "retries": [[{"text": "at last", "fault": {"kind": "cut", "afterPieces": 1, "times": 1}, "chunk": 2}]],
        "waits": [[command("sleep 1"), {"text": "first and second"}]],
        "hangs": [[command("sleep 60"), {"text": "never"}]],
        "fails": [[{"fault": {"kind": "status", "status": 400, "message": "no"}}]],
    }
)  # fmt: skip
READS = [row for row in OPERATIONS if row.method == "GET" and not row.path_parameters]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as running:
        (running.workspace_root / "hello.txt").write_text("hello\n")
        yield running


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon) as connected:
        yield connected


@pytest.fixture(scope="module")
def session(client: Client, daemon: Daemon) -> str:
    """A session in which every model has played."""
    opened = client.open(daemon.workspace_root)
    for model in ("works", "retries", "fails"):
        client.ask(opened, "go", model=f"scripted/{model}")
    return opened


def call(client: Client, row: Operation, session: str, query: dict[str, Any] | None = None) -> httpx.Response:
    headers = {"X-Session-ID": session} if row.session else {}
    return client.http.request(row.method, url(client, row.path), headers=headers, params=query)


def url(client: Client, path: str) -> str:
    return str(client.http.base_url).removesuffix("/api/v1/") + path


def described(frames: list[Frame]) -> list[str]:
    return [problem for frame in frames for problem in problems(f"frame.{frame['type']}", frame)]


def test_every_frame_of_real_turns_is_as_published(client: Client, daemon: Daemon) -> None:
    session = client.open(daemon.workspace_root)

    frames = [
        frame
        for model in ("works", "retries", "fails")
        for frame in client.ask(session, "go", model=f"scripted/{model}")
    ]

    assert described(frames) == []
    kinds = {frame["type"] for frame in frames}
    assert kinds >= {
        "userMessage.created", "turn.started", "tool.use", "tool.result", "provider.retry", "turn.completed",
        "turn.failed", "content_block_start", "content_block_delta", "content_block_stop", "message.completed",
        "message.failed",
    }  # fmt: skip
    parts = {frame["data"]["content_block"]["type"] for frame in frames if frame["type"] == "content_block_start"}
    assert parts == {"thinking", "text", "tool_use", "tool_result"}
    assert described(client.replay(session)) == []


def test_a_queued_message_and_a_stop_are_as_published(client: Client, daemon: Daemon) -> None:
    workspace = daemon.workspace_root / "queue"
    workspace.mkdir()
    session = client.open(workspace)

    first = client.send(session, "first", model="scripted/waits")
    frames = client.until_type("tool.use")
    second = client.send(session, "second")
    frames += client.answered(second) + client.answered(first)
    third = client.send(session, "third", model="scripted/hangs")
    frames += client.until_type("tool.use")
    stop = client.http.post("/session/cancel", json={}, headers={"X-Session-ID": session})
    frames += client.answered(third)

    assert (stop.status_code, problems("rest.CancelAccepted", stop.json())) == (202, [])
    assert described(frames) == []
    assert [frame["type"] for frame in frames if frame["data"].get("message") == "second"] == [
        "userMessage.created", "userMessage.queued", "userMessage.delivered",
    ]  # fmt: skip
    assert {frame["data"]["queued"] for frame in frames if frame["type"] == "message.completed"} == {True, False}
    assert "turn.cancelled" in {frame["type"] for frame in frames}
    assert frames[-1]["data"]["code"] == "TURN_CANCELLED"


def test_refusals_on_the_socket_are_as_published(client: Client, session: str) -> None:
    frame_id = client.send(session, "once", model="scripted/works")
    client.answered(frame_id)
    client.socket.send("{")
    refusals = client.until_type("message.failed")[-1:]
    for text, changes in {"twice": {"frame_id": frame_id}, "x": {"model": "scripted/none"}}.items():
        refusals += client.answered(client.send(session, text, **changes))[-1:]
    refusals += client.answered(client.send(str(uuid.uuid4()), "nobody"))[-1:]

    assert described(refusals) == []
    assert {frame["data"]["code"] for frame in refusals} == {"VALIDATION_FAILED", "SESSION_NOT_FOUND"}
    assert {frame["data"]["code"] for frame in refusals} <= {code for code, *_ in ACK_FAILURES}


@pytest.mark.parametrize("row", READS, ids=lambda row: row.id)
def test_every_answer_is_as_published(client: Client, session: str, row: Operation) -> None:
    answer = call(client, row, session)

    assert answer.status_code == row.status
    assert problems(f"rest.{row.answer.__name__}", answer.json()) == []
    assert answer.headers["content-type"] == "application/json"
    assert str(uuid.UUID(answer.headers["x-request-id"])) == answer.headers["x-request-id"]
    assert answer.headers.get("x-session-id") == (session if row.session else None)
    assert client.http.head(answer.url, headers=answer.request.headers).status_code == row.status


@pytest.mark.parametrize("row", READS, ids=lambda row: row.id)
def test_query_parameters_have_the_described_defaults_and_limits(client: Client, session: str, row: Operation) -> None:
    defaults = {parameter.name: parameter.default for parameter in row.query if parameter.default is not None}
    assert call(client, row, session, defaults).content == call(client, row, session).content
    for parameter in row.query:
        match parameter:
            case Whole(name=name, minimum=minimum, maximum=maximum):
                good: list[Any] = [minimum, maximum]
                bad: list[Any] = [minimum - 1, maximum + 1, "1.0", "", "x"]
            case Choice(name=name, choices=choices):
                good, bad = list(choices), ["", "x", choices[0].upper()]
        for value in good:
            answer = call(client, row, session, {name: value})
            assert (answer.status_code, problems(f"rest.{row.answer.__name__}", answer.json())) == (row.status, [])
        for value in bad:
            refuses(call(client, row, session, {name: value}), row, 400, "VALIDATION_FAILED", name)
        refuses(call(client, row, session, {name: [good[0], good[0]]}), row, 400, "VALIDATION_FAILED", name)
    if not row.public:
        refuses(call(client, row, session, {"surprise": 1}), row, 400, "VALIDATION_FAILED", "surprise")


@pytest.mark.parametrize("row", [row for row in OPERATIONS if row.session], ids=lambda row: row.id)
def test_a_session_must_be_named_and_exist(client: Client, row: Operation) -> None:
    path = url(client, re.sub(r"\{\w+\}", str(uuid.uuid4()), row.path))
    content = None if row.method == "GET" else b"{}"
    headers = {} if content is None else {"content-type": "application/json"}

    without = client.http.request(row.method, path, content=content, headers=headers)
    headers["X-Session-ID"] = str(uuid.uuid4())
    unknown = client.http.request(row.method, path, content=content, headers=headers)

    refuses(without, row, 400, "INVALID_SESSION_ID")
    if row.body is None:
        refuses(unknown, row, 404, "SESSION_NOT_FOUND")


def test_failures_that_every_operation_may_have_are_as_published(client: Client, session: str) -> None:
    row = next(row for row in OPERATIONS if row.id == "openSession")
    path = url(client, row.path)
    as_json = {"content-type": "application/json"}

    refuses(client.http.post(path, content=b"{", headers=as_json), row, 400, "VALIDATION_FAILED", "body")
    refuses(client.http.post(path, json={"workspace": "/", "x": 1}), row, 400, "VALIDATION_FAILED", "x")
    refuses(client.http.post(path, json={"workspace": ""}), row, 400, "VALIDATION_FAILED", "workspace")
    refuses(client.http.post(path, json={"workspace": "/"}, params={"x": 1}), row, 400, "VALIDATION_FAILED", "x")
    refuses(client.http.post(path, json={}, params={"token": "t"}), row, 400, "BAD_REQUEST")
    refuses(client.http.post(path, json={}, headers={"origin": "http://evil.example"}), row, 403, "FORBIDDEN_ORIGIN")
    refuses(client.http.post(path, json={}, headers={"host": "evil.example"}), row, 403, "FORBIDDEN_HOST")
    refuses(client.http.post(path, json={"workspace": "/"}), row, 403, "WORKSPACE_NOT_ALLOWED")
    refuses(client.http.post(path, json={}, headers={"accept": "text/html"}), row, 406, "BAD_REQUEST")
    refuses(client.http.post(path, content=b" " * 1_048_577, headers=as_json), row, 413, "BAD_REQUEST")
    refuses(client.http.post(path, content=b"{}"), row, 415, "BAD_REQUEST")
    refuses(httpx.post(path, json={}, headers={"x-much": "x" * 200_000}), row, 431, "BAD_REQUEST")


def refuses(answer: httpx.Response, row: Operation, status: int, code: str, about: str = "") -> None:
    """The answer is this failure, published for this operation, and its text names what it is about."""
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert (status, code) in {(failure.status, failure.code) for failure in failures_of(row)}
    assert problems("rest.ErrorBody", answer.json()) == []
    assert about in answer.json()["message"]
    assert "x-session-id" not in answer.headers


def test_unknown_paths_and_methods_are_answered_as_the_guide_says(client: Client) -> None:
    nothing = client.http.get("/nothing/here")
    method = client.http.request("PATCH", "/session", headers={"content-type": "application/json"})
    upgrade = client.http.get(url(client, "/ws/v1"))

    found = [(answer.status_code, answer.json()["code"]) for answer in (nothing, method, upgrade)]
    assert found == [(404, "NOT_FOUND"), (405, "BAD_REQUEST"), (426, "BAD_REQUEST")]
    assert method.headers["allow"] == "GET, HEAD"
    assert [problems("rest.ErrorBody", answer.json()) for answer in (nothing, method, upgrade)] == [[], [], []]


def test_the_example_of_the_guide_works_when_its_session_is_replaced(client: Client, session: str) -> None:
    example = json.loads(re.findall(r"```json\n(.*?)\n```", (FOLDER / "README.md").read_text(), re.DOTALL)[0])
    example["metadata"]["sessionId"] = session

    client.socket.send(json.dumps(example))

    assert client.answered(example["id"])[-1]["type"] in {"message.completed", "message.failed"}
    assert client.get("/session/turns", session, limit=1)["turns"][0]["state"] != "running"
