"""Watching a session: every frame once, in order, over as many connections as it takes."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_canned import (
    SESSION,
    Handler,
    ServerSocket,
    ack,
    answer,
    canned,
    environment_in,
    frame,
    press,
    session_json,
    settings_in,
    whole_turn,
)

from peen.cli.attach import Watch
from peen.cli.client import CallRefused, Endpoint
from peen.cli.ends import CommandEnds
from peen.cli.main import main
from peen.control.lock import ControllerLock, LockInfo
from peen.entropy import Entropy, SystemEntropy
from peen.settings import Settings

CREATED, STARTED, COMPLETED = whole_turn("hello", "hi", first=4)
"""Sequences 4 to 6."""


class FastClock(SystemEntropy):
    """A hundred times as fast."""

    def monotonic_s(self) -> float:
        return super().monotonic_s() * 100


class Reader:
    """Takes lines until it has enough, and then is gone."""

    def __init__(self, enough: int) -> None:
        self.lines: list[str] = []
        self._enough = enough

    def write(self, data: bytes) -> None:
        self.lines += data.decode().splitlines()
        if len(self.lines) >= self._enough:
            raise BrokenPipeError(errno.EPIPE, "gone")


def follow(*frames: bytes, cut: bool = False) -> Handler:
    def handle(connection: socket.socket) -> None:
        server = ServerSocket(connection)
        assert server.target == f"/ws/v1?sessionId={SESSION}"
        server.send(*frames)
        if cut:
            server.settle()
        else:
            server.wait_for_close()

    return handle


def page(*frames: bytes, seen: list[str] | None = None) -> Handler:
    items = [json.loads(item) for item in frames]
    return answer(200, {"items": items, "nextCursor": 9, "hasMore": False}, seen)


def watch(
    base: Path, *handlers: Handler, enough: int, after: int = 3, entropy: Entropy | None = None, plain: bool = False
) -> list[str]:
    """The lines that a reader of so many sees."""
    reader = Reader(enough)
    with canned(base / "s", *handlers) as endpoint:
        watched = Watch(SESSION, after, entropy or SystemEntropy(), lambda: endpoint, reader.write, plain=plain)
        with pytest.raises(BrokenPipeError):
            watched.run()
    return reader.lines


def test_a_frame_is_its_type_a_tab_and_its_data(short_path: Path) -> None:
    told = ack({"queued": False}, "somebody")

    lines = watch(short_path, follow(CREATED, STARTED, COMPLETED, told), page(), enough=4)

    assert [line.partition("\t")[0] for line in lines] == [
        "userMessage.created", "turn.started", "turn.completed", "message.completed",
    ]  # fmt: skip
    assert lines[0].partition("\t")[2] == '{"message":"hello"}'
    assert lines[3] == 'message.completed\t{"queued":false}'


def test_what_was_before_is_not_shown_and_what_came_while_connecting_is(short_path: Path) -> None:
    asked: list[str] = []
    old = frame("turn.completed", {"text": "old"}, 3)

    lines = watch(short_path, follow(old, STARTED, COMPLETED), page(CREATED, STARTED, seen=asked), enough=3)

    assert [line.partition("\t")[0] for line in lines] == ["userMessage.created", "turn.started", "turn.completed"]
    assert asked == ["GET /api/v1/session/feed?cursor=3&limit=1000 HTTP/1.1"]


def test_a_lost_connection_is_made_again_and_the_feed_tells_what_was_missed(
    short_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    lines = watch(
        short_path,
        follow(CREATED, cut=True),
        page(),
        follow(COMPLETED),
        page(STARTED, seen=asked),
        enough=3,
    )

    assert [line.partition("\t")[0] for line in lines] == ["userMessage.created", "turn.started", "turn.completed"]
    assert asked == ["GET /api/v1/session/feed?cursor=4&limit=1000 HTTP/1.1"]
    assert capfd.readouterr().err.count("waiting for the controller") == 1


def test_data_is_one_line_and_cannot_move_the_cursor_of_a_terminal(short_path: Path) -> None:
    odd = (
        frame("tool.result", {"content": "a\x9bb"}, 4)
        .replace(b'"content"', b'\n"content"')
        .replace(b"\\u009b", b"\xc2\x9b")
    )

    piped = watch(short_path, follow(odd), page(), enough=1)
    shown = watch(short_path, follow(odd), page(), enough=1, plain=True)

    assert piped == ['tool.result\t{"content":"a\x9bb"}']
    assert shown == ['tool.result\t{"content":"a\N{REPLACEMENT CHARACTER}b"}']


def test_what_makes_no_sense_is_skipped(short_path: Path) -> None:
    assert len(watch(short_path, follow(b"no frame", b"{}", CREATED), page(), enough=1)) == 1


def test_a_controller_that_stays_away_ends_the_watch(short_path: Path) -> None:
    watched = Watch(SESSION, 0, FastClock(), lambda: None, print_nothing)

    with pytest.raises(CommandEnds, match="none came back within 30 s") as end:
        watched.run()
    assert end.value.code == 5


def test_a_session_that_is_gone_when_the_controller_is_back_ends_the_watch(short_path: Path) -> None:
    gone = answer(404, {"code": "SESSION_NOT_FOUND", "message": "no such session"})
    with canned(short_path / "s", follow(), gone) as endpoint:
        watched = Watch(SESSION, 0, SystemEntropy(), lambda: endpoint, print_nothing)
        with pytest.raises(CallRefused, match="SESSION_NOT_FOUND"):
            watched.run()


def print_nothing(data: bytes) -> None:
    raise AssertionError(f"there is nothing to show, but {data!r} came")


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def held(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A lock that says: a controller runs."""
    settings = settings_in(short_path)
    for name, value in environment_in(short_path).items():
        monkeypatch.setenv(name, value)
    with ControllerLock.acquire(settings.state_dir, LockInfo.of_this_process(control_socket=settings.control_socket)):
        yield settings


def test_it_begins_behind_the_newest_frame_and_sigint_is_its_proper_end(
    held: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def live(connection: socket.socket) -> None:
        server = ServerSocket(connection)
        server.send(CREATED)
        server.settle()
        press()
        server.wait_for_close()

    handlers: list[Any] = [answer(200, session_json(3)), live, page(seen=asked)]
    with canned(held.control_socket, *handlers):
        assert main(["session", "attach", SESSION]) == 0

    assert capfd.readouterr().out == 'userMessage.created\t{"message":"hello"}\n'
    assert "cursor=3" in asked[0]


def test_an_unknown_session_is_refused(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    refusal = answer(404, {"code": "SESSION_NOT_FOUND", "message": "no such session"})
    with canned(held.control_socket, refusal):
        assert main(["session", "attach", SESSION]) == 2
    assert capfd.readouterr().err == "peen: 404 SESSION_NOT_FOUND: no such session\n"


def test_the_place_of_the_controller_is_looked_up_each_time(held: Settings) -> None:
    from peen.cli.attach import finder

    find = finder(held)

    assert find() == Endpoint(held.control_socket, None, None)
