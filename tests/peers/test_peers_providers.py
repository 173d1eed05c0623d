"""Kinds of providers and their faults, over HTTP: controller, worker and provider are processes of their own."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from crash_kit import Client, Frame, command, script, short_directory, wait_for

from peen.testing.daemon import Daemon
from peen.testing.upstream.process import UpstreamProcess

IDLE_S: Final = 1.0
STOP_S: Final = 2.0


def raw(*pieces: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"raw": list(pieces), **fields}


def event(**choice: Any) -> dict[str, Any]:
    return {"event": {"choices": [{"index": 0, **choice}]}}


def refusal(status: int, *, code: str, **headers: str) -> dict[str, Any]:
    document = json.dumps({"error": {"message": f"no: {code}", "code": code}})
    return raw({"text": document}, response={"status": status, "headers": headers})


def fault(kind: str, **fields: Any) -> dict[str, Any]:
    return {"text": "here I am", "chunk": 4, "fault": {"kind": kind, "times": 1, **fields}}


FAULTS: Final[dict[str, list[dict[str, Any]]]] = {
    "s408": [fault("status", status=408)],
    "s409": [fault("status", status=409)],
    "s429": [fault("status", status=429)],
    "s500": [fault("status", status=500)],
    "s529": [fault("status", status=529)],
    "seconds": [fault("status", status=429, retryAfter=0.6)],
    "date": [fault("status", status=503, retryAfter=0.6, retryAfterAs="date")],
    "milliseconds": [fault("status", status=429, retryAfter=0.6, retryAfterAs="milliseconds")],
    "overloaded": [fault("error", afterPieces=1, message="overloaded")],
    "reset-before-head": [fault("reset")],
    "reset-in-stream": [fault("reset", afterPieces=2)],
    "reset-after-head": [fault("reset", afterHead=True)],
    "cut-before-head": [fault("cut")],
    "cut-after-head": [fault("cut", afterHead=True)],
    "silent-after-head": [fault("silence", afterHead=True)],
    "silent-before-head": [fault("silence")],
    "silent-in-stream": [fault("silence", afterPieces=2)],
}
FAR: Final = "Fri, 31 Dec 2999 23:59:59 GMT"
READ: Final = event(delta={"tool_calls": [{"id": "c", "function": {"name": "listFiles", "arguments": "{}"}}]})
RUN: Final = event(delta={"tool_calls": [{"id": "c", "function": {
    "name": "runCommand", "arguments": '{"command": "touch ran", "purpose": "test"}'}}]})  # fmt: skip
SCRIPT: Final = script(
    {
        **{name: [rounds] for name, rounds in FAULTS.items()},
        # What never gets better.
        "quota": [[refusal(429, code="insufficient_quota")]],
        "too-long": [[refusal(400, code="context_length_exceeded")]],
        "far": [[refusal(429, code="slow_down", **{"Retry-After": FAR})]],
        "never-ends-call": [[raw(RUN)]],
        "limit-in-call": [[raw(RUN, event(delta={}, finish_reason="length"), {"event": "[DONE]"})]],
        # Odd, but whole.
        "stop-with-calls": [[
            raw(RUN, event(delta={}, finish_reason="stop"), {"event": "[DONE]"}), {"text": "ran"},
        ]],
        "one-id": [[
            raw(READ, event(finish_reason="tool_calls")), raw(READ, event(finish_reason="tool_calls")), {"text": "ran"},
        ]],
        # What Stop interrupts.
        "waits": [[{"text": "never", "fault": {"kind": "status", "status": 429, "retryAfter": 50}}]],
        "head-silent": [[raw({"stop": "silence"})]],
        "no-head": [[{"text": "never", "fault": {"kind": "silence"}}]],
        "mid-silent": [[{"text": "a b c", "chunk": 1, "fault": {"kind": "silence", "afterPieces": 2}}]],
        # Reasoning.
        "o3": [
            [{"thinking": "hm", **command("true")}, {"thinking": "hm hm", "text": "looked"}],
            [{"text": "again"}],
        ],
    }
)  # fmt: skip


@dataclass
class World:
    """A controller whose models live behind a provider in another process, and a client."""

    daemon: Daemon
    provider: UpstreamProcess
    client: Client

    def session(self, name: str) -> str:
        path = self.daemon.workspace_root / name
        path.mkdir(exist_ok=True)
        return self.client.open(path)

    def ask(self, model: str) -> list[Frame]:
        """One turn in a session of its own; its frames."""
        return self.client.ask(self.session(model), "go", model=f"dev/{model}")


@contextmanager
def world(entry: dict[str, Any], *, idle_s: float = IDLE_S) -> Iterator[World]:
    with short_directory() as home:
        path = home / "script.yaml"
        path.write_text(SCRIPT)
        with UpstreamProcess(path) as provider:
            upstream = {"name": "dev", "type": "openai", "baseUrl": provider.base_url, **entry}
            environment = {"PEEN_UPSTREAMS": json.dumps([upstream]), "PEEN_PROVIDER_IDLE_TIMEOUT": f"{idle_s:g}s"}
            with Daemon(home, environment) as daemon, Client(daemon) as client:
                yield World(daemon, provider, client)


@pytest.fixture(scope="module")
def chat() -> Iterator[World]:
    with world({}) as found:
        yield found


@pytest.fixture(scope="module")
def patient() -> Iterator[World]:
    with world({}, idle_s=120.0) as found:
        yield found


def end_of(frames: list[Frame]) -> Frame:
    return next(frame for frame in frames if frame["type"] in ("turn.completed", "turn.failed", "turn.cancelled"))


def waits(frames: list[Frame]) -> list[tuple[str, int]]:
    found = [frame["data"] for frame in frames if frame["type"] == "provider.retry"]
    return [(wait["reason"], wait["status"]) for wait in found]


def delays_ms(frames: list[Frame]) -> list[int]:
    return [frame["data"]["delayMs"] for frame in frames if frame["type"] == "provider.retry"]


# --- faults that pass -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "wait"),
    [
        ("s408", ("timeout", 408)),
        ("s409", ("server_error", 409)),
        ("s429", ("rate_limited", 429)),
        ("s500", ("server_error", 500)),
        ("s529", ("server_error", 529)),
        ("seconds", ("rate_limited", 429)),
        ("date", ("server_error", 503)),
        ("milliseconds", ("rate_limited", 429)),
        ("overloaded", ("server_error", 0)),
        ("reset-before-head", ("transport", 0)),
        ("reset-in-stream", ("transport", 0)),
        ("reset-after-head", ("transport", 0)),
        ("cut-before-head", ("transport", 0)),
        ("cut-after-head", ("transport", 0)),
        ("silent-after-head", ("timeout", 0)),
        ("silent-before-head", ("timeout", 0)),
        ("silent-in-stream", ("timeout", 0)),
    ],
)
def test_a_fault_that_passes_is_one_retry_and_then_the_answer(chat: World, model: str, wait: tuple[str, int]) -> None:
    before = len(chat.provider.log()["requests"])

    frames = chat.ask(model)

    assert (end_of(frames)["type"], end_of(frames)["data"].get("text")) == ("turn.completed", "here I am")
    assert waits(frames) == [wait]
    assert len(chat.provider.log()["requests"]) - before == 2  # one layer repeats, and no other below it


@pytest.mark.parametrize(("model", "least_ms", "most_ms"), [
    ("seconds", 600, 600), ("milliseconds", 600, 600), ("date", 400, 1600),
])  # fmt: skip
def test_the_wait_that_a_provider_asks_for_is_kept_in_every_form(
    chat: World, model: str, least_ms: int, most_ms: int
) -> None:
    session = chat.session(f"{model}-wait")
    began = time.monotonic()

    frames = chat.client.ask(session, f"another {model}", model=f"dev/{model}")

    (delay_ms,) = delays_ms(frames)
    assert least_ms <= delay_ms <= most_ms
    assert time.monotonic() - began >= least_ms / 1000


# --- faults that do not -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("quota", "status 429: no: insufficient_quota"),
        ("too-long", "status 400: no: context_length_exceeded"),
        ("far", "more than the 60 s that PEEN_PROVIDER_RETRY_MAX_DELAY allows"),
    ],
)
def test_what_will_not_get_better_fails_the_turn_at_once(chat: World, model: str, error: str) -> None:
    frames = chat.ask(model)

    assert (end_of(frames)["type"], waits(frames)) == ("turn.failed", [])
    assert error in end_of(frames)["data"]["error"]


def test_a_stream_without_an_end_is_retried_and_then_a_failure_and_its_call_never_runs(chat: World) -> None:
    session = chat.session("never-ends-call")
    ran = chat.daemon.workspace_root / "never-ends-call" / "ran"
    frame = chat.client.send(session, "go", model="dev/never-ends-call")
    frames = chat.client.until_type("provider.retry")
    frames += chat.client.until_type("provider.retry")
    assert chat.client.http.post("/session/cancel", headers={"X-Session-ID": session}, json={}).status_code == 202
    frames += chat.client.answered(frame)

    assert waits(frames)[:2] == [("transport", 0)] * 2
    assert not ran.exists()
    assert "tool.use" not in [frame["type"] for frame in frames]


def test_a_call_inside_the_output_limit_does_not_run_and_the_turn_says_why(chat: World) -> None:
    frames = chat.ask("limit-in-call")

    assert end_of(frames)["data"] == {"model": "dev/limit-in-call", "text": "", "finishReason": "length"}
    assert not (chat.daemon.workspace_root / "limit-in-call" / "ran").exists()


def test_a_call_runs_whatever_reason_but_length_the_provider_gives(chat: World) -> None:
    frames = chat.ask("stop-with-calls")

    assert end_of(frames)["data"]["text"] == "ran"
    assert (chat.daemon.workspace_root / "stop-with-calls" / "ran").exists()


def test_one_call_id_for_every_round_is_made_unique_and_the_strict_provider_takes_it_back(chat: World) -> None:
    frames = chat.ask("one-id")

    used = [frame["data"]["callId"] for frame in frames if frame["type"] == "tool.use"]
    answered = [frame["data"]["callId"] for frame in frames if frame["type"] == "tool.result"]
    assert end_of(frames)["data"]["text"] == "ran"
    assert used == answered
    assert len(set(used)) == 2


# --- Stop -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["waits", "no-head", "head-silent", "mid-silent"])
def test_stop_ends_every_kind_of_wait_within_two_seconds(patient: World, model: str) -> None:
    session = patient.session(model)
    before = len(patient.provider.log()["requests"])
    frame = patient.client.send(session, "go", model=f"dev/{model}")
    wait_for(lambda: len(patient.provider.log()["requests"]) == before + 1, "the provider to be asked")
    if model == "waits":
        patient.client.until_type("provider.retry")
    else:
        wait_for(lambda: patient.provider.log()["openStreams"] == 1, "the request to be open")
    if model == "mid-silent":
        patient.client.until_type("content_block_delta")
    began = time.monotonic()

    answer = patient.client.http.post("/session/cancel", headers={"X-Session-ID": session}, json={})
    frames = patient.client.answered(frame)

    assert answer.json() == {"cancelRequested": True}
    assert time.monotonic() - began < STOP_S
    assert end_of(frames)["type"] == "turn.cancelled"
    wait_for(lambda: patient.provider.log()["openStreams"] == 0, "the request to be closed", within_s=STOP_S)


def test_stop_ends_the_wait_for_a_connection_within_two_seconds() -> None:
    with world({}, idle_s=120.0) as own:
        session, port = own.session("connects"), own.provider.port
        own.provider.kill()
        with full_server(port):
            frame = own.client.send(session, "go", model="dev/s500")
            wait_for(lambda: connecting_to(port) > 0, "the worker to wait for a connection")
            began = time.monotonic()
            own.client.http.post("/session/cancel", headers={"X-Session-ID": session}, json={})
            frames = own.client.answered(frame)
            took_s = time.monotonic() - began
        own.provider.start()

    assert took_s < STOP_S
    assert end_of(frames)["type"] == "turn.cancelled"


@contextmanager
def full_server(port: int) -> Iterator[None]:
    """A server that accepts nobody and whose queue is full: whoever connects hears nothing."""
    with socket.create_server(("127.0.0.1", port), backlog=0), ExitStack() as fillers:
        for _ in range(2):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield


def connecting_to(port: int) -> int:
    """Connections to a port of this machine that wait for an answer, those that fill the queue left out."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    waiting = [line for line in lines if line.split()[2] == f"0100007F:{port:04X}" and line.split()[3] == "02"]
    return len(waiting)


