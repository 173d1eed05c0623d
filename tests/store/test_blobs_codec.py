"""How blobs are compressed, and that what an older release compressed is still read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard
from blob_kit import blob
from hypothesis import given, settings
from hypothesis import strategies as st
from world_kit import make_home, open_store

from peen.store.blobs.codec import DICTIONARY_UP_TO_BYTES, PLAIN, RAW, Codec
from peen.store.blobs.dictionary import shipped
from peen.store.blobs.errors import BlobDamaged
from peen.store.blobs.rows import Blobs

SOURCE = (
    b'import sys\\n\\n\\ndef main(arguments: list[str]) -> int:\\n    \\"\\"\\"Print each argument.\\"\\"\\"\\n'
    b"    for number, argument in enumerate(arguments):\\n        if not argument.strip():\\n            continue\\n"
    b'        print(f\\"{number}: {argument}\\", file=sys.stderr)\\n    return 0\\n\\n\\n'
    b'if __name__ == \\"__main__\\":\\n    raise SystemExit(main(sys.argv[1:]))\\n# '
)


def codec() -> Codec:
    return Codec({2: shipped()}, newest=2)


def contents() -> Iterator[bytes]:
    chance = random.Random(5)
    yield from (b"", b"a", SOURCE, SOURCE * 300, bytes(1_000_000), chance.randbytes(600))


@settings(deadline=None)
@given(st.binary(max_size=2000) | st.sampled_from(list(contents())))
def test_what_was_stored_is_read_again_and_never_longer_than_it_was(data: bytes) -> None:
    coding, stored = codec().encode(data)

    assert codec().decode(coding, stored) == data
    assert len(stored) <= len(data)


def test_the_dictionary_pays_for_short_text_and_is_left_out_where_it_does_not() -> None:
    plain = len(zstandard.ZstdCompressor(level=3).compress(SOURCE))

    coding, stored = codec().encode(SOURCE)
    assert coding == 2
    assert len(stored) < plain * 0.8
    assert codec().encode((SOURCE * 100)[: DICTIONARY_UP_TO_BYTES + 1])[0] == PLAIN
    assert codec().encode(random.Random(1).randbytes(600))[0] == RAW


def test_several_threads_may_use_one_codec() -> None:
    shared = codec()
    texts = [SOURCE + b"%d" % n for n in range(400)]

    def there_and_back(text: bytes) -> bytes:
        return shared.decode(*shared.encode(text))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(there_and_back, texts)) == texts


@pytest.mark.parametrize("coding", [PLAIN, 2])
def test_damage_is_told_and_takes_no_memory(coding: int) -> None:
    _, stored = codec().encode(SOURCE)
    huge = b"\x28\xb5\x2f\xfd\xe0" + (1 << 60).to_bytes(8, "little") + bytes(8)

    for damaged in (b"", b"nothing", stored[:-5], huge):
        with pytest.raises(BlobDamaged):
            codec().decode(coding, damaged)


def test_a_dictionary_that_is_not_there_is_named() -> None:
    with pytest.raises(BlobDamaged, match="dictionary 7"):
        codec().decode(7, b"x")


# --- in a database


async def test_a_database_gets_the_dictionary_once() -> None:
    async with open_store() as db:
        await Blobs.open(db)
        await Blobs.open(db)

        assert db.reader.rows("SELECT id, data FROM blob_dictionary") == [(2, shipped())]


async def test_what_an_older_release_stored_with_its_dictionary_is_read() -> None:
    older = zstandard.train_dictionary(4096, [SOURCE[n:] + b"%d" % n for n in range(200)]).as_bytes()
    text = SOURCE + b"of the older release"
    async with open_store() as db:
        await db.write(lambda tx: tx.execute("INSERT INTO blob_dictionary VALUES (2, ?)", (older,)).fetchall())
        home = await make_home(db)
        before = Blobs(Codec({2: older}, newest=2))
        await db.write(lambda tx: before.save(tx, home.no, [blob(text)]))

        after = await Blobs.open(db)
        await db.write(lambda tx: after.save(tx, home.no, [blob(SOURCE)]))

        assert after.fetch(db.reader, home.no, blob(text).hash) == text
        assert after.fetch(db.reader, home.no, blob(SOURCE).hash) == SOURCE
        assert db.reader.rows("SELECT coding FROM blob ORDER BY id") == [(2,), (3,)]
