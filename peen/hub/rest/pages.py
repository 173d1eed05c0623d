"""How long lists are cut into pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct

from peen.hub.api import MAX_PAGE_BYTES
from peen.wire.rest import encode

S = TypeVar("S", bound=Struct)


def fill(items: Iterable[S], *, limit: int, max_bytes: int = MAX_PAGE_BYTES) -> tuple[list[S], bool]:
    """At most `limit` of `items`, and whether more follow; fewer if their JSON passes `max_bytes`, but at least one.

    Takes one item more than it returns: a query behind `items` needs a limit of `limit` + 1.
    """
    found: list[S] = []
    size = 0
    for item in items:
        if len(found) == limit:
            return found, True
        size += len(encode(item)) + 1
        if found and size > max_bytes:
            return found, True
        found.append(item)
    return found, False
