"""What can be wrong with a blob."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from peen.errors import PeenError


class BlobMissing(PeenError):
    """Blobs that a saved value names are not there, or not for this session. `hashes` are distinct, in order.

    Whoever has their bytes sends them along and tries again.
    """

    code: ClassVar[str] = "BLOBS_MISSING"

    def __init__(self, hashes: Iterable[bytes]) -> None:
        self.hashes = list(dict.fromkeys(hashes))
        first = self.hashes[0].hex() if self.hashes else "none"
        super().__init__(f"{len(self.hashes)} blobs are missing, first {first}")


class BlobRefused(PeenError):
    """A blob whose bytes do not match its hash, or that is too large, was to be stored. Nothing was."""

    code: ClassVar[str] = "BLOB_REFUSED"


class BlobDamaged(PeenError):
    """A saved value or a blob is not what was once saved."""

    code: ClassVar[str] = "BLOB_DAMAGED"
