"""Bytes of the images that an execution has in its conversation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from peen.errors import StorageFailed
from peen.execution.journal import Journal
from peen.wire.records import ImageRef, NewBlob


class Pictures:
    """Read from the store when they are first wanted, and let go with the execution. Borrows: the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._bytes: dict[str, bytes] = {}

    async def of(self, refs: Iterable[ImageRef]) -> Mapping[str, bytes]:
        """Bytes by `sha256`, of these images at least. Raises: StorageFailed, and what the journal raises."""
        for ref in refs:
            if ref.sha256 not in self._bytes:
                data = await self._journal.blob(bytes.fromhex(ref.sha256))
                if hashlib.sha256(data).hexdigest() != ref.sha256:
                    raise StorageFailed("peen.db", f"the image {ref.sha256} is not what was once stored")
                self._bytes[ref.sha256] = data
        return self._bytes

    def keep(self, ref: ImageRef, data: bytes) -> None:
        """Take an image that a tool has read, and that will be stored with its result."""
        self._bytes[ref.sha256] = data

    def blob(self, ref: ImageRef) -> NewBlob:
        """A kept image, to be stored."""
        return NewBlob(digest=bytes.fromhex(ref.sha256), data=self._bytes[ref.sha256])
