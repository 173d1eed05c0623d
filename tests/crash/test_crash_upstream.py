"""A controller that is started again while its provider is down serves what it has, and recovers by itself."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from crash_kit import PATIENCE_S, Client, Frame, script, short_directory

from peen.model.registry import REDISCOVERY_PAUSE_S
from peen.testing.daemon import Daemon, DaemonFailed
from peen.testing.upstream.process import UpstreamProcess

SCRIPT = script({"plain": [[{"text": "I am here."}]], "other": [[{"text": "So am I."}]]})


@contextmanager
def outage(**environment: str) -> Iterator[tuple[Daemon, Path, int, str, list[Frame]]]:
    """A daemon that had one turn and was stopped, script and port of its provider, which is down; session and feed."""
    with short_directory() as home:
        path = home / "script.yaml"
        path.write_text(SCRIPT)
        with UpstreamProcess(path) as provider:
            port = provider.port
            upstreams = [{"name": "o", "type": "openai", "baseUrl": provider.base_url, "apiKeyEnv": "MYK"}]
            daemon = Daemon(home, {"PEEN_UPSTREAMS": json.dumps(upstreams), "MYK": "x", **environment})
            with daemon, Client(daemon) as client:
                session = client.open(daemon.workspace_root)
                assert client.ask(session, "before", frame_id=FIRST)[-1]["type"] == "message.completed"
                feed = client.replay(session)
        yield daemon, path, port, session, feed


FIRST = "99999999-9999-4999-8999-999999999999"


def ask_until_completed(client: Client, session: str, **data: Any) -> list[Frame]:
    give_up = time.monotonic() + PATIENCE_S
    while True:
        frames = client.ask(session, "after", **data)
        if frames[-1]["type"] == "message.completed":
            return frames
        assert time.monotonic() < give_up, frames[-1]
        assert frames[-1]["data"]["code"] == "VALIDATION_FAILED"
        time.sleep(0.5)


@pytest.mark.parametrize("configured", [None, "o/plain"])
def test_a_daemon_starts_during_an_outage_and_recovers_when_the_provider_is_back(configured: str | None) -> None:
    environment = {} if configured is None else {"PEEN_DEFAULT_MODEL": configured}
    with outage(**environment) as (daemon, path, port, session, feed), daemon, Client(daemon) as client:
        assert client.http.get("/models").json() == {"models": [], "default": configured or ""}
        assert client.replay(session) == feed
        assert [item["role"] for item in client.get("/messages", session)["items"]] == ["user", "assistant"]
        headers = {"X-Session-ID": session}
        assert client.http.post("/session/cancel", headers=headers, json={}).json() == {"cancelRequested": False}
        assert client.get("/session/notices", session)["notices"] == []
        (again,) = client.ask(session, "before", frame_id=FIRST)
        assert again["type"] == "message.completed"  # a resend is answered as before
        for named in ({}, {"model": "o/other"}):
            (refused,) = client.ask(session, "during", **named)
            assert (refused["type"], refused["data"]["code"]) == ("message.failed", "VALIDATION_FAILED")
            assert "cannot connect to" in refused["data"]["message"]
        assert client.replay(session) == feed
        log = daemon.output()
        assert "the default model is not known yet" in log
        assert "provider_discovery_failed" in log
        assert "Traceback" not in log

        with UpstreamProcess(path, port=port):
            frames = ask_until_completed(client, session)
            ask_until_completed(client, session, model="o/other")

            assert "turn.completed" in [frame["type"] for frame in frames]
            found = client.http.get("/models").json()
            assert [model["name"] for model in found["models"]] == ["o/plain", "o/other"]
            assert found["default"] == "o/plain"
        models = [item.get("model") for item in client.get("/messages", session)["items"]]
        assert models[1::2] == ["o/plain", "o/plain", "o/other"]


def test_a_stop_reaches_a_message_that_waits_for_a_silent_provider() -> None:
    with (
        outage() as (daemon, _path, port, session, feed),
        daemon,
        Client(daemon) as client,
        socket.create_server(("127.0.0.1", port)) as silent,
    ):
        time.sleep(REDISCOVERY_PAUSE_S)
        silent.settimeout(PATIENCE_S)
        frame = client.send(session, "go")
        asked, _ = silent.accept()  # it is being looked for now
        with asked:
            stopped = client.http.post("/session/cancel", headers={"X-Session-ID": session}, json={})
            (refused,) = client.answered(frame)
        (again,) = client.ask(session, "go")

        assert stopped.json() == {"cancelRequested": True}
        assert refused["data"]["code"] == "TURN_CANCELLED"
        assert "no model is available" in again["data"]["message"]
        assert "('o': no answer within 3 s)" in again["data"]["message"]
        assert client.replay(session) == feed


def test_peen_exec_on_its_own_says_at_once_that_there_is_no_model() -> None:
    with outage() as (daemon, _path, _port, _session, _feed):
        done = subprocess.run(
            [sys.executable, "-m", "peen", "exec", "go"],
            env=daemon.environment, cwd=daemon.workspace_root, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    assert done.returncode == 2, done.stderr
    assert "no model is available: no upstream offers a model ('o': cannot connect to" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_default_model_that_the_provider_does_not_have_still_refuses_the_start() -> None:
    with outage() as (daemon, path, port, _session, _feed), UpstreamProcess(path, port=port):
        wrong = Daemon(daemon.home, {**daemon.environment, "PEEN_DEFAULT_MODEL": "o/absent"})
        with pytest.raises(DaemonFailed, match=r"PEEN_DEFAULT_MODEL: model 'o/absent' does not exist.*o/plain"):
            wrong.launch_and_fail()
