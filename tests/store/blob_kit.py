"""JSON as nobody would write it, and a store of blobs in memory: shared by the tests of content-addressed storage."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from hypothesis import strategies as st

from peen.store.blobs.encoder import Saved
from peen.store.blobs.text import Blob, hash_of

SPACES = st.sampled_from([b"", b"", b"", b" ", b"\n\t", b"\r\n  "])
NUMBERS = st.sampled_from([b"0", b"-0", b"1.0", b"1e5", b"1E+05", b"-12.50", b"123456789012345678901234567890"])
_LONG_BYTES = 20_000
WORDS = st.sampled_from([b"true", b"false", b"null"])
LOOK_ALIKES = [b"~", b"~~", b"~s", b"~r", b"~l0.00000000", b'\\"~', b"~s" + b"A" * 43, b"~r" + b"A" * 43, b"\\u007e"]
PIECES = st.sampled_from(
    [b"a", b"plain text", b"\\n", b'\\"', b"\\\\", b"\\u00e9", "é漢".encode(), b"\\ud83d\\ude00", b"\\ud800",
     b"[", b"]", b"{,}", b",", b":", *LOOK_ALIKES]
)  # fmt: skip


@st.composite
def strings(draw: st.DrawFn) -> bytes:
    """A string as it is spelled, quotes included; sometimes far longer than what stays in its place."""
    inside = b"".join(draw(st.lists(PIECES, max_size=6)))
    return b'"' + inside * draw(st.sampled_from([1, 1, 1, 20, 200])) + b'"'


def containers(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return arrays(inner) | objects(inner)


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[bytes]) -> bytes:
    """Sometimes long enough for runs, and for runs of runs."""
    elements = draw(st.lists(inner, max_size=5))
    times = draw(st.sampled_from([1, 1, 3, 40]))
    elements *= max(1, min(times, _LONG_BYTES // (sum(map(len, elements)) + 1)))
    if not elements:
        return b"[" + draw(SPACES) + b"]"
    space = draw(SPACES)
    return b"[" + b",".join(space + each + space for each in elements) + b"]"


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[bytes]) -> bytes:
    """Keys in any order, also twice."""
    space = draw(SPACES)
    members = draw(st.lists(st.tuples(strings(), inner), max_size=4))
    return b"{" + b",".join(key + space + b":" + value + space for key, value in members) + b"}"


def spaced(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.tuples(SPACES, inner, SPACES).map(b"".join)


VALUES = spaced(st.recursive(NUMBERS | WORDS | strings(), containers, max_leaves=12))
"""Any JSON text."""


def message(number: int, *, size: int = 600, role: str = "assistant") -> bytes:
    """A message whose text is different for each number; `size` is the length of that text."""
    text = f"message {number} of a conversation; " + " ".join(str(number * 7919 + k) for k in range(size // 4))
    return b'{"role":"%b","content":"%b"}' % (role.encode(), text[:size].encode())


class Memory:
    """Where saved blobs go in a test. It refuses to be given one twice: a step costs only what is new."""

    def __init__(self) -> None:
        self.blobs: dict[bytes, bytes] = {}

    def take(self, saved: Saved) -> bytes:
        """Keep the blobs of a save; its value."""
        for blob in saved.new_blobs:
            assert hash_of(blob.data) == blob.hash
            assert blob.hash not in self.blobs
            self.blobs[blob.hash] = blob.data
        return saved.value

    def fetch(self, digest: bytes) -> bytes:
        return self.blobs[digest]


def blob(data: bytes) -> Blob:
    return Blob(hash_of(data), data)


def reference(kind: bytes, data: bytes) -> bytes:
    """What names a blob, spelled without the code that is tested."""
    return b'"~' + kind + base64.b64encode(hash_of(data)).rstrip(b"=") + b'"'


def total(blobs: Iterable[Blob]) -> int:
    return sum(len(each.data) for each in blobs)
