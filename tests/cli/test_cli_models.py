"""Which models there are, told by a running controller or found out without one."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from cli_canned import answer, canned, environment_in, settings_in

from peen.cli.main import main
from peen.control.lock import ControllerLock, LockInfo
from peen.settings import Settings


@pytest.fixture
def settings(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    made = settings_in(short_path)
    for name, value in environment_in(short_path).items():
        monkeypatch.setenv(name, value)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "PEEN_UPSTREAMS", "PEEN_DEFAULT_MODEL"):
        monkeypatch.delenv(name, raising=False)
    return made


def model(name: str, *, window: int = 1000, images: bool = True) -> dict[str, Any]:
    upstream, _, model_id = name.partition("/")
    return {
        "name": name, "connectionName": upstream, "modelId": model_id, "contextWindowTokens": window,
        "imageInput": images,
    }  # fmt: skip


def closed_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_a_running_controller_tells_what_it_found(settings: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    found = {"models": [model("up/one"), model("up/two", window=9, images=False)], "default": "up/two"}
    info = LockInfo.of_this_process(control_socket=settings.control_socket)
    asked: list[str] = []
    with ControllerLock.acquire(settings.state_dir, info):
        with canned(settings.control_socket, answer(200, found, asked)):
            assert main(["models"]) == 0
        assert capfd.readouterr().out == (
            "up/one\t1000\timageInput=true\tdefault=false\nup/two\t9\timageInput=false\tdefault=true\n"
        )
        with canned(settings.control_socket, answer(200, found, asked)):
            assert main(["models", "--json"]) == 0

    assert json.loads(capfd.readouterr().out) == found
    assert asked == ["GET /api/v1/models HTTP/1.1"] * 2


def test_without_a_controller_the_upstreams_are_asked_and_nothing_is_made(
    settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["models"]) == 0

    out, err = capfd.readouterr()
    assert (out, err) == ("scripted/demo\t131072\timageInput=true\tdefault=true\n", "")
    assert list(settings.state_dir.iterdir()) == []


def test_an_upstream_that_does_not_answer_is_told_beside_the_others(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    dead = {"name": "dead", "type": "openai", "baseUrl": f"http://127.0.0.1:{closed_port()}/v1"}
    monkeypatch.setenv("PEEN_UPSTREAMS", json.dumps([dead, {"name": "scripted", "type": "scripted"}]))

    assert main(["models"]) == 0

    out, err = capfd.readouterr()
    assert out.startswith("scripted/demo\t")
    assert err.startswith("peen: upstream dead: cannot connect to")
    assert len(err.splitlines()) == 1


def test_no_model_at_all_is_an_error(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    dead = {"name": "dead", "type": "openai", "baseUrl": f"http://127.0.0.1:{closed_port()}/v1"}
    monkeypatch.setenv("PEEN_UPSTREAMS", json.dumps([dead]))

    assert main(["models"]) == 1

    out, err = capfd.readouterr()
    assert out == ""
    assert "no upstream offers a model" in err


def test_a_default_that_nobody_offers_is_an_error(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PEEN_DEFAULT_MODEL", "scripted/nothing")

    assert main(["models"]) == 1

    out, err = capfd.readouterr()
    assert "default=false" in out
    assert "scripted/nothing (PEEN_DEFAULT_MODEL) is offered by no upstream" in err
