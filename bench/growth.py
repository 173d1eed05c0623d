"""What one more step of a growing conversation costs on disk and to encode: `python -m bench.growth`.

Each step appends a message, about 600 B of JSON with Python source text, and saves the whole list: its value and its new
blobs in one transaction of the real store, compressed. Bytes are those of the closed file beyond an empty one, divided
by the steps. The floor stores only the message, without the list. The messages come from Python's own library, whose
text the shipped dictionary has never seen.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec
import trio

from bench.common import SWITCH_INTERVAL_S, median, parser, report, table
from peen.entropy import SystemEntropy
from peen.ids import SessionNo
from peen.store import sessions
from peen.store.blobs.decode import decode
from peen.store.blobs.encoder import Encoder, Saved
from peen.store.blobs.rows import Blobs
from peen.store.database import Database, Reader, Tx
from peen.store.opening import open_database

LENGTHS: Final = (400, 2_000)
TEXT_CHARACTERS: Final = 525
_TABLE: Final = "CREATE TABLE growth (key INTEGER PRIMARY KEY, value BLOB NOT NULL) STRICT"
_INSERT: Final = "INSERT INTO growth (key, value) VALUES (?, ?)"
_VALUES: Final = "SELECT value FROM growth WHERE key >= ? ORDER BY key"

Step = Callable[[Tx, int, bytes], None]
"""Store step number n, which appends this message."""


def messages(count: int) -> list[bytes]:
    """Pieces of the source of modules that every Python has, as messages."""
    text = ""
    for path in sorted(Path(msgspec.json.__file__ or "").parent.glob("*.py")) + sorted(Path(trio.__file__).parent.rglob("*.py")):
        text += path.read_text()
    cut = (text[at : at + TEXT_CHARACTERS] for at in range(0, count * TEXT_CHARACTERS, TEXT_CHARACTERS))
    return [msgspec.json.encode({"role": "assistant", "content": piece}) for piece in cut]
