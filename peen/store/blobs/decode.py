"""Reading saved values back, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from peen.store.blobs.encoder import CHAIN, Encoder
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
    return _expanded(value, fetch, max_bytes)


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
    if not 0 < len(chain) <= CHAIN:
        raise BlobDamaged(f"a value is read from 1 to {CHAIN} saved ones, not {len(chain)}")
    before = after = b""
    check, lists = 0, []
    for depth, value in enumerate(chain):
        head = _head(value)
        if int(head["depth"]) != depth:
            raise BlobDamaged(f"saved value {depth} since the root says that it is number {int(head['depth'])}")
        before = before if head["before"] == b"0" else _unquote(head["before"])
        after = after if head["after"] == b"0" else _unquote(head["after"])
        check = int(head["check"], 16)
        lists.append(value[head.end() : -1])
    inside = b",".join(filter(None, lists))
    # One text: what is missing on either side is then named at once.
    whole = _expanded(b'%b"~~|"%b"~~|"%b' % (before, inside, after), fetch, max_bytes)
    raise NotImplementedError(whole, check)


def _head(value: bytes) -> re.Match[bytes]:
    head = _HEAD.match(value)
    if head is None:
        raise BlobDamaged("not a saved value of a growing list")
    return head


def _unquote(quoted: bytes) -> bytes:
    try:
        return _unquoted(quoted).encode()
    except (msgspec.DecodeError, UnicodeEncodeError) as exc:
        raise BlobDamaged(f"not a saved value of a growing list: {exc}") from exc
