"""README.md of the published folder: the text of guide.md with the tables that the code knows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, get_args

from peen.wire.events import FailureReason
from peen.wire.operations import OPERATIONS, Failure, failures_of
from peen.wire.publish.frames import server_frames
from peen.wire.publish.golden import socket_golden

_TEXT: Final = Path(__file__).with_name("guide.md")

_ANYWHERE: Final = (
    Failure(404, "NOT_FOUND", "there is nothing at this path"),
    Failure(405, "BAD_REQUEST", "the path does not have this method; `Allow` names those it has"),
    Failure(426, "BAD_REQUEST", "`/ws/v1` was asked for without an upgrade, or on a connection that has served HTTP"),
)
ACK_FAILURES: Final = (
    ("VALIDATION_FAILED", "The frame breaks a rule, which `message` names.", "After mending it."),
    ("SESSION_NOT_FOUND", "There is no such session.", "After opening one."),
    ("SESSION_BUSY", "A turn runs that this message cannot join, or the controller stops.", "Later."),
    ("USER_MESSAGE_QUEUE_FULL", "As many messages wait as may.", "After one was delivered."),
    ("STORAGE_FULL", "The disk is full; nothing was stored.", "When there is space."),
    ("STORAGE_FAILED", "The disk failed; nothing was stored.", "When that is mended."),
    ("TURN_CANCELLED", "Somebody stopped the turn.", "No: it was accepted. Send a new message."),
    ("INTERNAL_SERVER_ERROR", "The turn failed or was interrupted, or Peen did.", "No, if `turn.failed` came."),
)
"""Codes of `message.failed`: when, and whether sending again helps."""


def readme() -> str:
    golden = socket_golden()["client.message.send"].decode()
    text = _TEXT.read_text()
    for name, value in {
        "message": f"```json\n{golden}\n```",
        "events": _rows((f"`{frame.type}`", _first_line(frame.about)) for frame in server_frames()),
        "failures": _rows((f"`{code}`", str(status), when) for status, code, when in _failures()),
        "acks": _rows((f"`{code}`", when, again) for code, when, again in ACK_FAILURES),
        "reasons": ", ".join(f"`{word}`" for word in get_args(FailureReason)),
    }.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _failures() -> list[tuple[int, str, str]]:
    """One row for each status and code, with everything that it may mean."""
    when: dict[tuple[int, str], dict[str, None]] = {}
    for failure in [*_ANYWHERE, *(failure for operation in OPERATIONS for failure in failures_of(operation))]:
        when.setdefault((failure.status, failure.code), {})[failure.when] = None
    return [(status, code, "; or ".join(texts)) for (status, code), texts in sorted(when.items())]


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
