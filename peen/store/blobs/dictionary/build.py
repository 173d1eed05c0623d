"""Train the dictionary anew: `python -m peen.store.blobs.dictionary.build`.

One state of the sources, with one version of zstd, gives one dictionary. It need not follow every change: a new one is
worth its 32 KiB in every database only when it compresses clearly better.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import zstandard

from peen.store.blobs.dictionary import FILE
from peen.store.blobs.text import run_reference, string_reference

SIZE_BYTES: Final = 32 * 1024
SAMPLE_BYTES: Final = 1000  # about what a message holds
LEVEL: Final = 3
_OFTEN: Final = 15
"""How often the general samples count, against the far more numerous pieces of our own text."""
_PACKAGE: Final = Path(__file__).parents[3]


def train() -> bytes:
    """A dictionary from our own text: general samples, all of the package, and packed lists."""
    general = (Path(__file__).parent / "samples.txt").read_text().split("%%%%\n")
    texts = [path.read_text() for path in sorted(_PACKAGE.rglob("*")) if path.suffix in {".py", ".md", ".sql"}]
    samples: list[bytes | bytearray | memoryview] = [*_lists()]
    for text in general * _OFTEN + texts:
        samples += _pieces(text)
    return zstandard.train_dictionary(SIZE_BYTES, samples, level=LEVEL).as_bytes()


def _pieces(text: str) -> Iterator[bytes]:
    """The text as it stands in a JSON string, cut."""
    spelled = msgspec.json.encode(text)[1:-1]
    for at in range(0, len(spelled), SAMPLE_BYTES):
        yield spelled[at : at + SAMPLE_BYTES]


def _lists() -> Iterator[bytes]:
    """Runs of short messages with references."""
    chance = random.Random(1)
    for number in range(60):
        text, run = string_reference(chance.randbytes(32)), run_reference(chance.randbytes(32))
        messages = (
            b'{"role":"user","content":%b}' % text,
            b'{"role":"assistant","content":"","toolCalls":[{"id":"call_%d","name":"readFile","arguments":{' % number,
            b'{"role":"tool","content":%b,"toolCallId":"call_%d"}' % (text, number),
        )
        yield b",".join((run, *messages))


if __name__ == "__main__":
    (Path(__file__).parent / FILE).write_bytes(train())