# --- reasoning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "path"),
    [({"api": "responses"}, "/v1/responses"), ({"type": "zai-coding"}, "/v1/chat/completions")],
    ids=["responses", "zai"],
)
def test_reasoning_goes_back_to_its_provider_also_after_a_restart_and_is_never_text(
    entry: dict[str, Any], path: str
) -> None:
    with world(entry) as own:
        session = own.session("reasons")
        first = own.client.ask(session, "go", model="dev/o3")
        own.daemon.kill()
        with own.daemon, Client(own.daemon) as client:
            second = client.ask(session, "and now", model="dev/o3")
            other = client.ask(session, "who are you", model="dev/s500")
            transcript = client.get("/messages", session)["items"]
        log = own.provider.log()["requests"]

    assert end_of(first)["data"]["text"] == "looked"
    assert end_of(second)["data"]["text"] == "again"
    assert end_of(other)["data"]["text"] == "here I am"
    asked = [(request["path"], request["status"], request["reasoning"]) for request in log if request["path"] == path]
    # The provider is strict: it takes its own bytes, and for their own model only.
    assert asked == [(path, 200, 0), (path, 200, 1), (path, 200, 2), (path, 500, 0), (path, 200, 0)]
    assert [message["content"] for message in transcript if message["role"] == "assistant"] == [
        "", "looked", "again", "here I am",
    ]  # fmt: skip
    assert "encrypted" not in json.dumps(transcript)


@pytest.mark.parametrize(("setting", "returned"), [({}, [0, 1]), ({"reasoning": "never"}, [0, 0])])
def test_reasoning_of_chat_completions_goes_back_unless_the_upstream_says_otherwise(
    setting: dict[str, str], returned: list[int]
) -> None:
    with world(setting) as own:
        before = len(own.provider.log()["requests"])
        frames = own.ask("o3")

        assert end_of(frames)["data"]["text"] == "looked"
        assert [request["reasoning"] for request in own.provider.log()["requests"][before:]] == returned


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_turn_runs_with_answers_in_one_piece(api: str) -> None:
    with world({"api": api, "stream": False}) as own:
        frames = own.ask("o3")

    assert end_of(frames)["data"]["text"] == "looked"
    assert [frame["data"]["name"] for frame in frames if frame["type"] == "tool.use"] == ["runCommand"]
