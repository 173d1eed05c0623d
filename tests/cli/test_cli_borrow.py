"""One turn in somebody else's controller, which may go away at any moment."""

from __future__ import annotations

import io
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_canned import (
    PATIENCE_S,
    SESSION,
    Handler,
    ServerSocket,
    ack,
    answer,
    canned,
    frame,
    opened,
    press,
    read_request,
    settings_in,
    whole_turn,
)
from msgspec.structs import replace as replace_lock
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection

from peen.cli.borrow import BorrowedTurn
from peen.cli.ends import CommandEnds, NotSent
from peen.cli.exec import carry_out
from peen.cli.order import Form, Order
from peen.cli.screen import Screen
from peen.control.lock import ControllerLock, LockInfo, read_lock
from peen.entropy import Entropy, SystemEntropy
from peen.settings import Settings
from peen.wire.client import Effort

FRAME = "33333333-3333-4333-8333-333333333333"
WAITS = "another peen exec hosts the controller, for other directories; waiting for its end"


class FastClock(SystemEntropy):
    """A monotonic clock a hundred times as fast: waits of half a minute are over in a moment."""

    def monotonic_s(self) -> float:
        return super().monotonic_s() * 100


class LeapingClock(SystemEntropy):
    """A monotonic clock that a test moves ahead."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s

    def leap(self) -> None:
        self.ahead_s += 70


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

    def order(self, *, model: str | None = None, effort: Effort | None = None, within_s: float | None = None) -> Order:
        return Order(
            frame_id=FRAME,
            prompt="hello",
            workspace=str(self.settings.workspace_root / "work"),
            model=model,
            effort=effort,
            deadline_s=None if within_s is None else self.entropy.monotonic_s() + within_s,
        )

    def screen(self, form: Form = "text") -> Screen:
        return Screen(form, out=self.out.extend, err=self.err, watched=False, plain=False, entropy=self.entropy)

    def run(
        self,
        *handlers: Handler,
        form: Form = "text",
        model: str | None = None,
        effort: Effort | None = None,
        within_s: float | None = None,
    ) -> int:
        """Exit code of `peen exec hello` against these connections."""
        holder = read_lock(self.settings.state_dir)
        assert holder is not None
        order = self.order(model=model, effort=effort, within_s=within_s)
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


def test_the_effort_of_the_command_line_is_sent_along(world: World) -> None:
    sent: list[dict[str, Any]] = []
    world.run(opened(), serve(*whole_turn("hello", "hi"), ack({"queued": False}, FRAME), sent=sent), effort="high")

    assert sent[0]["data"] == {"message": "hello", "reasoningEffort": "high"}


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
    refusal = ack({"code": "VALIDATION_FAILED", "message": "data.model: unknown"}, FRAME, request=None)

    assert world.run(opened(), serve(refusal)) == 2
    assert bytes(world.out) == b""
    assert "nothing was stored: data.model: unknown" in world.err.getvalue()


def test_a_controller_that_is_stopping_leaves_the_message_to_another_one(world: World) -> None:
    refusal = ack({"code": "SESSION_BUSY", "message": "the controller is stopping"}, FRAME, request=None)

    with pytest.raises(NotSent, match="is stopping"):
        world.run(opened(), serve(refusal))
    assert bytes(world.out) == b""


def test_an_interrupted_turn_has_a_code_of_its_own(world: World) -> None:
    failed = frame("turn.failed", {"reason": "shutdown", "error": "the controller was stopped"}, 3)
    told = ack({"code": "INTERNAL_SERVER_ERROR", "message": "interrupted", "reason": "shutdown"}, FRAME)

    assert world.run(opened(), serve(*whole_turn("hello", "")[:2], failed, told)) == 4
    assert f"peen session show {SESSION}" in world.err.getvalue()


def leave_after(*frames: bytes, leave: Callable[[], object]) -> Handler:
    """Take the message, answer with `frames`, and once the client has taken them in, make it `leave`."""

    def handle(connection: socket.socket) -> None:
        server = ServerSocket(connection)
        server.receive()
        server.send(*frames)
        server.settle()
        leave()
        server.wait_for_close()

    return handle


def interrupted(*frames: bytes) -> Handler:
    return leave_after(*frames, leave=press)


def watched(*frames: bytes, after: threading.Event | None = None) -> Handler:
    """A socket on which no message may come; `frames` go out at once, or once `after` is set."""

    def handle(connection: socket.socket) -> None:
        server = ServerSocket(connection)
        if after is not None:
            assert after.wait(PATIENCE_S)
        server.send(*frames)
        server.wait_for_close()

    return handle


def page(*frames: bytes) -> Handler:
    """One page of the feed, which is its last."""
    return answer(200, {"items": [_json(item) for item in frames], "nextCursor": 9, "hasMore": False})


def then(handler: Handler, act: Callable[[], object]) -> Handler:
    """Answer one call, and `act` once the client has the answer."""

    def handle(connection: socket.socket) -> None:
        handler(connection)
        assert connection.recv(1) == b""
        act()

    return handle


def cancel(seen: list[str], done: threading.Event) -> Handler:
    """Accept a stop, and say when."""
    return then(answer(202, {"cancelRequested": True}, seen), done.set)


@pytest.mark.parametrize("by", ["SIGINT", "--timeout"])
def test_leaving_stops_the_turn_that_the_message_opened_and_waits_for_its_end(world: World, by: str) -> None:
    created, started, _ = whole_turn("hello", "")
    stopped = frame("turn.cancelled", {"reason": "cancelled"}, 3)
    asked: list[str] = []
    done = threading.Event()
    world.entropy = clock = LeapingClock()

    def leave() -> None:
        if by == "SIGINT":
            press()
        else:
            clock.leap()

    code = world.run(
        opened(),
        leave_after(created, started, leave=leave),
        watched(stopped, after=done),
        page(),
        cancel(asked, done),
        form="stream-json",
        within_s=60,
    )

    assert code == (130 if by == "SIGINT" else 4)
    assert asked == ["POST /api/v1/session/cancel HTTP/1.1"]
    assert bytes(world.out).splitlines() == [created, started, stopped]
    why = "interrupted" if by == "SIGINT" else "the time of --timeout is over"
    assert world.err.getvalue() == f"peen: the turn was cancelled: {why}; cancelled\n"


def test_a_message_whose_acceptance_was_not_seen_yet_is_stopped_once_it_is(world: World) -> None:
    created, started, _ = whole_turn("hello", "")
    asked: list[str] = []
    done = threading.Event()

    def second(connection: socket.socket) -> None:
        server = ServerSocket(connection)
        server.send(created)
        assert done.wait(PATIENCE_S)
        server.send(frame("turn.cancelled", {"reason": "cancelled"}, 3))
        server.wait_for_close()

    code = world.run(opened(), interrupted(), second, page(), page(created, started), cancel(asked, done))

    assert code == 130
    assert len(asked) == 1
    assert bytes(world.out) == b""


def test_a_turn_that_the_message_only_joined_is_left_alone(world: World) -> None:
    created = whole_turn("hello", "")[0]
    queued = frame("userMessage.queued", {"message": "hello"}, 2)

    assert world.run(opened(), interrupted(created, queued), watched(), page()) == 130
    assert "interrupted; it goes on in the running controller" in world.err.getvalue()


def test_a_turn_that_a_queued_message_opened_in_the_end_is_stopped(world: World) -> None:
    created, started, _ = whole_turn("hello", "")
    frames = [created, frame("userMessage.queued", {"message": "hello"}, 2), *renumbered(3, started)]
    asked: list[str] = []
    done = threading.Event()

    code = world.run(
        opened(),
        interrupted(*frames),
        watched(frame("turn.cancelled", {"reason": "cancelled"}, 4), after=done),
        page(),
        cancel(asked, done),
    )

    assert (code, len(asked)) == (130, 1)


def test_an_answer_that_comes_before_the_stop_is_still_printed(world: World) -> None:
    created, started, completed = whole_turn("hello", "hi")

    assert world.run(opened(), interrupted(created, started), watched(), page(completed)) == 0
    assert bytes(world.out) == b"hi\n"


def test_a_second_sigint_ends_the_wait_for_the_end(world: World) -> None:
    created, started, _ = whole_turn("hello", "")

    told = then(answer(202, {"cancelRequested": True}), press)

    assert world.run(opened(), interrupted(created, started), watched(), page(), told) == 130
    assert "the turn has not ended: interrupted; its end was not waited for" in world.err.getvalue()


def test_a_stop_that_takes_too_long_is_said_to_go_on(world: World) -> None:
    world.entropy = clock = LeapingClock()
    created, started, _ = whole_turn("hello", "")

    told = then(answer(202, {"cancelRequested": True}), clock.leap)

    assert world.run(opened(), interrupted(created, started), watched(), page(), told) == 130
    assert "it was told to stop, which takes longer than usual" in world.err.getvalue()


def test_a_message_that_never_shows_is_not_sent_again_by_who_leaves(world: World) -> None:
    world.entropy = clock = LeapingClock()

    assert world.run(opened(), interrupted(), watched(), then(page(), clock.leap)) == 130
    assert "whether the message arrived is not known" in world.err.getvalue()


def test_a_controller_that_cannot_be_told_to_stop_is_reported(world: World) -> None:
    created, started, _ = whole_turn("hello", "")

    assert world.run(opened(), interrupted(created, started)) == 130
    assert "it could not be stopped: the controller cannot be reached" in world.err.getvalue()


def test_sigint_before_the_message_is_sent_sends_nothing(world: World) -> None:
    def hang(connection: socket.socket) -> None:
        read_request(connection)
        press()
        assert connection.recv(1) == b""  # it goes without an answer

    assert world.run(hang) == 130
    assert world.err.getvalue() == "peen: interrupted; nothing was sent\n"


def refusal() -> Handler:
    return answer(403, {"code": "WORKSPACE_NOT_ALLOWED", "message": "a workspace must be inside the root"})


def test_a_workspace_that_a_daemon_does_not_allow_names_the_remedy(world: World) -> None:
    world.lock.update(address="http://127.0.0.1:1")

    with pytest.raises(CommandEnds, match="PEEN_WORKSPACE_ROOT of the running controller") as refused:
        world.run(refusal())
    assert refused.value.code == 2
    assert str(world.settings.workspace_root / "work") in str(refused.value)


@pytest.mark.parametrize(
    ("workspace", "why"),
    [
        ("/usr", "outside the PEEN_WORKSPACE_ROOT"),
        (".", "where Peen keeps its own"),
        ("state", "where Peen keeps its own"),
        ("none", "does not exist"),
    ],
)
def test_a_workspace_that_no_controller_of_ours_would_allow_is_refused_at_once(
    world: World, workspace: str, why: str
) -> None:
    order = replace(world.order(), workspace=str(world.settings.workspace_root / workspace))

    with canned(world.settings.control_socket, refusal()), pytest.raises(CommandEnds, match=why) as refused:
        carry_out(order, world.settings, world.screen(), world.entropy)
    assert refused.value.code == 2
    assert world.err.getvalue() == ""


def test_a_command_inside_a_turn_of_the_controller_does_not_wait_for_its_end(world: World) -> None:
    above = LockInfo(pid=os.getppid(), control_socket=str(world.settings.control_socket))

    with canned(world.settings.control_socket, refusal()), pytest.raises(CommandEnds, match="PEEN_WORKSPACE_ROOT"):
        BorrowedTurn(world.order(), world.settings, world.screen(), world.entropy).run(above)


def test_a_controller_that_another_command_hosts_for_other_directories_is_waited_for_and_said_once(
    world: World,
) -> None:
    def next_holder() -> None:
        world.lock._write(replace_lock(world.holder, start_time=1))

    def last_holder() -> None:
        world.lock._write(replace_lock(world.holder, start_time=2))

    with canned(
        world.settings.control_socket,
        soon(world, refusal(), next_holder),
        soon(world, refusal(), last_holder),
        opened(),
        serve(*whole_turn("hello", "hi"), ack({"queued": False}, FRAME)),
    ):
        code = carry_out(world.order(), world.settings, world.screen(), world.entropy)

    assert (code, bytes(world.out), world.err.getvalue()) == (0, b"hi\n", f"peen: {WAITS}\n")


def test_a_daemon_that_was_about_to_listen_is_not_waited_for(world: World) -> None:
    def listen() -> None:
        world.lock.update(address="http://127.0.0.1:1")

    with (
        canned(world.settings.control_socket, soon(world, refusal(), listen), refusal()),
        pytest.raises(CommandEnds, match="PEEN_WORKSPACE_ROOT of the running controller") as refused,
    ):
        carry_out(world.order(), world.settings, world.screen(), world.entropy)
    assert refused.value.code == 2


def test_the_time_limit_holds_while_another_command_is_waited_for(world: World) -> None:
    with canned(world.settings.control_socket, refusal()), pytest.raises(CommandEnds, match="nothing was sent") as end:
        carry_out(world.order(within_s=0.3), world.settings, world.screen(), world.entropy)
    assert end.value.code == 4
    assert world.err.getvalue() == f"peen: {WAITS}\n"


def test_sigint_ends_the_wait_for_another_command(world: World) -> None:
    with (
        canned(world.settings.control_socket, soon(world, refusal(), press)),
        pytest.raises(CommandEnds, match="interrupted; nothing was sent") as end,
    ):
        carry_out(world.order(), world.settings, world.screen(), world.entropy)
    assert end.value.code == 130


def soon(world: World, handler: Handler, act: Callable[[], object]) -> Handler:
    """Answer one call, and `act` once the client has said that it waits."""

    def later() -> None:
        give_up = time.monotonic() + 20
        while WAITS not in world.err.getvalue():
            assert time.monotonic() < give_up, "the client never said that it waits"
            time.sleep(0.01)
        act()

    return then(handler, later)


def test_a_controller_that_goes_before_the_message_is_sent_leaves_it_to_the_next(world: World) -> None:
    with pytest.raises(NotSent):
        world.run(opened(), lambda connection: connection.close())


def test_a_controller_that_says_goodbye_as_it_opens_the_socket_leaves_the_message_to_the_next(world: World) -> None:
    def goodbye(connection: socket.socket) -> None:
        protocol = WSConnection(ConnectionType.SERVER)
        protocol.receive_data(connection.recv(65536))
        (_,) = protocol.events()
        connection.sendall(protocol.send(AcceptConnection()) + protocol.send(CloseConnection(code=1001)))

    with pytest.raises(NotSent):
        world.run(opened(), goodbye)


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


def renumbered(sequence: int, payload: bytes) -> list[bytes]:
    """The frame under another sequence."""
    changed = _json(payload)
    changed["metadata"]["sequence"] = sequence
    return [json.dumps(changed).encode()]
