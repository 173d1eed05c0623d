"""Reading saved values back, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from peen.store.blobs.encoder import Encoder
from peen.store.blobs.errors import BlobDamaged, BlobMissing
from peen.store.blobs.runs import split_elements
from peen.store.blobs.text import MARKED, STRING, hash_in, hash_of

MAX_VALUE_BYTES: Final = 256 * 1024 * 1024
"""A few small runs that name each other can stand for more than any memory holds."""

Fetch: TypeAlias = Callable[[bytes], bytes]
"""The bytes of the blob with this hash. Raises: KeyError or BlobMissing if there is none."""

_HEAD: Final = re.compile(
    rb'\["~l(?P<depth>[0-9]{1,2})\.(?P<check>[0-9a-f]{8})",(?P<before>%b|0),(?P<after>%b|0)(?:,(?=.)|(?=\]\Z))'
    % (STRING, STRING),
    re.DOTALL,
)
_REFERENCE_BYTES: Final = 47
_unquoted: Final = msgspec.json.Decoder(str).decode


class Restored(NamedTuple):
    """An encoder in the state of the last save, which knows the blobs that were read. Its next save is a root."""

    encoder: Encoder
    before: bytes
    after: bytes


def unpack(value: bytes, fetch: Fetch, *, max_bytes: int = MAX_VALUE_BYTES) -> bytes:
    """What `pack` was given.

    Raises: BlobMissing with every blob that is missing as far as could be seen (there may be more below them);
    BlobDamaged if a blob or the value is not what was saved, or if it stands for more than `max_bytes`.
    """
    expansion = _Expansion(fetch, max_bytes)
    text = expansion.of(value)
    expansion.end()
    return text


def decode(saved_chain: Sequence[bytes], fetch: Fetch, *, max_bytes: int = MAX_VALUE_BYTES) -> bytes:
    """The JSON text of an encoder's last save. `saved_chain` are its values from the last root to that save.

    Raises: as `unpack`; BlobDamaged also if the values do not belong together.
    """
    before, inside, after = _read(saved_chain, fetch, max_bytes)
    return b"%b[%b]%b" % (before, inside, after)


def restore(
    saved_chain: Sequence[bytes], fetch: Fetch, *, known: set[bytes] | None = None, max_bytes: int = MAX_VALUE_BYTES
) -> Restored:
    """Go on where the last save was. `known` becomes the encoder's, with what was read added. Raises: as `decode`."""
    seen = set() if known is None else known

    def noted(digest: bytes) -> bytes:
        data = fetch(digest)
        seen.add(digest)
        return data

    before, inside, after = _read(saved_chain, noted, max_bytes)
    encoder = Encoder(seen)
    encoder.replace_all(split_elements(inside))
    return Restored(encoder, before, after)


def earlier_values(value: bytes) -> int:
    """How many of the saves before this one are needed to read it, 0 for a root. Raises: BlobDamaged."""
    return int(_head(value)["depth"])


def named(value: bytes, new_blobs: Mapping[bytes, bytes]) -> set[bytes]:
    """Hashes of all blobs that a saved value names, directly or through those of its runs that are in `new_blobs`.

    A blob that was stored before is not looked into: what it names was there when it came.
    Raises: BlobDamaged if it is not a saved value.
    """
    found: set[bytes] = set()
    texts = list(_texts(value))
    seen_runs: set[bytes] = set()
    while texts:
        for match in MARKED.finditer(texts.pop()):
            if match[1] is None:
                _check_escaped(match)
                continue
            digest = hash_in(match[2])
            found.add(digest)
            if match[1] == b"r" and digest in new_blobs and digest not in seen_runs:
                seen_runs.add(digest)
                texts.append(new_blobs[digest])
    return found


def _read(chain: Sequence[bytes], fetch: Fetch, max_bytes: int) -> tuple[bytes, bytes, bytes]:
    """The text before the list, between its brackets, and behind it."""
    if not chain:
        raise BlobDamaged("there is no saved value to read")
    before = after = check = b""
    lists = []
    for depth, value in enumerate(chain):
        head = _head(value)
        if int(head["depth"]) != depth:
            raise BlobDamaged(f"number {depth} of the saved values says that it is number {int(head['depth'])}")
        before = before if head["before"] == b"0" else _unquoted_text(head["before"])
        after = after if head["after"] == b"0" else _unquoted_text(head["after"])
        check = head["check"]
        lists.append(value[head.end() : -1])
    expansion = _Expansion(fetch, max_bytes)
    inside = expansion.of(b",".join(filter(None, lists)))
    before, after = expansion.of(before), expansion.of(after)
    expansion.end()
    listed = crc32(b",", crc32(inside)) if inside else 0
    if crc32(after, crc32(before, listed)) != int(check, 16):
        raise BlobDamaged("the saved values do not belong together")
    return before, inside, after


class _Expansion:
    """Packed texts on their way back to what they were."""

    def __init__(self, fetch: Fetch, max_bytes: int) -> None:
        self._fetch, self._max_bytes = fetch, max_bytes
        self._left = max_bytes
        self._missing: list[bytes] = []

    def of(self, packed: bytes) -> bytes:
        """The text that `packed` stands for. Where a blob is missing it has a gap, and `end` will raise."""
        self._charge(len(packed))
        pieces: list[bytes] = []
        texts = [(packed, 0)]
        while texts:
            text, at = texts.pop()
            for match in MARKED.finditer(text, at):
                pieces.append(text[at : match.start()])
                at = match.end()
                if match[1] is None:
                    _check_escaped(match)
                    pieces.append(b'"~')
                    continue
                data = self._blob(hash_in(match[2]))
                if match[1] == b"r":
                    texts += ((text, at), (data, 0))
                    break
                pieces += (b'"', data, b'"')
            else:
                pieces.append(text[at:])
        return b"".join(pieces)

    def end(self) -> None:
        """Raises: BlobMissing if a blob was."""
        if self._missing:
            raise BlobMissing(self._missing)

    def _blob(self, digest: bytes) -> bytes:
        try:
            data = self._fetch(digest)
        except (KeyError, BlobMissing):
            self._missing.append(digest)
            return b""
        if hash_of(data) != digest:
            raise BlobDamaged(f"the bytes of blob {digest.hex()} do not match their hash")
        self._charge(len(data) + 2)
        return data

    def _charge(self, size: int) -> None:
        # Also runs that stand for little take their share, so the work is bounded with the bytes.
        self._left -= size + _REFERENCE_BYTES
        if self._left < 0:
            raise BlobDamaged(f"the value stands for more than {self._max_bytes} bytes")


def _texts(value: bytes) -> Iterator[bytes]:
    """The packed texts that a saved value consists of."""
    if not value.startswith(b'["~l'):
        yield value
        return
    head = _head(value)
    for side in ("before", "after"):
        if head[side] != b"0":
            yield _unquoted_text(head[side])
    yield value[head.end() :]


def _head(value: bytes) -> re.Match[bytes]:
    head = _HEAD.match(value)
    if head is None or not value.endswith(b"]"):
        raise BlobDamaged("not a saved value of a growing list")
    return head


def _unquoted_text(quoted: bytes) -> bytes:
    try:
        return _unquoted(quoted).encode()
    except msgspec.DecodeError as exc:
        raise BlobDamaged(f"not a saved value of a growing list: {exc}") from exc


def _check_escaped(match: re.Match[bytes]) -> None:
    if match[3] is None:
        raise BlobDamaged("a saved value holds a reference of an unknown kind")
