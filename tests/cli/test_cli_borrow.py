"""One turn in somebody else's controller, which may go away at any moment."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from contextlib import closing
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
    frame,
    opened,
    settings_in,
    whole_turn,
)

from peen.cli.borrow import BorrowedTurn, NotSent
from peen.cli.ends import CommandEnds
from peen.cli.exec import carry_out
from peen.cli.order import Form, Order
from peen.cli.screen import Screen
from peen.control.lock import ControllerLock, LockInfo, read_lock
from peen.entropy import Entropy, SystemEntropy
from peen.settings import Settings

FRAME = "33333333-3333-4333-8333-333333333333"


class FastClock(SystemEntropy):
    """A monotonic clock a hundred times as fast: waits of half a minute are over in a moment."""

    def monotonic_s(self) -> float:
        return super().monotonic_s() * 100


class World:
    """Settings, a lock that this process holds in the place of a controller, and what the command showed."""

    def __init__(self, short_path: Path) -> None:
        self.settings: Settings = settings_in(short_path)
        self.entropy: Entropy = SystemEntropy()
        self.out, self.err = bytearray(), io.StringIO()
        self.holder = LockInfo.of_this_process(control_socket=self.settings.control_socket)
        self.lock = ControllerLock.acquire(self.settings.state_dir, self.holder)

    def close(self) -> None:
        self.lock.release()

    def order(self, *, model: str | None = None, within_s: float | None = None) -> Order:
        return Order(
            frame_id=FRAME,
            prompt="hello",
            workspace=str(self.settings.workspace_root / "work"),
            model=model,
            deadline_s=None if within_s is None else self.entropy.monotonic_s() + within_s,
        )

    def screen(self, form: Form = "text") -> Screen:
        return Screen(form, out=self.out.extend, err=self.err, watched=False, plain=False, entropy=self.entropy)

    def run(
        self, *handlers: Handler, form: Form = "text", model: str | None = None, within_s: float | None = None
    ) -> int:
        """Exit code of `peen exec hello` against these connections."""
        holder = read_lock(self.settings.state_dir)
        assert holder is not None
        order = self.order(model=model, within_s=within_s)
        with canned(self.settings.control_socket, *handlers):
            return BorrowedTurn(order, self.settings, self.screen(form), self.entropy).run(holder)


@pytest.fixture
def world(short_path: Path) -> Iterator[World]:
    with closing(World(short_path)) as made:
        yield made


def serve(*frames: bytes, sent: list[dict[str, Any]] | None = None, cut: bool = False) -> Handler:
    """Accept a socket, take one message, send `frames`; then wait for the client to go, or cut it off."""

    def handle(connection: socket.socket) -> None:
        server = ServerSocket(connection)
        message = server.receive()
        if sent is not None:
            sent.append(message)
        server.send(*frames)
        if not cut:
            server.wait_for_close()

    return handle


def test_the_answer_is_printed_once_the_message_is_acknowledged(world: World) -> None:
    sent: list[dict[str, Any]] = []
    code = world.run(opened(), serve(*whole_turn("hello", "hi"), ack({"queued": False}, FRAME), sent=sent))

    assert (code, bytes(world.out), world.err.getvalue()) == (0, b"hi\n", "")
    assert sent[0]["id"] == FRAME
    assert sent[0]["data"] == {"message": "hello"}
    assert sent[0]["metadata"] == {"sessionId": SESSION}


def test_the_model_of_the_command_line_is_sent_along(world: World) -> None:
    sent: list[dict[str, Any]] = []
    world.run(opened(), serve(*whole_turn("hello", "hi"), ack({"queued": False}, FRAME), sent=sent), model="up/other")

    assert sent[0]["data"] == {"message": "hello", "model": "up/other"}


def test_frames_are_streamed_with_the_acknowledgement_last(world: World) -> None:
    frames = [*whole_turn("hello", "hi"), ack({"queued": False}, FRAME)]

    assert world.run(opened(), serve(*frames), form="stream-json") == 0
    assert bytes(world.out).splitlines() == frames


def test_a_lost_connection_is_made_again_and_nothing_is_missed_repeated_or_sent_as_new(world: World) -> None:
    created, started, completed = whole_turn("hello", "hi")
    sent: list[dict[str, Any]] = []
    asked: list[str] = []
    page = {"items": [_json(started), _json(completed)], "nextCursor": 3, "hasMore": False}

    def back(connection: socket.socket) -> None:
        server = ServerSocket(connection)
        server.send(started, completed)  # live frames that the feed tells as well
        sent.append(server.receive())
        server.send(ack({"queued": False}, FRAME))
        server.wait_for_close()

    # The socket is opened before the feed is read, so that no frame falls between the two.
    code = world.run(
        opened(),
        serve(created, sent=sent, cut=True),
        back,
        answer(200, page, asked),
        form="stream-json",
    )

    assert code == 0
    assert [_json(line)["type"] for line in bytes(world.out).splitlines()] == [
        "userMessage.created", "turn.started", "turn.completed", "message.completed",
    ]  # fmt: skip
    assert asked == ["GET /api/v1/session/feed?cursor=1&limit=1000 HTTP/1.1"]
    assert [message["id"] for message in sent] == [FRAME, FRAME]
    assert sent[0]["data"] == sent[1]["data"]


def test_an_end_that_went_by_is_read_from_the_feed(world: World) -> None:
    page = {"items": [_json(item) for item in whole_turn("hello", "hi")], "nextCursor": 3, "hasMore": False}

    code = world.run(opened(), serve(ack({"queued": False}, FRAME)), answer(200, page))

    assert (code, bytes(world.out)) == (0, b"hi\n")


def test_a_refused_message_is_told_with_its_reason(world: World) -> None:
    refusal = ack({"code": "SESSION_BUSY", "message": "a turn is running"}, FRAME, request=None)

    assert world.run(opened(), serve(refusal)) == 2
    assert bytes(world.out) == b""
    assert "nothing was stored: a turn is running" in world.err.getvalue()


def test_an_interrupted_turn_has_a_code_of_its_own(world: World) -> None:
    failed = frame("turn.failed", {"reason": "shutdown", "error": "the controller was stopped"}, 3)
    told = ack({"code": "INTERNAL_SERVER_ERROR", "message": "interrupted", "reason": "shutdown"}, FRAME)

    assert world.run(opened(), serve(*whole_turn("hello", "")[:2], failed, told)) == 4
    assert f"peen session show {SESSION}" in world.err.getvalue()


def test_when_time_is_up_the_turn_is_said_to_go_on(world: World) -> None:
    assert world.run(opened(), serve(*whole_turn("hello", "")[:2]), within_s=0.3) == 4
    assert "--timeout is over; it goes on in the running controller" in world.err.getvalue()


def test_a_workspace_that_is_not_allowed_names_the_remedy(world: World) -> None:
    refusal = answer(403, {"code": "WORKSPACE_NOT_ALLOWED", "message": "a workspace must be inside the root"})

    with pytest.raises(CommandEnds, match="PEEN_WORKSPACE_ROOT") as refused:
        world.run(refusal)
    assert refused.value.code == 2
    assert str(world.settings.workspace_root / "work") in str(refused.value)


def test_a_controller_that_goes_before_the_message_is_sent_leaves_it_to_the_next(world: World) -> None:
    with pytest.raises(NotSent):
        world.run(opened(), lambda connection: connection.close())


def test_a_controller_that_comes_back_without_the_session_is_not_waited_for(world: World) -> None:
    gone = answer(404, {"code": "SESSION_NOT_FOUND", "message": "no such session"})

    code = world.run(
        opened(),
        serve(whole_turn("hello", "")[0], cut=True),
        lambda connection: ServerSocket(connection).wait_for_close(),
        gone,
    )

    assert code == 4
    assert "404 SESSION_NOT_FOUND" in world.err.getvalue()


def test_a_controller_that_is_gone_for_good_is_told_with_where_to_look(world: World) -> None:
    world.entropy = FastClock()

    assert world.run(opened(), serve(*whole_turn("hello", "")[:2], cut=True)) == 4
    told = world.err.getvalue()
    assert "none came back within 30 s" in told
    assert f"peen session show {SESSION}" in told
    assert "not known" not in told


def test_a_message_that_may_not_have_arrived_is_said_to_be_unknown(world: World) -> None:
    world.entropy = FastClock()

    assert world.run(opened(), serve(cut=True)) == 4
    assert "whether the message arrived is not known" in world.err.getvalue()


def test_a_controller_that_never_answers_is_exit_five(world: World) -> None:
    world.entropy = FastClock()

    with pytest.raises(CommandEnds, match=rf"\(process {world.holder.pid}\) does not answer") as end:
        carry_out(world.order(), world.settings, world.screen(), world.entropy)
    assert end.value.code == 5


def test_the_time_limit_holds_while_no_controller_answers(world: World) -> None:
    with pytest.raises(CommandEnds, match="nothing was sent") as end:
        carry_out(world.order(within_s=0.2), world.settings, world.screen(), world.entropy)
    assert end.value.code == 4


def _json(payload: bytes) -> Any:
    return json.loads(payload)
