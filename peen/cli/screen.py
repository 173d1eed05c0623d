"""What `peen exec` shows: standard output for the answer, standard error for people who watch or look for a fault."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

import msgspec
from msgspec import Struct

from peen.cli.ends import FAILED, printable
from peen.cli.order import Form
from peen.cli.outcome import Outcome, failure_text, look_at
from peen.cli.streams import Write, columns_of, fit, for_terminal, stdout_writer
from peen.duration import format_duration_ms
from peen.entropy import Entropy
from peen.wire.rest import UsedSoFar


class Report(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The document of `--json`. Members that do not apply are left out."""

    session_id: str | None = None
    request_id: str | None = None
    state: str
    text: str
    model: str | None = None
    finish_reason: str | None = None
    code: str | None = None
    error: str | None = None
    reason: str | None = None
    tool_calls: int
    feed_sequence: int | None = None
    duration_ms: int
    usage: UsedSoFar | None = None
    session_usage: UsedSoFar | None = None


class Screen:
    """The two streams of one `peen exec`.

    `out` is None where nobody reads. With `watched` the progress line is shown and rewritten; without, standard error
    gets single lines, and only where something is wrong. May be called from a worker thread, one call at a time.
    """

    def __init__(
        self, form: Form, *, out: Write | None, err: TextIO | None, watched: bool, plain: bool, entropy: Entropy
    ) -> None:
        """`plain`: `out` is a terminal, which must not be given control characters."""
        self.form = form
        self._out, self._err, self._watched, self._plain = out, err, watched, plain
        self._entropy, self._began_s = entropy, entropy.monotonic_s()
        self._line = ""
        self._failure: OSError | None = None

    @classmethod
    def of_process(cls, form: Form, entropy: Entropy) -> Screen:
        """On the streams of this process."""
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        watched = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        if form == "stream-json" and is_terminal:
            watched = False  # the frames themselves show how it goes
        return cls(form, out=stdout_writer(), err=sys.stderr, watched=watched, plain=is_terminal, entropy=entropy)

    @property
    def wants_progress(self) -> bool:
        """Whether `progress` shows anything."""
        return self._watched

    @property
    def wants_usage(self) -> bool:
        """Whether `finish` tells what was used."""
        return self.form == "json"

    @property
    def wants_frames(self) -> bool:
        """Whether `frames` writes anything."""
        return self.form == "stream-json" and self._out is not None

    def frames(self, payloads: Sequence[bytes]) -> None:
        """Each frame as one line, if that was asked for."""
        if self.form == "stream-json" and payloads:
            self._write(b"".join(_one_line(payload) + b"\n" for payload in payloads))

    def progress(self, activity: str) -> None:
        """Rewrite the progress line: how long, and what happens now."""
        if not self._watched:
            return
        elapsed = format_duration_ms(int(self._entropy.monotonic_s() - self._began_s) * 1000)
        line = fit(f"{elapsed}  {printable(activity)}", columns_of(self._err) - 1)
        if line != self._line:
            self._line = line
            self._to_err(f"\r\x1b[K{line}")

    def show(self, payloads: Sequence[bytes], activity: str) -> None:
        """Frames, then progress."""
        self.frames(payloads)
        self.progress(activity)

    def note(self, text: str) -> None:
        """Lines for people, each behind `peen: `."""
        self.clear()
        self._to_err("".join(f"peen: {printable(line)}\n" for line in text.splitlines()))

    def finish(self, outcome: Outcome, session_id: str | None) -> int:
        """The end: answer or document on standard output, what went wrong on standard error; the exit code."""
        self.clear()
        if self.form == "json":
            self._write(msgspec.json.encode(self._report(outcome, session_id)) + b"\n")
        elif self.form == "text" and outcome.state == "completed":
            self._write((for_terminal(outcome.text) if self._plain else outcome.text).encode() + b"\n")
        if outcome.state != "completed":
            self.note(failure_text(outcome, session_id))
        elif outcome.finish_reason == "length":
            self.note("the model reached its output limit, so the answer is cut off")
        if self._failure is not None and self._failure.errno != errno.EPIPE:
            self.note(f"standard output: {self._failure.strerror}; the answer is stored: {look_at(session_id)}")
            return outcome.exit_code or FAILED
        return outcome.exit_code

    def _report(self, outcome: Outcome, session_id: str | None) -> Report:
        return Report(
            session_id=session_id,
            request_id=outcome.request_id,
            state=outcome.state,
            text=outcome.text,
            model=outcome.model,
            finish_reason=outcome.finish_reason,
            code=outcome.code,
            error=outcome.error,
            reason=outcome.reason,
            tool_calls=outcome.tool_calls,
            feed_sequence=outcome.sequence,
            duration_ms=int((self._entropy.monotonic_s() - self._began_s) * 1000),
            usage=outcome.usage,
            session_usage=outcome.session_usage,
        )

    def _write(self, data: bytes) -> None:
        if self._out is None:
            return
        self.clear()
        try:
            self._out(data)
        except KeyboardInterrupt:
            self._out = None  # half a line may be out: nothing may follow it
            raise
        except OSError as failure:
            # Who reads has gone, or the disk is full: the turn goes on, since its work does not hang on a reader.
            self._failure, self._out = failure, None

    def clear(self) -> None:
        """Take the progress line away."""
        if self._line:
            self._line = ""
            self._to_err("\r\x1b[K")

    def _to_err(self, text: str) -> None:
        if self._err is not None:
            with suppress(OSError, ValueError):  # ValueError: the stream was closed
                self._err.write(text)
                self._err.flush()


def _one_line(payload: bytes) -> bytes:
    # Stored JSON is kept as it came, and may hold line breaks between its members.
    return msgspec.json.format(payload, indent=-1) if b"\n" in payload else payload
