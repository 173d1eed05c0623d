"""Images through the real program: sockets, workers, providers behind HTTP, SIGKILL, and `peen exec --image`."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from crash_kit import PATIENCE_S, Client, Frame, command, script, scripted_daemon, short_directory, wait_for
from image_kit import GIF, JPEG, PNG, on_wire

from peen.testing.daemon import Daemon
from peen.testing.upstream.process import UpstreamProcess
from peen.wire.client import ClientLimits
from peen.wire.image import media_type_of

WAITING: Final = "touch started; while [ ! -e go ]; do sleep 0.02; done"
SEES: Final = {"text": "I saw {images}."}
SCRIPT: Final = script(
    {
        "sees": [[SEES]],
        "waits": [[command(WAITING), SEES], [SEES]],
        "reads": [[{"calls": [{"name": "readFile", "arguments": {"path": "a.gif"}}]}, SEES]],
        "refuses": [[{"fault": {"kind": "status", "status": 400, "message": "Could not process image"}}], [SEES]],
    }
)
SAW_PNG: Final = "I saw image/png (70 bytes)."


def end_of(frames: list[Frame]) -> dict[str, Any]:
    data: dict[str, Any] = next(
        frame["data"] for frame in frames if frame["type"] in ("turn.completed", "turn.failed", "turn.cancelled")
    )
    return data


def image(client: Client, session: str, data: bytes) -> tuple[int, bytes]:
    name = hashlib.sha256(data).hexdigest()
    answer = client.http.get(f"/session/images/{name}", headers={"X-Session-ID": session, "Accept": "image/*"})
    if answer.status_code == 200:
        headers = answer.headers
        assert headers.get_list("content-type") == [media_type_of(data)]
        assert headers.get_list("cache-control") == ["private, max-age=3600, immutable"]
        assert headers.get_list("x-content-type-options") == ["nosniff"]
    return answer.status_code, answer.content


@contextmanager
def behind(wire: str, **fields: Any) -> Iterator[Daemon]:
    """A daemon, not started yet, whose models live behind a provider of this dialect."""
    with short_directory() as home:
        path = home / "script.yaml"
        path.write_text(SCRIPT)
        with UpstreamProcess(path, "--wire", wire) as provider:
            entry = {"name": "dev", "type": wire, "baseUrl": provider.base_url, **fields}
            yield Daemon(home, {"PEEN_UPSTREAMS": json.dumps([entry])})


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_a_message_with_images_survives_a_kill_and_is_replayed_to_the_provider(wire: str) -> None:
    with behind(wire) as daemon:
        with daemon, Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            client.send(session, "look", model="dev/waits", images=[on_wire(PNG), on_wire(GIF, "image/gif")])
            wait_for((daemon.workspace_root / "started").exists, "the command to start")
            daemon.kill()
        with daemon, Client(daemon) as client:
            frames = client.ask(session, "and now?", model="dev/waits")
            stored = client.get("/messages", session)["items"][0]

            assert end_of(frames)["text"] == f"I saw image/png (70 bytes), image/gif ({len(GIF)} bytes)."
            assert [each["mediaType"] for each in stored["images"]] == ["image/png", "image/gif"]
            assert image(client, session, PNG) == (200, PNG)


def test_a_turn_that_goes_on_after_a_kill_has_its_images() -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT, {"PEEN_CRASH_RECOVERY": "resume"})
        with daemon, Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            client.send(session, "look", model="scripted/waits", images=[on_wire(PNG)])
            wait_for((daemon.workspace_root / "started").exists, "the command to start")
            daemon.kill()
        with daemon, Client(daemon) as client:
            wait_for(lambda: client.replay(session)[-1]["type"] == "turn.completed", "the turn to end")

            assert client.replay(session)[-1]["data"]["text"] == SAW_PNG


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_an_image_that_the_agent_reads_reaches_the_provider_and_is_stored(wire: str) -> None:
    with behind(wire) as daemon, daemon, Client(daemon) as client:
        (daemon.workspace_root / "a.gif").write_bytes(GIF)
        session = client.open(daemon.workspace_root)
        frames = client.ask(session, "go", model="dev/reads")
        again = client.ask(session, "go on", model="dev/sees")
        shown = [item for item in client.get("/messages", session)["items"] if "images" in item]

        assert end_of(frames)["text"] == end_of(again)["text"] == f"I saw image/gif ({len(GIF)} bytes)."
        assert [(item["role"], item["injectedKind"]) for item in shown] == [("user", "image")]
        assert f"{daemon.workspace_root}/a.gif" in shown[0]["content"]
        assert image(client, session, GIF) == (200, GIF)


def test_the_largest_image_that_may_be_read_passes_the_sockets_of_the_worker() -> None:
    large = GIF + os.urandom(ClientLimits().max_image_bytes - len(GIF))
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        (daemon.workspace_root / "a.gif").write_bytes(large)
        session = client.open(daemon.workspace_root)
        frames = client.ask(session, "go", model="scripted/reads")

        assert end_of(frames)["text"] == f"I saw image/gif ({len(large)} bytes)."
        assert image(client, session, large) == (200, large)


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_the_largest_message_that_is_allowed_passes_every_socket(wire: str) -> None:
    limits = ClientLimits()
    large = [PNG + os.urandom(limits.max_image_bytes - len(PNG)) for _ in range(limits.max_images_per_message)]
    with behind(wire) as daemon, daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        frames = client.ask(session, "look", model="dev/sees", images=[on_wire(each) for each in large])
        seen = ", ".join(f"image/png ({len(each)} bytes)" for each in large)

        assert end_of(frames)["text"] == f"I saw {seen}."
        assert [image(client, session, each) for each in large] == [(200, each) for each in large]


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_a_refused_image_fails_one_turn_and_the_session_goes_on_without_it(wire: str) -> None:
    with behind(wire) as daemon, daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        failed = client.ask(session, "look", model="dev/refuses", images=[on_wire(PNG)])
        after = client.ask(session, "and now?", model="dev/refuses", images=[on_wire(JPEG, "image/jpeg")])
        stored = client.get("/messages", session)["items"][0]

        assert "Could not process image" in end_of(failed)["error"]
        assert "a note stands in its place" in end_of(failed)["error"]
        assert end_of(after)["text"] == f"I saw image/jpeg ({len(JPEG)} bytes)."
        assert stored["images"][0]["refused"].endswith("Could not process image")


def test_a_message_that_joins_a_turn_brings_its_images_along() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        session = client.open(daemon.workspace_root)
        first = client.send(session, "work", model="scripted/waits")
        wait_for((daemon.workspace_root / "started").exists, "the command to start")
        queued = client.ask(session, "and look", images=[on_wire(PNG)])
        (daemon.workspace_root / "go").touch()
        frames = client.answered(first)

        assert queued[-1]["data"] == {"queued": True}
        assert "userMessage.delivered" in [frame["type"] for frame in frames]
        assert end_of(frames)["text"] == SAW_PNG


def test_models_without_eyes_get_no_images_and_nothing_is_stored() -> None:
    with behind("openai", imageInput=False) as daemon, daemon, Client(daemon) as client:
        (daemon.workspace_root / "a.gif").write_bytes(GIF)
        session = client.open(daemon.workspace_root)
        refused = client.ask(session, "look", model="dev/sees", images=[on_wire(PNG)])
        frames = client.ask(session, "go", model="dev/reads")
        (result,) = [frame["data"] for frame in frames if frame["type"] == "tool.result"]

        assert [frame["type"] for frame in refused] == ["message.failed"]
        assert refused[0]["data"]["code"] == "VALIDATION_FAILED"
        assert "data.images" in refused[0]["data"]["message"]
        assert all(model["imageInput"] is False for model in client.http.get("/models").json()["models"])
        assert image(client, session, PNG)[0] == 404
        assert result["isError"]
        assert "this model takes no images" in result["content"]


def test_the_bytes_of_a_deleted_session_are_gone() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon:
        large = PNG + os.urandom(100_000)
        with Client(daemon) as client:
            session = client.open(daemon.workspace_root)
            client.ask(session, "look", model="scripted/sees", images=[on_wire(large)])
            answer = client.http.request("DELETE", f"/sessions/{session}", headers={"content-type": "application/json"})
            assert answer.status_code == 200, answer.text
            again = client.open(daemon.workspace_root)
            assert image(client, again, large)[0] == 404
        daemon.stop()
        assert blob_bytes(daemon) < 100_000


def blob_bytes(daemon: Daemon) -> int:
    with sqlite3.connect(daemon.state_dir / "peen.db") as database:
        found = database.execute("SELECT coalesce(sum(length(data)), 0) FROM blob").fetchone()
    return int(found[0])


# --- peen exec


def run(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "peen", "exec", *arguments],
        cwd=daemon.workspace_root, env=daemon.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=2 * PATIENCE_S, check=False,
    )  # fmt: skip


def pictures(directory: Path) -> tuple[str, str]:
    (directory / "a.png").write_bytes(PNG)
    (directory / "b.jpg").write_bytes(JPEG)
    return "a.png", "b.jpg"


@pytest.mark.parametrize("is_running", [True, False])
def test_exec_sends_images_in_a_controller_of_its_own_and_in_one_that_runs(is_running: bool) -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT)
        daemon.config_dir.mkdir(mode=0o700)
        first, second = pictures(daemon.workspace_root)
        arguments = ["--model", "scripted/sees", "--image", first, "--image", second, "look"]
        if is_running:
            with daemon:
                done = run(daemon, *arguments)
        else:
            done = run(daemon, *arguments)

    assert (done.returncode, done.stdout) == (
        0, f"I saw image/png (70 bytes), image/jpeg ({len(JPEG)} bytes).\n"
    ), done.stderr  # fmt: skip


def test_exec_refuses_a_file_that_is_no_image_before_anything_starts() -> None:
    with short_directory() as home:
        daemon = scripted_daemon(home, SCRIPT)
        (daemon.workspace_root / "a.txt").write_text("no image")
        done = run(daemon, "--image", "a.txt", "look")

        assert (done.returncode, done.stdout) == (2, "")
        assert "--image a.txt: is no image in the format PNG, JPEG, GIF or WebP" in done.stderr
        assert not daemon.state_dir.exists()


def test_the_demo_says_what_it_was_shown_and_the_session_shows_it() -> None:
    with short_directory() as home, Daemon(home) as daemon:
        name, _ = pictures(daemon.workspace_root)
        done = run(daemon, "--image", name, "what is this?")
        with Client(daemon) as client:
            session = client.open(daemon.workspace_root)
        shown = subprocess.run(
            [sys.executable, "-m", "peen", "session", "show", session],
            env=daemon.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S,
            check=True,
        )  # fmt: skip

    assert done.stdout.startswith("I was shown an image: image/png (70 bytes).")
    assert f"[image image/png, 70 bytes, {hashlib.sha256(PNG).hexdigest()[:12]}]" in shown.stdout
