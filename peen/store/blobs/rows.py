"""The blobs of a database file: who may read them, what is missing, and when they go."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from peen.ids import SessionNo
from peen.store.blobs.codec import FIRST_DICTIONARY, MAX_BLOB_BYTES, Codec
from peen.store.blobs.decode import Fetch, named, unpack
from peen.store.blobs.dictionary import shipped
from peen.store.blobs.encoder import pack
from peen.store.blobs.errors import BlobMissing, BlobRefused
from peen.store.blobs.text import MIN_STRING_BYTES, Blob, hash_of
from peen.store.database import Database, Reader, Tx

PREFIX_BYTES: Final = 4
PACKED: Final = b"~"
"""No JSON text begins like this: a row that does holds a packed one."""
STEP_ROWS: Final = 2_000
STEP_BYTES: Final = 4 * 1024 * 1024
"""What one call of `release` looks at and frees at most: other sessions wait for the end of its transaction."""

_DICTIONARIES: Final = "SELECT id, data FROM blob_dictionary ORDER BY id"
_ADD_DICTIONARY: Final = "INSERT INTO blob_dictionary (id, data) VALUES (?, ?)"
_FIND: Final = "SELECT id FROM blobhash WHERE hash = ?"
_ADD: Final = "INSERT INTO blob (prefix, coding, data) VALUES (?, ?, ?) RETURNING id"
_ADD_HASH: Final = "INSERT INTO blobhash (hash, id) VALUES (?, ?)"
_GRANT: Final = "INSERT INTO blob_use (session_no, blob_id) VALUES (?, ?) ON CONFLICT DO NOTHING"
_IS_GRANTED: Final = """
SELECT 1 FROM blobhash h JOIN blob_use u ON u.blob_id = h.id WHERE h.hash = ? AND u.session_no = ?
"""
_READ: Final = """
SELECT b.coding, b.data FROM blobhash h JOIN blob_use u ON u.blob_id = h.id JOIN blob b ON b.id = h.id
 WHERE h.hash = ? AND u.session_no = ?
"""
_USED: Final = """
SELECT b.id, b.prefix, octet_length(b.data) FROM blob_use u CROSS JOIN blob b ON b.id = u.blob_id
 WHERE u.session_no = ? ORDER BY u.blob_id LIMIT ?
