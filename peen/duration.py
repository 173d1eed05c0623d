"""Durations as people and models write them: Go's notation, such as `90s`, `1h30m` or `1.5s`."""

from __future__ import annotations

import re
from typing import Final

_UNITS_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, micro sign
    "μs": 1_000,  # U+03BC, Greek mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_MAX_NS: Final = 2**63 - 1
_PART: Final = re.compile(r"([0-9]*)(?:(\.)([0-9]*))?([^0-9.]*)")
_EXAMPLES: Final = 'write it like "90s", "5m", "1h30m" or "500ms"'


def parse_duration_ms(text: str) -> int:
    """Whole milliseconds of a Go duration string; what is finer than 1 ms is rounded away from zero.

    The grammar is that of Go's `time.ParseDuration`: an optional sign, then one or more of number and unit
    (`ns us µs ms s m h`), or a bare `0`. A negative duration is valid here; a caller that cannot use one refuses it.
    Raises: ValueError with the remedy in its text; a size past Go's 64-bit nanoseconds (292 years) is refused too.
    """
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    if not rest:
        raise ValueError(f"duration {_shown(text)} is empty: {_EXAMPLES}")
    total_ns, position = 0, 0
    while position < len(rest):
        part = _PART.match(rest, position)
        assert part is not None  # every piece of the pattern may be empty
        whole, _dot, fraction, unit = part.groups()
        if not whole and not fraction:
            raise ValueError(f"duration {_shown(text)} is not a number with a unit: {_EXAMPLES}")
        if not unit:
            raise ValueError(f"duration {_shown(text)} lacks a unit: {_EXAMPLES}")
        if unit not in _UNITS_NS:
            raise ValueError(f"duration {_shown(text)} has the unknown unit {_shown(unit)}: {_EXAMPLES}")
        total_ns += _part_ns(whole, fraction or "", _UNITS_NS[unit])
        # Go's least value is one nanosecond further from zero than its greatest.
        if total_ns > _MAX_NS + (sign < 0):
            raise ValueError(f"duration {_shown(text)} is too long: 2562047h is the most")
        position = part.end()
    return sign * -(-total_ns // 1_000_000)


def format_duration_ms(ms: int) -> str:
    """A length in milliseconds as Go prints it: `0s`, `500ms`, `5.321s`, `1m30s`, `1h0m0s`."""
    sign, ms = ("-", -ms) if ms < 0 else ("", ms)
    if ms == 0:
        return "0s"
    if ms < 1000:
        return f"{sign}{ms}ms"
    minutes, left_ms = divmod(ms, 60_000)
    seconds, fraction = divmod(left_ms, 1000)
    text = f"{seconds}.{fraction:03d}".rstrip("0").rstrip(".") + "s" if fraction else f"{seconds}s"
    if minutes == 0:
        return sign + text
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{hours}h{minutes}m{text}" if hours else f"{sign}{minutes}m{text}"


def _part_ns(whole: str, fraction: str, unit_ns: int) -> int:
    """One number with its unit. Only as many digits are converted as can matter, so a huge text costs nothing."""
    digits = whole.lstrip("0")
    if len(digits) > 19:
        return _MAX_NS + 2  # more than any sign allows: the caller refuses it
    return int(digits or "0") * unit_ns + int(fraction[:18].ljust(18, "0")) * unit_ns // 10**18


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")
