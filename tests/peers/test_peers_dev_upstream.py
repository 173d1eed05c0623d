"""Turns of the real program over HTTP: controller, worker and provider are processes of their own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from crash_kit import Client, Frame, command, script, short_directory, wait_for

from peen.model.retry import MAX_ATTEMPTS
from peen.testing.daemon import Daemon
from peen.testing.upstream.process import UpstreamProcess

IDLE_S: Final = 1.0


def answer(text: str, **fields: Any) -> list[list[dict[str, Any]]]:
    return [[{"text": text, "chunk": 4, **fields}]]


SCRIPT: Final = script(
    {
        "plain": answer("one two three"),
        "works": [[command("true"), {"calls": [{"name": "listFiles", "arguments": {}}]}, {"text": "worked"}]],
        "busy": answer("served", fault={"kind": "status", "status": 500, "times": 2, "message": "oops"}),
        "limited": answer("served", fault={"kind": "status", "status": 429, "times": 1, "retryAfter": 0.6}),
        "cut": answer("whole at last", fault={"kind": "cut", "afterPieces": 2, "times": 1}),
        "overloaded": answer("whole at last", fault={"kind": "error", "afterPieces": 1, "times": 1, "message": "busy"}),
        "silent": answer("here I am", fault={"kind": "silence", "times": 1}),
        "stuck": answer("here I am", fault={"kind": "silence", "afterPieces": 2, "times": 1}),
        "half": [[{**command("touch ran"), "fault": {"kind": "cut", "afterPieces": 2, "times": 1}}, {"text": "ran"}]],
        "refused": answer("", fault={"kind": "status", "status": 400, "message": "this will never do"}),
        "patient": answer("", fault={"kind": "status", "status": 429, "retryAfter": 3600}),
    }
)


@dataclass
class World:
    """A controller whose models live behind a provider in another process, and a client."""

    daemon: Daemon
    provider: UpstreamProcess
    client: Client

    def workspace(self, name: str) -> Path:
        path = self.daemon.workspace_root / name
        path.mkdir(exist_ok=True)
        return path

    def ask(self, model: str) -> list[Frame]:
        """One turn in a session of its own; its frames."""
        session = self.client.open(self.workspace(model))
        frames = self.client.ask(session, "go", model=f"dev/{model}")
        assert [frame["data"] for frame in self.client.replay(session)] == [
            frame["data"] for frame in frames if "sequence" in frame["metadata"]
        ]
        return frames


def upstreams(url: str) -> dict[str, str]:
    return {
        "PEEN_UPSTREAMS": json.dumps([{"name": "dev", "type": "openai", "baseUrl": url}]),
        "PEEN_PROVIDER_IDLE_TIMEOUT": f"{IDLE_S:g}s",
    }


@pytest.fixture(scope="module")
def scripted() -> Iterator[Path]:
    with short_directory() as home:
        path = home / "script.yaml"
        path.write_text(SCRIPT)
        yield path


@pytest.fixture(scope="module")
def world(scripted: Path) -> Iterator[World]:
    with (
        UpstreamProcess(scripted) as provider,
        Daemon(scripted.parent, upstreams(provider.base_url)) as daemon,
        Client(daemon) as client,
    ):
        yield World(daemon, provider, client)


def text_of(frames: list[Frame]) -> str:
    """The answer: the text of the blocks after the last retry."""
    kinds = [frame["type"] for frame in frames]
    last = len(kinds) - 1 - kinds[::-1].index("provider.retry") if "provider.retry" in kinds else 0
    return "".join(
        frame["data"]["delta"].get("text", "") for frame in frames[last:] if frame["type"] == "content_block_delta"
    )


def retries(frames: list[Frame]) -> list[tuple[int, str, int]]:
    waits = [frame["data"] for frame in frames if frame["type"] == "provider.retry"]
    return [(wait["attempt"], wait["reason"], wait["status"]) for wait in waits]


def end_of(frames: list[Frame]) -> Frame:
    return next(frame for frame in frames if frame["type"] in ("turn.completed", "turn.failed", "turn.cancelled"))


def test_a_turn_runs_over_http_on_one_connection(world: World) -> None:
    before = len(world.provider.log()["requests"])

    frames = world.ask("works")

    asked = world.provider.log()["requests"][before:]
    assert end_of(frames)["type"] == "turn.completed"
    assert [frame["data"]["name"] for frame in frames if frame["type"] == "tool.use"] == ["runCommand", "listFiles"]
    assert [frame["data"]["isError"] for frame in frames if frame["type"] == "tool.result"] == [False, False]
    assert [(request["path"], request["status"]) for request in asked] == [("/v1/chat/completions", 200)] * 3
    assert len({request["connection"] for request in asked}) == 1


def test_models_come_from_the_provider(world: World) -> None:
    models = world.client.http.get("/models").json()["models"]

    assert [model["name"] for model in models] == [f"dev/{name}" for name in json.loads(SCRIPT)["models"]]
    assert {model["contextWindowTokens"] for model in models} == {131_072}


@pytest.mark.parametrize(
    ("model", "text", "waits"),
    [
        ("plain", "one two three", []),
        ("busy", "served", [(1, "server_error", 500), (2, "server_error", 500)]),
        ("limited", "served", [(1, "rate_limited", 429)]),
        ("cut", "whole at last", [(1, "transport", 0)]),
        ("overloaded", "whole at last", [(1, "server_error", 0)]),
        ("silent", "here I am", [(1, "timeout", 0)]),
        ("stuck", "here I am", [(1, "timeout", 0)]),
    ],
)
def test_a_fault_that_passes_is_a_retry_and_then_the_answer(
    world: World, model: str, text: str, waits: list[tuple[int, str, int]]
) -> None:
    frames = world.ask(model)

    assert end_of(frames)["type"] == "turn.completed"
    assert retries(frames) == waits
    assert text_of(frames) == text
    opened = [frame["data"]["index"] for frame in frames if frame["type"] == "content_block_start"]
    closed = [frame["data"]["index"] for frame in frames if frame["type"] == "content_block_stop"]
    assert opened == sorted(closed) == list(range(len(opened)))
    (wait,) = [frame["data"]["delayMs"] for frame in frames if frame["type"] == "provider.retry"][:1] or [0]
    assert wait >= (600 if model == "limited" else 125 if waits else 0)


def test_a_call_that_was_cut_does_not_run(world: World) -> None:
    ran = world.workspace("half") / "ran"
    frames = world.ask("half")

    first, second = (frame for frame in frames if frame["type"] == "content_block_start" and
                     frame["data"]["content_block"]["type"] == "tool_use")  # fmt: skip
    assert first["data"]["content_block"]["name"] == second["data"]["content_block"]["name"] == "runCommand"
    assert [frame["type"] for frame in frames].count("tool.use") == 1
    assert ran.exists()
    assert end_of(frames)["type"] == "turn.completed"


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("refused", "the provider answered with status 400: this will never do"),
        ("patient", "the provider asks to wait 3600 s, more than the 60 s that PEEN_PROVIDER_RETRY_MAX_DELAY allows"),
    ],
)
def test_a_fault_that_will_not_pass_fails_the_turn_at_once(world: World, model: str, error: str) -> None:
    frames = world.ask(model)

    end = end_of(frames)
    assert (end["type"], end["data"]["reason"], retries(frames)) == ("turn.failed", "agentRun", [])
    assert error in end["data"]["error"]


def test_a_model_that_the_provider_does_not_offer_is_refused(world: World) -> None:
    session = world.client.open(world.workspace("gone"))

    (refused,) = world.client.ask(session, "go", model="dev/gone")

    assert refused["data"]["code"] == "VALIDATION_FAILED"
    assert "model 'dev/gone' does not exist; known models: dev/" in refused["data"]["message"]


def test_a_provider_that_dies_and_comes_back_is_waited_for(scripted: Path) -> None:
    provider = UpstreamProcess(scripted).start()
    with short_directory() as home, Daemon(home, upstreams(provider.base_url)) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        provider.kill()
        frame_id = client.send(session, "go", model="dev/plain")
        frames = client.until_type("provider.retry")
        with UpstreamProcess(scripted, port=provider.port):
            frames += client.answered(frame_id)

    assert end_of(frames)["type"] == "turn.completed"
    assert set(retries(frames)) == {(number, "transport", 0) for number in range(1, len(retries(frames)) + 1)}
    assert text_of(frames) == "one two three"


def test_a_provider_that_stays_down_fails_the_turn_and_says_how_often_it_was_tried(scripted: Path) -> None:
    provider = UpstreamProcess(scripted).start()
    with short_directory() as home, Daemon(home, upstreams(provider.base_url)) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        provider.kill()
        frame_id = client.send(session, "go")
        frames = client.until_type("provider.retry", "turn.failed")
        while frames[-1]["type"] == "provider.retry":  # each wait is bounded by itself; together they take 16 to 33 s
            frames += client.until_type("provider.retry", "turn.failed")
        client.answered(frame_id)

    assert len(retries(frames)) == MAX_ATTEMPTS - 1
    address = provider.base_url.removesuffix("/v1")
    assert end_of(frames)["data"]["error"] == (
        f"cannot connect to {address}: Connection refused (gave up after {MAX_ATTEMPTS} attempts)"
    )


def test_beside_a_provider_that_is_down_others_work_and_its_models_are_refused_with_the_reason(scripted: Path) -> None:
    provider = UpstreamProcess(scripted).start()
    provider.kill()
    both = [{"name": "dev", "type": "openai", "baseUrl": provider.base_url}, {"name": "scripted", "type": "scripted"}]
    with (
        short_directory() as home,
        Daemon(home, {"PEEN_UPSTREAMS": json.dumps(both)}) as daemon,
        Client(daemon) as client,
    ):
        session = client.open(daemon.workspace_root)
        (refused,) = client.ask(session, "go", model="dev/plain")
        works = client.ask(session, "list")

    assert refused["data"]["code"] == "VALIDATION_FAILED"
    assert "upstream 'dev' offered no models when they were listed (cannot connect to" in refused["data"]["message"]
    assert end_of(works)["type"] == "turn.completed"


def test_an_orderly_stop_closes_the_request_that_is_under_way(scripted: Path) -> None:
    with UpstreamProcess(scripted) as provider, short_directory() as home:
        environment = {**upstreams(provider.base_url), "PEEN_PROVIDER_IDLE_TIMEOUT": "60s"}
        with Daemon(home, environment) as daemon, Client(daemon) as client:
            client.send(client.open(daemon.workspace_root), "go", model="dev/silent")
            wait_for(lambda: provider.log()["openStreams"] == 1, "the provider is asked")
            began = time.monotonic()
            daemon.stop()
        wait_for(lambda: provider.log()["openStreams"] == 0, "the provider's stream is closed", within_s=5.0)

        assert time.monotonic() - began < 10
        assert provider.log()["requests"][-1]["closedEarly"] is True