"""
_LET_GO: Final = "DELETE FROM blob_use WHERE session_no = ? AND blob_id = ?"
_REMOVE: Final = """
DELETE FROM blob WHERE id = :id AND NOT EXISTS (SELECT 1 FROM blob_use WHERE blob_id = :id) RETURNING id
"""
_REMOVE_HASH: Final = "DELETE FROM blobhash WHERE hash BETWEEN :low AND :high AND id = :id"


class Blobs:
    """The blobs of one database. Its methods are changes and reads like all store functions, in any thread."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    @classmethod
    async def open(cls, database: Database) -> Blobs:
        """Once after opening the database: it gets the dictionary of this release if it has not got it, which is the
        only write. Raises: StorageError.
        """
        known = _codec_of(database.reader)
        return cls(known if known is not None else await database.write(_with_our_dictionary))

    def accept(self, tx: Tx, session_no: SessionNo, values: Iterable[bytes], blobs: Iterable[Blob]) -> None:
        """Take what came with saved values, and see that all they name is there: to be called where they are stored.

        Raises: BlobMissing, BlobRefused; BlobDamaged if a value or a blob names what cannot be. Then the change must
        fail, so that nothing of it is written.
        """
        came = {blob.hash: blob for blob in blobs}
        self.save(tx, session_no, came.values())
        bytes_of = {digest: blob.data for digest, blob in came.items()}
        wanted = {digest for value in values for digest in named(value, bytes_of)} - came.keys()
        lost = missing(tx, session_no, sorted(wanted))
        if lost:
            raise BlobMissing(lost)

    def save(self, tx: Tx, session_no: SessionNo, blobs: Iterable[Blob]) -> None:
        """Store what is new, and let the session read all of them.

        Raises: BlobRefused if the bytes of one do not match its hash, or are too many; nothing was written.
        """
        came = list(blobs)
        for blob in came:
            if len(blob.data) > MAX_BLOB_BYTES:
                raise BlobRefused(f"a blob may have {MAX_BLOB_BYTES} bytes, this one has {len(blob.data)}")
            if hash_of(blob.data) != blob.hash:
                raise BlobRefused(f"the bytes of a blob do not match its hash {blob.hash.hex()}")
        for blob in came:
            tx.execute(_GRANT, (session_no, self._stored(tx, blob)))

    def put(self, tx: Tx, session_no: SessionNo, value: bytes) -> bytes:
        """What to write into a row for this JSON text: the text, or its packed form with the long parts in blobs."""
        if len(value) < MIN_STRING_BYTES:
            return value
        saved = pack(value)
        if not saved.new_blobs:
            return value
        for blob in saved.new_blobs:
            tx.execute(_GRANT, (session_no, self._stored(tx, blob)))
        return PACKED + saved.value

    def take(self, db: Reader | Tx, session_no: SessionNo, stored: bytes) -> bytes:
        """The JSON text that `put` was given. Raises: BlobMissing, BlobDamaged."""
        if not stored.startswith(PACKED):
            return stored
        return unpack(stored[len(PACKED) :], self.fetcher(db, session_no))

    def fetch(self, db: Reader | Tx, session_no: SessionNo, digest: bytes) -> bytes:
        """The bytes of a blob that this session may read. They are checked against the hash where they are used.

        Raises: BlobMissing, also where only another session has it; BlobDamaged.
        """
        row = db.row(_READ, (digest, session_no))
        if row is None:
            raise BlobMissing([digest])
        return self._codec.decode(row[0], row[1])

    def fetcher(self, db: Reader | Tx, session_no: SessionNo) -> Fetch:
        """`fetch` as `decode` and `unpack` want it."""
        return partial(self.fetch, db, session_no)

    def _stored(self, tx: Tx, blob: Blob) -> int:
        """Id of the blob, stored if it is new."""
        found = tx.row(_FIND, (blob.hash,))
        if found is not None:
            return int(found[0])
        coding, data = self._codec.encode(blob.data)
        added = tx.row(_ADD, (blob.hash[:PREFIX_BYTES], coding, data))
        assert added is not None
        tx.execute(_ADD_HASH, (blob.hash, added[0]))
        return int(added[0])


def missing(tx: Tx, session_no: SessionNo, hashes: Iterable[bytes]) -> list[bytes]:
    """Those of `hashes` that this session has not sent. That another one has is not enough: whoever knows a hash
    need not know the bytes, and they go when that other one is deleted.
    """
    return [digest for digest in hashes if tx.row(_IS_GRANTED, (digest, session_no)) is None]


def release(tx: Tx, session_no: SessionNo, *, rows: int = STEP_ROWS, size: int = STEP_BYTES) -> bool:
    """Let go of the session's next blobs, and remove those that nobody uses any more; True when none was left.

    At most `rows` blobs, and no more once `size` bytes were removed: call it in one transaction after another.
    """
    for blob_id, prefix, stored_bytes in tx.rows(_USED, (session_no, rows + 1)):
        if rows == 0 or size <= 0:
            return False
        rows -= 1
        tx.execute(_LET_GO, (session_no, blob_id))
        if tx.row(_REMOVE, {"id": blob_id}) is not None:
            high = prefix + b"\xff" * (32 - PREFIX_BYTES)
            tx.execute(_REMOVE_HASH, {"low": prefix, "high": high, "id": blob_id})
            size -= stored_bytes
    return True


def _codec_of(db: Reader) -> Codec | None:
    """None if the database has not got the dictionary of this release."""
    dictionaries: dict[int, bytes] = dict(db.rows(_DICTIONARIES))
    newest = next((number for number, data in dictionaries.items() if data == shipped()), None)
    return None if newest is None else Codec(dictionaries, newest=newest)


def _with_our_dictionary(tx: Tx) -> Codec:
    dictionaries: dict[int, bytes] = dict(tx.rows(_DICTIONARIES))
    newest = max(dictionaries, default=FIRST_DICTIONARY - 1) + 1
    tx.execute(_ADD_DICTIONARY, (newest, shipped()))
    return Codec({**dictionaries, newest: shipped()}, newest=newest)
