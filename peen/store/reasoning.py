"""Reasoning of messages that the model it came from does not take back any more."""

from __future__ import annotations

from typing import Final

from peen.ids import SessionNo
from peen.store.database import Reader, Tx

_REFUSE: Final = """
INSERT INTO refused_reasoning (session_no, model, up_to_sequence) VALUES (?, ?, ?)
ON CONFLICT (session_no, model) DO UPDATE SET up_to_sequence = max(up_to_sequence, excluded.up_to_sequence)
"""
_REFUSED: Final = "SELECT up_to_sequence FROM refused_reasoning WHERE session_no = ? AND model = ?"


def refuse(tx: Tx, session_no: SessionNo, model: str, *, up_to_sequence: int) -> None:
    """This model, `<upstream>/<model id>`, is not sent its reasoning of the messages up to that sequence any more."""
    tx.execute(_REFUSE, (session_no, model, up_to_sequence))


def refused_up_to(db: Reader | Tx, session_no: SessionNo, model: str) -> int:
    """The last message whose reasoning this model has refused; 0 if there is none."""
    return next((up_to for (up_to,) in db.rows(_REFUSED, (session_no, model))), 0)
