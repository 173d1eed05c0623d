"""What one more step of a growing conversation costs, on disk and to encode: `python -m bench.growth`.

Each step appends a message, about 600 B of JSON with Python source text, and saves the whole list: its value and its
new blobs, compressed, in one transaction of the real store. Bytes are those of the closed file beyond an empty one. The
floor stores each message as it is and no list. The text is that of Python's own library, on which the dictionary that
ships with Peen was not trained.
"""

from __future__ import annotations

import math
import sys
import sysconfig
import tempfile
import time
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
from peen.store.blobs.decode import decode, earlier_values
from peen.store.blobs.encoder import Encoder, Saved
from peen.store.blobs.rows import Blobs
from peen.store.database import Database, Reader, Tx
from peen.store.opening import open_database

FEW: Final = 400
MANY: Final = 2_000
TEXT_CHARACTERS: Final = 545
AFTER: Final = b',"round":%d}'
BEFORE: Final = b'{"messages":'

_TABLE: Final = "CREATE TABLE growth (n INTEGER PRIMARY KEY, value BLOB NOT NULL) STRICT"
_INSERT: Final = "INSERT INTO growth (n, value) VALUES (?, ?)"
_LAST: Final = "SELECT value FROM growth ORDER BY n DESC LIMIT 1"
_LATEST: Final = "SELECT value FROM (SELECT n, value FROM growth ORDER BY n DESC LIMIT ?) ORDER BY n"


def messages(count: int) -> list[bytes]:
    """Pieces of source text, as messages."""
    library = Path(sysconfig.get_path("stdlib"))
    wanted, texts = count * TEXT_CHARACTERS, list[str]()
    for path in sorted(library.glob("*.py")):
        if wanted <= 0:
            break
        texts.append(path.read_text(encoding="utf-8"))
        wanted -= len(texts[-1])
    text = "".join(texts)
    pieces = (text[at : at + TEXT_CHARACTERS] for at in range(0, count * TEXT_CHARACTERS, TEXT_CHARACTERS))
    return [msgspec.json.encode({"role": "assistant", "content": piece}) for piece in pieces]


def encode_us(appended: list[bytes]) -> list[float]:
    """Microseconds of each step in the encoder alone: appending its message and saving."""
    encoder, samples = Encoder(), list[float]()
    for number, message in enumerate(appended):
        after = AFTER % number
        began_s = time.perf_counter()
        encoder.append(message)
        encoder.save(BEFORE, after)
        samples.append((time.perf_counter() - began_s) * 1e6)
    return samples


async def grow(path: Path, appended: list[bytes], *, whole: bool) -> float:
    """A new file with one step a message: the whole list each time, or (the floor) the message alone.

    Milliseconds that it took to read the whole list back.
    """
    migrations = resources.files("peen.store") / "migrations"
    opened = open_database(path, migrations=migrations, name="peen", entropy=SystemEntropy(), reserve_bytes=0)
    async with opened as db:
        blobs = await Blobs.open(db)
        session_no = await db.write(_prepare)
        encoder = Encoder()
        for number, message in enumerate(appended):
            if not whole:
                await db.write(partial(_floor_step, number=number, message=message))
                continue
            encoder.append(message)
            saved = encoder.save(BEFORE, AFTER % number)
            await db.write(partial(_step, blobs=blobs, session_no=session_no, number=number, saved=saved))
        return _read_back_ms(db, blobs, session_no, appended) if whole and appended else 0.0


def _prepare(tx: Tx) -> SessionNo:
    tx.execute(_TABLE)
    session, _ = sessions.open_or_create(
        tx, new_id=bytes(16), workspace="/bench", agent_space="control", root_agent="peen", model="m", at_ms=0
    )
    return session.no


def _step(tx: Tx, *, blobs: Blobs, session_no: SessionNo, number: int, saved: Saved) -> None:
    tx.execute(_INSERT, (number, saved.value))
    blobs.accept(tx, session_no, [saved.value], saved.new_blobs)


def _floor_step(tx: Tx, *, number: int, message: bytes) -> None:
    tx.execute(_INSERT, (number, message))


def _read_back_ms(db: Database, blobs: Blobs, session_no: SessionNo, appended: list[bytes]) -> float:
    began_s = time.perf_counter()
    text = decode(_chain(db.reader), blobs.fetcher(db.reader, session_no))
    took_ms = (time.perf_counter() - began_s) * 1000
    if text != BEFORE + b"[" + b",".join(appended) + b"]" + AFTER % (len(appended) - 1):
        raise SystemExit("what was read back is not what was saved")
    return took_ms


def _chain(reader: Reader) -> list[bytes]:
    last = reader.row(_LAST)
    assert last is not None
    return [value for (value,) in reader.rows(_LATEST, (earlier_values(last[0]) + 1,))]


def main() -> None:
    arguments = parser("What one more step of a growing conversation costs.").parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    rounds = 3 if arguments.quick else 15
    appended = messages(MANY)
    with tempfile.TemporaryDirectory() as name:
        files = {what: Path(name) / f"{what}.db" for what in ("empty", "few", "many", "floor")}
        trio.run(partial(grow, files["empty"], [], whole=True))
        trio.run(partial(grow, files["few"], appended[:FEW], whole=True))
        read_ms = trio.run(partial(grow, files["many"], appended, whole=True))
        trio.run(partial(grow, files["floor"], appended, whole=False))
        size = {what: path.stat().st_size for what, path in files.items()}
    few, many, floor = (size[what] - size["empty"] for what in ("few", "many", "floor"))
    samples = [encode_us(appended) for _ in range(rounds)]
    tenth = MANY // 10
    first, last = (median(us for run in samples for us in run[part]) for part in (slice(tenth), slice(-tenth, None)))
    message_bytes = sum(map(len, appended)) / MANY
    data = {
        "bytes_per_step": round(many / MANY, 1),
        "message_bytes": round(message_bytes, 1),
        "bytes_over_message": round(many / MANY / message_bytes, 3),
        "exponent": round(math.log(many / few) / math.log(MANY / FEW), 3),
        "encode_last_over_first": round(last / first, 3),
        "encode_first_us": round(first, 2),
        "encode_last_us": round(last, 2),
        "read_back_ms": round(read_ms, 1),
        "floor_bytes_per_step": round(floor / MANY, 1),
        "empty_file_bytes": size["empty"],
        "steps": MANY,
        "rounds": rounds,
    }
    rows = [(name.replace("_", " "), value) for name, value in data.items()]
    report(arguments, data, table(["", f"{MANY:,} steps"], rows))


if __name__ == "__main__":
    main()
