"""How things stand when history is summarized: what the agent must not lose, told by Peen and not by the summarizer.

Each kind of thing is one section: a function that gives its text, or nothing. Whoever adds a kind of thing that
outlives a model round adds its section to `SECTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from peen.session.ending import cut, one_line
from peen.store import inbox, jobs
from peen.store.database import Tx
from peen.store.turns import TurnRow

MAX_TEXT_BYTES: Final = 1000
"""Of one waiting message; the whole of it follows when it is delivered."""
MAX_JOBS: Final = 20
"""Commands that a summary names, the latest ones."""

Section = Callable[[Tx, TurnRow], str]


def standing(tx: Tx, turn: TurnRow) -> str:
    """Everything that stands, as the end of a summary."""
    parts = [text for text in (section(tx, turn) for section in SECTIONS) if text]
    return "\n\n".join(["How things stood when this summary was written, as Peen has recorded it:", *parts])


def _directory(_tx: Tx, turn: TurnRow) -> str:
    return f"Current directory: {turn.workspace}"


def _waiting(tx: Tx, turn: TurnRow) -> str:
    waiting = inbox.queued(tx, turn.session_no, turn.id)
    if not waiting:
        return ""
    lines = [f"{number}. {cut(row.content, MAX_TEXT_BYTES)}" for number, row in enumerate(waiting, 1)]
    return "\n".join(["Messages of the user that were still to come, and follow as messages of their own:", *lines])


def _jobs(tx: Tx, turn: TurnRow) -> str:
    running = jobs.page(tx, turn.session_no, limit=MAX_JOBS + 1, offset=0, state="running", known_only=True)
    if not running:
        return ""
    lines = [
        f"- job {UUID(bytes=row.id)}: {cut(one_line(row.purpose), MAX_TEXT_BYTES)} "
        f"(`{cut(row.command, MAX_TEXT_BYTES)}`)"
        for row in reversed(running[:MAX_JOBS])
    ]
    more = ["- and more; listJobs tells of all"] if len(running) > MAX_JOBS else []
    return "\n".join(["Commands that were still running in the background:", *lines, *more])


SECTIONS: Final[tuple[Section, ...]] = (_directory, _jobs, _waiting)
