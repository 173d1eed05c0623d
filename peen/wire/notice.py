"""A notice as clients, handlers and the model see it: a report of something that happened outside the model's calls."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

NOTHING: Final = Raw(b"null")
MAX_TYPE_CHARACTERS: Final = 128
_TYPE: Final = re.compile(r"[a-z][a-z0-9]*(\.[a-z][a-z0-9]*){0,7}")
RESERVED: Final = ("job", "agent", "turn")
"""First parts of the types that only Peen itself reports."""

Delivery = Literal["queue", "wake"]


class Notice(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """`data` is a JSON object; `data_omitted` says that it was left out of a delivery and is readable by `id`."""

    id: str
    type: str
    source: str
    summary: str
    data: Raw = NOTHING
    data_omitted: bool = False
    delivery: Delivery
    created_at: str


encode_notice: Final = msgspec.json.Encoder().encode


def type_problem(notice_type: str, *, by_peen: bool = False) -> str | None:
    """What is wrong with a type: 1 to 8 dotted parts of lower-case letters and digits, none of ours for others."""
    if len(notice_type) > MAX_TYPE_CHARACTERS or _TYPE.fullmatch(notice_type) is None:
        return (
            "must have 1 to 8 dotted parts, each a lower-case letter followed by lower-case letters and digits, "
            f"and at most {MAX_TYPE_CHARACTERS} characters, such as ci.build.failed"
        )
    if not by_peen and notice_type.partition(".")[0] in RESERVED:
        return f"{', '.join(f'{name}.*' for name in RESERVED)} are reserved for Peen; choose another first part"
    return None
