"""Worker generations: one run of one worker process, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from peen.errors import StaleClaim
from peen.ids import SessionNo
from peen.store.database import Reader, Tx


class GenerationRow(NamedTuple):
    no: int
    id: bytes
    session_no: SessionNo
    state: str
    process_id: int | None
    process_started: int | None


class GenerationRecord(NamedTuple):
    """What is told of a generation."""

    id: bytes
    kind: str
    agent_space: str
    agent_space_revision: int
    state: str
    workspace: str
    container_id: str | None
    image_digest: str | None
    failure_detail: str | None
    created_at_ms: int
    started_at_ms: int | None
    ended_at_ms: int | None


_SELECT: Final = "SELECT no, id, session_no, state, process_id, process_started FROM generation"
_OPEN: Final = _SELECT + " WHERE state NOT IN ('stopped', 'failed') ORDER BY no"
_BY_ID: Final = _SELECT + " WHERE id = ?"
_PAGE: Final = """
SELECT id, kind, agent_space, agent_space_revision, state, workspace, container_id, image_digest, failure_detail,
       created_at_ms, started_at_ms, ended_at_ms
  FROM generation WHERE session_no = ? ORDER BY no DESC LIMIT ? OFFSET ?
"""
_CREATE: Final = """
INSERT INTO generation (id, session_no, kind, agent_space, state, workspace, credential_sha256, socket_path,
                        created_at_ms)
VALUES (:id, :session_no, 'native', :agent_space, 'requested', :workspace, :credential, :socket_path, :at_ms)
RETURNING no
"""
_STARTING: Final = """
UPDATE generation SET state = 'starting', process_id = ?, process_started = ?, started_at_ms = ?
 WHERE id = ? AND state = 'requested'
"""
_READY: Final = "UPDATE generation SET state = 'ready' WHERE id = ? AND state = 'starting'"
_STOPPING: Final = "UPDATE generation SET state = 'stopping' WHERE id = ? AND state IN ('starting', 'ready')"
_LIVES: Final = "SELECT id FROM generation WHERE no = ? AND ended_at_ms IS NULL"
_END: Final = """
UPDATE generation SET state = ?, failure_detail = ?, exit_code = ?, ended_at_ms = ?
 WHERE id = ? AND state NOT IN ('stopped', 'failed')
"""


def create(
    tx: Tx,
    *,
    generation_id: bytes,
    session_no: SessionNo,
    agent_space: str,
    workspace: str,
    credential_sha256: bytes,
    socket_path: str,
    at_ms: int,
) -> int:
    """Number of the new generation, state `requested`."""
    row = tx.row(
        _CREATE,
        {
            "id": generation_id, "session_no": session_no, "agent_space": agent_space, "workspace": workspace,
            "credential": credential_sha256, "socket_path": socket_path, "at_ms": at_ms,
        },
    )  # fmt: skip
    assert row is not None
    return int(row[0])


def starting(tx: Tx, generation_id: bytes, *, pid: int, process_started: int, at_ms: int) -> None:
    tx.execute(_STARTING, (pid, process_started, at_ms, generation_id))


def ready(tx: Tx, generation_id: bytes) -> None:
    tx.execute(_READY, (generation_id,))


def stopping(tx: Tx, generation_id: bytes) -> None:
    tx.execute(_STOPPING, (generation_id,))


def ended(tx: Tx, generation_id: bytes, *, state: str, detail: str | None, exit_code: int | None, at_ms: int) -> None:
    """Record `stopped` or `failed`; a generation that has ended stays as it was recorded."""
    tx.execute(_END, (state, detail, exit_code, at_ms, generation_id))


def check_live(tx: Tx, no: int) -> bytes:
    """Its id. Raises: StaleClaim if the generation has ended, whether its process knows it or not."""
    row = tx.row(_LIVES, (no,))
    if row is None:
        raise StaleClaim("this worker generation has ended: stop, and write nothing more")
    generation_id: bytes = row[0]
    return generation_id


def by_id(db: Reader | Tx, generation_id: bytes) -> GenerationRow | None:
    row = db.row(_BY_ID, (generation_id,))
    return None if row is None else GenerationRow(*row)


def id_of(db: Reader | Tx, no: int) -> bytes:
    """The id of the generation with that number."""
    row = db.row("SELECT id FROM generation WHERE no = ?", (no,))
    assert row is not None, f"no generation {no}"
    return bytes(row[0])


def page(db: Reader, session_no: SessionNo, *, limit: int, offset: int) -> Iterator[GenerationRecord]:
    """Generations of one session, newest first."""
    return map(GenerationRecord._make, db.execute(_PAGE, (session_no, limit, offset)))


def not_ended(db: Reader | Tx) -> list[GenerationRow]:
    """Generations that the store still believes alive: at start-up, those that a crash left behind."""
    return [GenerationRow(*row) for row in db.rows(_OPEN)]
