"""After a crash: what the store still believes to be running is ended, before anybody is served."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import structlog

from peen.entropy import Entropy
from peen.ids import SessionNo
from peen.session.acceptance import end_accepted
from peen.session.ending import interrupted
from peen.session.jobs import end_generation
from peen.store import generations, inbox, turns
from peen.store.database import Database, Reader

log = structlog.get_logger(__name__)

CAUSE = "the controller stopped before the turn ended"


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found and ended."""

    turns: int
    generations: int


def unended(db: Reader) -> list[tuple[SessionNo, bytes]]:
    """Session and id of every turn that was accepted and has no recorded end, opened ones first."""
    opened = [(turn.session_no, turn.id) for turn in turns.running(db)]
    return opened + [(row.session_no, row.turn_id) for row in inbox.opening(db) if row.turn_id is not None]


async def recover(database: Database, entropy: Entropy) -> Recovered:
    """End turns, accepted messages, worker generations and their commands that the last controller left open.

    Each turn ends as `interrupted` (as `cancelled` if a Stop for it was stored) with its terminal frame, its execution
    paused under a new control revision.
    Processes have been swept before: nothing of the old generations is alive.
    """
    left = generations.not_ended(database.reader)
    for generation in left:
        await database.write(
            partial(
                end_generation,
                generation_id=generation.id,
                state="failed",
                detail="the controller stopped before this worker",
                exit_code=None,
                at_ms=entropy.now_ms(),
            )
        )
    ended = 0
    for session_no, turn_id in unended(database.reader):
        change = partial(
            end_accepted,
            session_no=session_no,
            turn_id=turn_id,
            ending=interrupted("interrupted", CAUSE),
            at_ms=entropy.now_ms(),
        )
        ended += await database.write(change, terminal=True) is not None
    if ended or left:
        log.warning("recovered after a crash", turns_interrupted=ended, workers_recorded=len(left))
    return Recovered(ended, len(left))
