"""Texts that many turns share (prompts, contexts, tool lists), stored once by hash; reading is granted per session."""

from __future__ import annotations

import hashlib
from typing import Final, Literal, NamedTuple

from peen.ids import SessionNo
from peen.store.database import Reader, Tx

Kind = Literal["prompt", "context", "tools"]


class SnapshotRow(NamedTuple):
    content: str
    manifest: bytes | None
    created_at_ms: int


_SAVE: Final = """
INSERT INTO snapshot (kind, sha256, content, manifest, created_at_ms) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (kind, sha256) DO NOTHING
"""
_FIND: Final = "SELECT no FROM snapshot WHERE kind = ? AND sha256 = ?"
_READ: Final = """
SELECT s.content, s.manifest, s.created_at_ms FROM snapshot s JOIN snapshot_use u ON u.snapshot_no = s.no
 WHERE s.kind = ? AND s.sha256 = ? AND u.session_no = ?
"""
_OF_TURN: Final = """
SELECT p.content, t.content FROM turn LEFT JOIN snapshot p ON p.no = turn.prompt_no
  LEFT JOIN snapshot t ON t.no = turn.tools_no WHERE turn.no = ?
"""
_GRANT: Final = "INSERT INTO snapshot_use (session_no, snapshot_no) VALUES (?, ?) ON CONFLICT DO NOTHING"


def save(
    tx: Tx,
    session_no: SessionNo,
    kind: Kind,
    content: str,
    *,
    at_ms: int,
    sha256: bytes | None = None,
    manifest: bytes | None = None,
) -> int:
    """Number of the snapshot, stored if it is new. Without `sha256` it is the hash of the content itself."""
    digest = sha256 if sha256 is not None else hashlib.sha256(content.encode()).digest()
    tx.execute(_SAVE, (kind, digest, content, manifest, at_ms))
    row = tx.row(_FIND, (kind, digest))
    assert row is not None
    tx.execute(_GRANT, (session_no, row[0]))
    return int(row[0])


def read(db: Reader | Tx, session_no: SessionNo, kind: Kind, sha256: bytes) -> SnapshotRow | None:
    """The text with this hash, if the session has used it; None also where only another one has."""
    row = db.row(_READ, (kind, sha256, session_no))
    return None if row is None else SnapshotRow(*row)


def of_turn(db: Reader | Tx, turn_no: int) -> tuple[str | None, str | None]:
    """Prompt and list of tools (JSON) of a turn; None where it never had them."""
    row = db.row(_OF_TURN, (turn_no,))
    assert row is not None, f"no turn {turn_no}"
    return row[0], row[1]
