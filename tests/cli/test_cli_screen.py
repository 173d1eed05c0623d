"""Standard output is the answer, or JSON, and nothing else; standard error is for people."""

from __future__ import annotations

import errno
import io
import json
from dataclasses import dataclass, field, replace

import pytest

from peen.cli.order import Form
from peen.cli.outcome import Outcome
from peen.cli.screen import Screen
from peen.cli.streams import fit
from peen.entropy import SeededEntropy
from peen.wire.rest import UsedSoFar

SESSION = "11111111-1111-4111-8111-111111111111"
DONE = Outcome(state="completed", request_id="r", text="the answer", model="m", finish_reason="stop", sequence=9)


@dataclass
class Streams:
    """Both streams; writing to `out` fails with `fails` if that is set."""

    out: bytearray = field(default_factory=bytearray)
    err: io.StringIO = field(default_factory=io.StringIO)
    fails: int | None = None
    entropy: SeededEntropy = field(default_factory=lambda: SeededEntropy(1))

    def write(self, data: bytes) -> None:
        if self.fails is not None:
            raise OSError(self.fails, "it failed")
        self.out += data

    def screen(self, form: Form, *, watched: bool = False, plain: bool = False) -> Screen:
        return Screen(form, out=self.write, err=self.err, watched=watched, plain=plain, entropy=self.entropy)


@pytest.fixture
def streams() -> Streams:
    return Streams()


def test_the_answer_stands_alone_on_standard_output(streams: Streams) -> None:
    screen = streams.screen("text")
    screen.show([b'{"a":1}'], "doing things")

    assert screen.finish(DONE, SESSION) == 0
    assert bytes(streams.out) == b"the answer\n"
    assert streams.err.getvalue() == ""


def test_json_is_one_document_with_all_that_is_known(streams: Streams) -> None:
    screen = streams.screen("json")
    streams.entropy.advance(1500)

    assert screen.finish(DONE, SESSION) == 0
    assert bytes(streams.out).count(b"\n") == 1
    assert json.loads(streams.out) == {
        "sessionId": SESSION, "requestId": "r", "state": "completed", "text": "the answer", "model": "m",
        "finishReason": "stop", "toolCalls": 0, "feedSequence": 9, "durationMs": 1500,
    }  # fmt: skip


def test_json_tells_what_the_turn_and_its_session_have_used(streams: Streams) -> None:
    of_turn = UsedSoFar(prompt=10, completion=2, total=12, billed_cost_amount="0.5", cost_known=True)
    of_session = UsedSoFar(billed_cost_amount="0.5", cost_known=False)
    measured = replace(DONE, usage=of_turn, session_usage=of_session)

    streams.screen("json").finish(measured, SESSION)

    document = json.loads(streams.out)
    assert document["usage"] == {
        "prompt": 10, "completion": 2, "total": 12, "billedCostAmount": "0.5", "costKnown": True
    }  # fmt: skip
    assert document["sessionUsage"] == {"billedCostAmount": "0.5", "costKnown": False}


def test_json_tells_failures_too(streams: Streams) -> None:
    failed = Outcome(state="failed", request_id="r", error="no luck", reason="agentRun", tool_calls=2)

    assert streams.screen("json").finish(failed, SESSION) == 1
    document = json.loads(streams.out)
    assert (document["state"], document["error"], document["reason"]) == ("failed", "no luck", "agentRun")
    assert streams.err.getvalue() == "peen: the turn failed: no luck\n"


def test_every_frame_is_one_line_even_if_it_came_with_line_breaks(streams: Streams) -> None:
    screen = streams.screen("stream-json")
    screen.frames([b'{"a":1}', b'{"b":{\n  "c": 1.50\n}}'])

    assert screen.finish(DONE, SESSION) == 0
    assert bytes(streams.out) == b'{"a":1}\n{"b":{"c":1.50}}\n'


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("refused", "refused and nothing was stored: why"),
        ("failed", "the turn failed: why"),
        ("cancelled", "cancelled: why"),
        ("interrupted", "interrupted: why"),
        ("unfinished", "has not ended: why"),
    ],
)
def test_without_an_answer_standard_output_stays_empty(streams: Streams, state: str, words: str) -> None:
    outcome = Outcome(state=state, error="why", text="half an answer")  # type: ignore[arg-type]

    assert streams.screen("text").finish(outcome, SESSION) == outcome.exit_code != 0
    assert bytes(streams.out) == b""
    assert words in streams.err.getvalue()


@pytest.mark.parametrize("state", ["interrupted", "unfinished"])
def test_work_that_is_stored_can_be_found(streams: Streams, state: str) -> None:
    streams.screen("text").finish(Outcome(state=state), SESSION)  # type: ignore[arg-type]

    assert f"peen session show {SESSION}" in streams.err.getvalue()


def test_a_cut_answer_is_said_to_be_cut(streams: Streams) -> None:
    cut = Outcome(state="completed", text="half", finish_reason="length")

    assert streams.screen("text").finish(cut, SESSION) == 0
    assert "output limit" in streams.err.getvalue()


def test_the_progress_line_is_rewritten_and_gone_before_the_answer(streams: Streams) -> None:
    screen = streams.screen("text", watched=True)
    screen.progress("starting")
    streams.entropy.advance(61_500)
    screen.progress("runCommand sleep")
    screen.progress("runCommand sleep")  # nothing new: nothing written
    screen.finish(DONE, SESSION)

    assert streams.err.getvalue() == "\r\x1b[K0s  starting\r\x1b[K1m1s  runCommand sleep\r\x1b[K"


def test_a_note_does_not_stand_behind_the_progress_line(streams: Streams) -> None:
    screen = streams.screen("text", watched=True)
    screen.progress("starting")
    screen.note("two\nlines")

    assert streams.err.getvalue() == "\r\x1b[K0s  starting\r\x1b[Kpeen: two\npeen: lines\n"


def test_a_terminal_gets_no_escape_sequences_from_the_model(streams: Streams) -> None:
    tricky = Outcome(state="completed", text="a\x1b]0;title\x07\n\tb")

    streams.screen("text", plain=True).finish(tricky, SESSION)

    assert streams.out.decode() == "a\N{REPLACEMENT CHARACTER}]0;title\N{REPLACEMENT CHARACTER}\n\tb\n"


def test_a_pipe_gets_the_answer_as_it_is(streams: Streams) -> None:
    streams.screen("text").finish(Outcome(state="completed", text="a\x1b[1m"), SESSION)

    assert bytes(streams.out) == b"a\x1b[1m\n"


def test_a_reader_that_has_gone_changes_nothing_about_the_turn(streams: Streams) -> None:
    streams.fails = errno.EPIPE
    screen = streams.screen("stream-json")
    screen.frames([b"{}"])

    assert not screen.wants_frames
    assert screen.finish(DONE, SESSION) == 0
    assert streams.err.getvalue() == ""


def test_an_answer_that_cannot_be_written_is_no_success(streams: Streams) -> None:
    streams.fails = errno.ENOSPC

    assert streams.screen("text").finish(DONE, SESSION) == 1
    assert "standard output: it failed" in streams.err.getvalue()


def test_a_closed_standard_error_is_no_reason_to_fail(streams: Streams) -> None:
    streams.err.close()

    assert streams.screen("text", watched=True).finish(Outcome(state="failed"), SESSION) == 1


def test_a_line_fits_its_columns() -> None:
    assert fit("abc", 3) == "abc"
    assert fit("abcd", 3) == "abc"
    assert fit("日本語", 5) == "日本"
    assert fit("abc", 0) == ""
