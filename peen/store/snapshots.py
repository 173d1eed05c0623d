"""Texts that many turns share (prompts, contexts, tool lists), stored once by hash; reading is granted per session."""

from __future__ import annotations

import hashlib
from typing import Final, Literal

from peen.ids import SessionNo
from peen.store.database import Tx

Kind = Literal["prompt", "context", "tools"]

_SAVE: Final = """
INSERT INTO snapshot (kind, sha256, content, manifest, created_at_ms) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (kind, sha256) DO NOTHING
"""
_FIND: Final = "SELECT no FROM snapshot WHERE kind = ? AND sha256 = ?"
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
