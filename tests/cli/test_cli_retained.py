"""`peen session continue` and `abandon`, and what `peen session show` tells of paused work."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_canned import (
    REQUEST,
    SESSION,
    Handler,
    answer,
    canned,
    environment_in,
    http_bytes,
    read_request,
    session_json,
    settings_in,
)

from peen.cli.main import main
from peen.control.lock import ControllerLock, LockInfo
from peen.settings import Settings

FIRST = "33333333-3333-4333-8333-333333333331"
SECOND = "33333333-3333-4333-8333-333333333332"
ACTIVITY = "44444444-4444-4444-8444-44444444444"
WHEN = "2026-01-31T12:00:00.000Z"
API = "/api/v1/session/executions"


@pytest.fixture
def held(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A lock that says: a controller runs."""
    settings = settings_in(short_path)
    for name, value in environment_in(short_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(short_path)
    info = LockInfo.of_this_process(control_socket=settings.control_socket, address="http://127.0.0.1:9")
    with ControllerLock.acquire(settings.state_dir, info):
        yield settings


def execution(identity: str = FIRST, state: str = "paused", revision: int = 7) -> dict[str, Any]:
    return {
        "id": identity, "sessionId": SESSION, "turnId": "turn-1", "kind": "root", "state": state,
        "pauseReason": "stop" if state == "paused" else None, "controlRevision": revision, "roundLimit": 8,
        "createdAt": WHEN, "endedAt": None,
    }  # fmt: skip


def step(number: int, state: str = "uncertain", arguments: Any = None) -> dict[str, Any]:
    """Step `r0.t<number>.handler`."""
    return {
        "id": f"{ACTIVITY}{number}", "step": f"r0.t{number}.handler", "kind": "tool", "callId": f"c{number}",
        "state": state, "attempt": 1, "input": {"name": "runCommand", "arguments": arguments or {}}, "output": None,
    }  # fmt: skip


def view(*steps: dict[str, Any], waiting: str | None = None, **changes: Any) -> dict[str, Any]:
    inbox = [] if waiting is None else [{"requestId": REQUEST, "message": waiting}]
    return {
        "execution": execution(**changes), "stopRevision": 5, "activities": list(steps), "controlEvents": [],
        "inbox": inbox,
    }  # fmt: skip


def listing(*executions: dict[str, Any], more: bool = False, waiting: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "executions": list(executions), "stopRevision": 5,
        "waiting": [{"requestId": REQUEST, "message": text} for text in waiting],
        "limit": 200, "offset": 0, "hasMore": more,
    }  # fmt: skip


class Asked:
    """What the commands asked for: request line without its version, body."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []

    def answer(self, body: Any, status: int = 200) -> Handler:
        def handle(connection: socket.socket) -> None:
            first, headers, sent = read_request(connection)
            assert headers["x-session-id"] == SESSION
            self.requests.append((first.rpartition(" ")[0], json.loads(sent) if sent else None))
            connection.sendall(http_bytes(status, json.dumps(body).encode()))

        return handle

    def one_paused(self, found: dict[str, Any]) -> list[Handler]:
        """The list with one paused execution, and that one."""
        return [self.answer(listing(found["execution"])), self.answer(found)]

    @property
    def posted(self) -> list[tuple[str, Any]]:
        return [(line.removeprefix("POST "), body) for line, body in self.requests if line.startswith("POST ")]


CHANGED = {"code": "CONFLICT", "message": "controlRevision: it is 9 now; look at the execution again"}


def run(held: Settings, capfd: pytest.CaptureFixture[str], handlers: list[Handler], *arguments: str) -> Any:
    """Exit code, standard output, lines of standard error."""
    with canned(held.control_socket, *handlers):
        code = main(["session", *arguments])
    out, err = capfd.readouterr()
    return code, out, err.splitlines()


# --- continue -------------------------------------------------------------------------------------------------------


def test_paused_work_without_open_questions_goes_on_at_the_revision_that_was_read(
    held: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    asked, found = Asked(), view(step(0, "completed"))
    after = asked.answer(view(state="running", revision=8), 202)

    done = run(held, capfd, [*asked.one_paused(found), after], "continue", SESSION)

    assert done == (0, f"{SESSION}\t{FIRST}\tresumed=true\n", [])
    assert [line for line, _ in asked.requests[:2]] == [f"GET {API}?limit=200&offset=0", f"GET {API}/{FIRST}"]
    assert asked.posted == [(f"{API}/{FIRST}/resume", {"controlRevision": 7})]


def test_work_that_has_to_wait_for_another_turn_says_so(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    asked, found = Asked(), view()

    done = run(held, capfd, [*asked.one_paused(found), asked.answer(found, 202)], "continue", SESSION)

    note = "peen: another turn runs; the paused work goes on when it has ended"
    assert done == (0, f"{SESSION}\t{FIRST}\tresumed=false\n", [note])


def test_decisions_are_sent_one_by_one_and_then_the_work_goes_on(
    held: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    asked, found = Asked(), view(step(0), step(1), step(2), step(3, "completed"))
    handlers = [*asked.one_paused(found), *[asked.answer(found)] * 3, asked.answer(view(state="running"), 202)]
    options = ["--accept", "r0.t1.handler=exit code=0", "--retry", "r0.t0.handler", "--accept", "r0.t2.handler"]

    code, _, err = run(held, capfd, handlers, "continue", SESSION, *options)

    assert (code, err) == (0, [])
    where = f"{API}/{FIRST}/activities/{ACTIVITY}"
    sent = [
        (f"{where}0/resolve", {"decision": "retry", "outcome": None, "controlRevision": 7}),
        (f"{where}1/resolve", {"decision": "accept", "outcome": "exit code=0", "controlRevision": 7}),
        (f"{where}2/resolve", {"decision": "accept", "outcome": None, "controlRevision": 7}),
        (f"{API}/{FIRST}/resume", {"controlRevision": 7}),
    ]
    assert asked.posted == sent


@pytest.mark.parametrize("given", [[], ["--retry", "r0.t1.handler"]], ids=["none", "one of two"])
def test_as_long_as_something_is_undecided_nothing_is_sent_and_each_way_is_named(
    held: Settings, given: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    asked, found = Asked(), view(step(0, arguments={"command": "x" * 300}), step(1))

    code, out, err = run(held, capfd, asked.one_paused(found), "continue", SESSION, *given)

    assert (code, out, asked.posted) == (2, "", [])
    assert err[0] == "peen: nothing was sent: the work cannot go on before somebody has decided about"
    assert err[1].startswith('peen:   r0.t0.handler  runCommand {"command": "xxx')
    assert err[1].endswith("x…")
    assert len(err[1]) < 260
    assert err[2] == "peen:   it was cut off: it may have happened in full, in part or not at all"
    assert ("peen:   r0.t1.handler  runCommand {}" in err) == (given == [])
    both = [f"{option} r0.t0.handler {option} r0.t1.handler" for option in ("--accept", "--retry")]
    assert err[-2:] == [
        f"peen: if each of them happened: peen session continue {SESSION} {both[0]}",
        f"peen: if each of them may be done again: peen session continue {SESSION} {both[1]}",
    ]


def test_a_decision_about_what_is_not_undecided_is_refused_before_anything_is_sent(
    held: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    asked, found = Asked(), view(step(0), step(1, "completed"))

    done = run(held, capfd, asked.one_paused(found), "continue", SESSION, "--accept", "r0.t1.handler")

    assert done == (2, "", ["peen: r0.t1.handler is not undecided; undecided: r0.t0.handler"])
    assert asked.posted == []


def test_a_revision_that_has_changed_is_told_plainly(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    asked = Asked()

    done = run(held, capfd, [*asked.one_paused(view()), asked.answer(CHANGED, 409)], "continue", SESSION)

    told = f"peen: 409 CONFLICT: {CHANGED['message']}; look again with: peen session show {SESSION}"
    assert done == (2, "", [told])


def test_a_refusal_after_a_decision_says_what_is_stored(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    asked, found = Asked(), view(step(0))
    handlers = [*asked.one_paused(found), asked.answer(found), asked.answer(CHANGED, 409)]

    code, out, (line,) = run(held, capfd, handlers, "continue", SESSION, "--retry", "r0.t0.handler")

    assert (code, out) == (2, "")
    assert "; stored before that: what was decided about r0.t0.handler; look again with: peen session show" in line


def test_of_several_one_must_be_named(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    asked = Asked()
    handlers = [
        asked.answer(listing(execution(SECOND), execution(state="completed"), more=True)),
        asked.answer(listing(execution(FIRST))),
        asked.answer(view(identity=FIRST)),
        asked.answer(view(identity=SECOND)),
    ]

    code, out, err = run(held, capfd, handlers, "continue", SESSION)

    assert (code, out) == (2, "")
    assert err == [
        "peen: several executions are paused; say which one:",
        f"peen: {FIRST}  paused (stop)  controlRevision 7",
        f"peen:   peen session continue {SESSION} --execution {FIRST}",
        f"peen: {SECOND}  paused (stop)  controlRevision 7",
        f"peen:   peen session continue {SESSION} --execution {SECOND}",
    ]
    assert asked.requests[1][0] == f"GET {API}?limit=200&offset=2"


def test_the_named_one_is_taken_without_looking_at_others(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    asked, found = Asked(), view(step(0))

    code, _, err = run(held, capfd, [asked.answer(found)], "continue", SESSION, "--execution", FIRST)

    assert code == 2
    assert err[-1].endswith(f"peen session continue {SESSION} --execution {FIRST} --retry r0.t0.handler")


def test_a_named_one_that_is_not_paused_is_refused(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    asked = Asked()
    handlers = [asked.answer(view(state="completed"))]

    done = run(held, capfd, handlers, "continue", SESSION, "--execution", FIRST)

    assert done == (2, "", ["peen: this execution is completed, not paused"])


@pytest.mark.parametrize("verb", ["continue", "abandon"])
def test_with_nothing_paused_there_is_nothing_to_do(
    held: Settings, verb: str, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = Asked()

    done = run(held, capfd, [asked.answer(listing(execution(state="completed")))], verb, SESSION)

    assert done == (2, "", ["peen: nothing is paused in this session"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--execution", "1"], "is no execution id"),
        (["--request", "1"], "is no request id"),
        (["--request", REQUEST, "--retry", "r0.t0.handler"], "--request goes without"),
        (["--retry", "r0.t0.handler", "--accept", "r0.t0.handler=x"], "more than one decision about r0.t0.handler"),
    ],
)
def test_what_cannot_be_meant_is_not_even_asked_for(
    held: Settings, arguments: list[str], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["session", "continue", SESSION, *arguments]) == 2
    assert told in capfd.readouterr().err


# --- messages that wait ---------------------------------------------------------------------------------------------


def test_a_waiting_message_goes_on_at_the_stop_revision_that_was_read(
    held: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = Asked()
    handlers = [asked.answer(listing(waiting=["and this"])), asked.answer(session_json(), 202)]

    done = run(held, capfd, handlers, "continue", SESSION, "--request", REQUEST)

    assert done == (0, f"{SESSION}\t{REQUEST}\tcontinued=true\n", [])
    assert asked.posted == [("/api/v1/session/continue", {"requestId": REQUEST, "stopRevision": 5})]


def test_a_message_that_does_not_wait_is_refused_in_the_controllers_words(
    held: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = Asked()
    refusal = asked.answer({"code": "NOT_FOUND", "message": "requestId: no accepted message of this session"}, 404)

    code, out, err = run(
        held, capfd, [asked.answer(listing()), refusal], "continue", SESSION, "--request", REQUEST
    )  # fmt: skip

    look = f"look again with: peen session show {SESSION}"
    assert (code, out) == (2, "")
    assert err == [f"peen: 404 NOT_FOUND: requestId: no accepted message of this session; {look}"]


# --- abandon --------------------------------------------------------------------------------------------------------


def test_paused_work_is_given_up_at_the_revision_that_was_read(
    held: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    asked, found = Asked(), view(step(0))

    done = run(held, capfd, [*asked.one_paused(found), asked.answer(view(state="cancelled"))], "abandon", SESSION)

    assert done == (0, f"{SESSION}\t{FIRST}\tabandoned=true\n", [])
    assert asked.posted == [(f"{API}/{FIRST}/abandon", {"controlRevision": 7})]


# --- show -----------------------------------------------------------------------------------------------------------


def shown(
    held: Settings,
    capfd: pytest.CaptureFixture[str],
    kept: list[dict[str, Any]],
    *options: str,
    waiting: Sequence[str] = (),
) -> str:
    """What `show` prints of a session that has this paused work, oldest first, and these messages that wait."""
    asked = Asked()
    page = {"limit": 10, "offset": 0, "hasMore": False}
    handlers = [
        answer(200, session_json(status="paused", pauseReason="stop")),
        answer(200, {"turns": [], **page}),
        answer(200, {"items": [], **page}),
        asked.answer(listing(*[each["execution"] for each in reversed(kept)], waiting=waiting)),
        *[asked.answer(each) for each in kept],
    ]
    code, out, err = run(held, capfd, handlers, "show", SESSION, *options)
    assert (code, err) == (0, [])
    return str(out)


def test_show_tells_what_is_kept_what_is_unknown_and_how_to_go_on(
    held: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    found = view(step(0), step(1, "completed"), waiting="and\nthis")

    out = shown(held, capfd, [found])

    assert out.partition("\n\n")[2].splitlines() == [
        "paused work (1)",
        f"  {FIRST}  paused (stop)  controlRevision 7",
        "    turn       turn-1",
        "    undecided  r0.t0.handler  runCommand {}",
        "               it was cut off: it may have happened in full, in part or not at all",
        f"    waiting    {REQUEST}  stopRevision 5  and this",
        f"    if it happened: peen session continue {SESSION} --accept r0.t0.handler",
        f"    if it may be done again: peen session continue {SESSION} --retry r0.t0.handler",
        f"    to give this message a turn of its own: peen session continue {SESSION} --request {REQUEST}",
        f"    to give it up: peen session abandon {SESSION}",
    ]


def test_show_tells_that_somebody_has_asked_for_paused_work_to_go_on(
    held: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    asked_for, other = view(identity=FIRST), view(identity=SECOND)
    asked_for["execution"]["admission"] = {"caller": "agent", "admittedAt": WHEN}

    lines = shown(held, capfd, [asked_for, other]).splitlines()

    told = "    asked for  by agent: it goes on when the turn that runs has ended"
    assert [line for line in lines if "asked for" in line] == [told]
    assert lines.index(told) < lines.index(f"  {SECOND}  paused (stop)  controlRevision 7")


def test_show_tells_of_messages_that_wait_behind_a_turn_that_never_opened(
    held: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    out = shown(held, capfd, [], waiting=["and this"])

    assert out.partition("\n\n")[2].splitlines() == [
        "messages that wait (1)",
        f"  {REQUEST}  and this",
        f"    to give this message a turn of its own: peen session continue {SESSION} --request {REQUEST}",
    ]


def test_show_names_a_message_that_waits_for_paused_work_once(
    held: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    out = shown(held, capfd, [view(waiting="and this")], waiting=["and this"])

    assert "messages that wait" not in out


def test_show_names_the_execution_in_its_commands_where_there_are_several(
    held: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    out = shown(held, capfd, [view(identity=FIRST), view(identity=SECOND)])

    assert [line.strip() for line in out.splitlines() if "peen session" in line] == [
        f"{way} {SESSION} --execution {each}"
        for each in (FIRST, SECOND)
        for way in ("to go on: peen session continue", "to give it up: peen session abandon")
    ]


def test_show_gives_programs_the_whole_view(held: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    found = view(step(0), waiting="and this")

    document = json.loads(shown(held, capfd, [found], "--json"))

    assert document["paused"] == [found]
