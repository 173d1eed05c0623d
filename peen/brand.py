"""Numbers by which a process is recognised whatever it does to itself: it inherits them as limits that limit nothing.

An environment can be emptied, a session left, output closed, and a parent may die. Resource limits go on through all of
it, through fork and exec. Two of them are free to be used: RLIMIT_LOCKS means nothing to Linux since 2.4.25, and
RLIMIT_RTTIME counts microseconds without a pause under real-time scheduling, so that 2**62 of them are as good as no
limit. A brand is lost only where these limits are set anew: by a process itself, or by a login (su and sudo on Debian,
whose pam_limits starts from the limits of process 1).
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from enum import Enum
from typing import Final

_LOWEST: Final = 2**62  # brands are between this and 2**63 - 1, which no real limit is


class Brand(Enum):
    """Whose number it is. `word` begins its line in /proc/PID/limits."""

    STATE = (10, b"Max file locks ")
    COMMAND = (15, b"Max realtime timeout ")

    def __init__(self, limit: int, word: bytes) -> None:
        self.limit, self.word = limit, word


def brand_number(text: str) -> int:
    """The number that stands for `text`: 61 bits of its hash (FNV-1a: importing hashlib would take 2 ms of a start)."""
    number = 0xCBF29CE484222325
    for byte in text.encode():
        number = (number ^ byte) * 0x100000001B3 % 2**64
    return _LOWEST + number // 8


def wear(brand: Brand, number: int) -> bool:
    """Give this process, and whatever it starts from now on, a brand. False where a real limit is set, which stays."""
    try:
        soft, hard = resource.getrlimit(brand.limit)
        if hard != resource.RLIM_INFINITY or (soft != resource.RLIM_INFINITY and soft < _LOWEST):
            return False
        resource.setrlimit(brand.limit, (number, hard))
    except (OSError, ValueError):  # refused by a sandbox
        return False
    return True


@contextlib.contextmanager
def worn(brand: Brand, number: int) -> Iterator[None]:
    """What is started inside gets the brand. It is this whole process's: only one thread may start something."""
    before = resource.getrlimit(brand.limit)
    is_worn = wear(brand, number)
    try:
        yield
    finally:
        if is_worn:
            resource.setrlimit(brand.limit, before)


def brand_of(pid: int, brand: Brand) -> int | None:
    """The number that a process has inherited, if it has one; that of a process that is gone is None, too."""
    try:
        number = resource.prlimit(pid, brand.limit)[0]
    except ProcessLookupError:
        return None
    except PermissionError:  # of another account: everybody may read it all the same
        number = _read(pid, brand)
    return number if number >= _LOWEST else None


def _read(pid: int, brand: Brand) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/limits", "rb", buffering=0) as file:
        for line in file.read(4096).splitlines():
            if line.startswith(brand.word):
                soft = line.removeprefix(brand.word).split()[0]
                return int(soft) if soft.isdigit() else resource.RLIM_INFINITY
    return resource.RLIM_INFINITY
