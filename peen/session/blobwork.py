"""Blobs that a worker sends ahead or asks for: parts of what it will save, and the images that it shows."""

from __future__ import annotations

from peen.session.writer import Writer
from peen.store import generations
from peen.store.blobs.text import Blob
from peen.store.database import Reader, Tx
from peen.wire.turncalls import MAX_PIECE_BYTES, BlobPiece, BlobsSaved, FetchBlob, SaveBlobs


def fetch_blob(db: Reader, writer: Writer, request: FetchBlob) -> BlobPiece:
    """A piece of a blob that this session may read. Raises: BlobMissing, BlobDamaged."""
    whole = writer.blobs.fetch(db, writer.session_no, request.digest)
    return BlobPiece(data=whole[request.offset : request.offset + MAX_PIECE_BYTES], size_bytes=len(whole))


def save_blobs(tx: Tx, writer: Writer, request: SaveBlobs) -> BlobsSaved:
    """Take blobs ahead of the commit that names them. Raises: BlobRefused, StaleClaim."""
    generations.check_live(tx, writer.generation_no)
    writer.blobs.save(tx, writer.session_no, [Blob(blob.digest, blob.data) for blob in request.blobs])
    return BlobsSaved()
