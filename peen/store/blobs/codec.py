"""How the bytes of a blob lie in the file: as they are, or compressed, with a dictionary where that pays."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

import zstandard
from zstandard import ZstdCompressionDict, ZstdCompressionParameters, ZstdCompressor, ZstdDecompressor

from peen.store.blobs.errors import BlobDamaged

RAW: Final = 0
PLAIN: Final = 1
FIRST_DICTIONARY: Final = 2
LEVEL: Final = 3
MAX_BLOB_BYTES: Final = 128 * 1024 * 1024
DICTIONARY_UP_TO_BYTES: Final = 32 * 1024
"""A longer blob is longer than the dictionary itself, which then saves about 2 %."""


class Codec:
    """Compresses with the newest dictionary of a database, and reads what any of its dictionaries wrote.

    May be used from several threads: each has contexts of its own.
    """

    def __init__(self, dictionaries: Mapping[int, bytes], *, newest: int) -> None:
        self._dictionaries = {number: ZstdCompressionDict(data) for number, data in dictionaries.items()}
        self._newest = newest
        self._dictionaries[newest].precompute_compress(level=LEVEL)
        self._contexts = _Contexts(self._dictionaries, newest)

    def encode(self, data: bytes) -> tuple[int, bytes]:
        """(coding, bytes to store), never longer than `data`."""
        with_dictionary = len(data) <= DICTIONARY_UP_TO_BYTES
        stored = self._contexts.compressor(self._newest if with_dictionary else PLAIN).compress(data)
        if len(stored) >= len(data):
            return RAW, data
        return self._newest if with_dictionary else PLAIN, stored

    def decode(self, coding: int, stored: bytes) -> bytes:
        """The bytes of a blob. Raises: BlobDamaged if they cannot be restored."""
        if coding == RAW:
            return stored
        if coding != PLAIN and coding not in self._dictionaries:
            raise BlobDamaged(f"a blob was written with dictionary {coding}, which the database does not have")
        try:
            # The frame says how much memory it needs: that may be what is damaged.
            if not 0 <= zstandard.frame_content_size(stored) <= MAX_BLOB_BYTES:
                raise BlobDamaged("a stored blob names an impossible size")
            return self._contexts.decompressor(coding).decompress(stored)
        except zstandard.ZstdError as exc:
            raise BlobDamaged(f"a stored blob cannot be decompressed: {exc}") from exc


class _Contexts(threading.local):
    """Compressors and decompressors of one thread, made when they are first wanted."""

    def __init__(self, dictionaries: Mapping[int, ZstdCompressionDict], newest: int) -> None:
        self._dictionaries, self._newest = dictionaries, newest
        self._compressors: dict[int, ZstdCompressor] = {}
        self._decompressors: dict[int, ZstdDecompressor] = {}

    def compressor(self, coding: int) -> ZstdCompressor:
        found = self._compressors.get(coding)
        if found is None:
            # Which dictionary it was stands beside the data.
            parameters = ZstdCompressionParameters.from_level(LEVEL, write_dict_id=False)
            found = ZstdCompressor(compression_params=parameters, dict_data=self._dictionaries.get(coding))
            self._compressors[coding] = found
        return found

    def decompressor(self, coding: int) -> ZstdDecompressor:
        found = self._decompressors.get(coding)
        if found is None:
            found = ZstdDecompressor(dict_data=self._dictionaries.get(coding))
            self._decompressors[coding] = found
        return found
