"""Small images of each format, as their programs write them, and what stands for them on the wire."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, Final

from peen.wire.client import SentImage
from peen.wire.publish.golden import PIXEL

PNG: Final = PIXEL
OTHER_PNG: Final = PIXEL + b"\0"  # what stands behind the end of a PNG is nobody's business
JPEG: Final = b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAP//////////////////////////////////////////////////////////////////////////////////"
    "////wAALCAABAAEBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAP/EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AP//Z"
)
GIF: Final = b64decode("R0lGODdhAQABAIAAAAAAAAAAACwAAAAAAQABAAAIBAABBAQAOw==")
WEBP: Final = b64decode("UklGRh4AAABXRUJQVlA4TBEAAAAvAAAAAAdQjyLXo/+BiOh/AAA=")

IMAGES: Final = {"image/png": PNG, "image/jpeg": JPEG, "image/gif": GIF, "image/webp": WEBP}

MORE_IMAGES: Final = {
    "progressive JPEG": b64decode(
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAP//////////////////////////////////////////////////////////////////////////////"
        "////////wgALCAABAAEBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQAAAAF//8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQABBQJ/"
        "/8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQAGPwJ//8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQABPyF//9oACAEBAAAAEH//xAAUEAEA"
        "AAAAAAAAAAAAAAAAAAAA/9oACAEBAAE/EH//2Q=="
    ),
    "animated GIF": b64decode(
        "R0lGODlhAQABAIAAAAAAAAAAACH/C05FVFNDQVBFMi4wAwEAAAAsAAAAAAEAAQAACAQAAQQEADs="
    ),
    "WebP with losses": b64decode(
        "UklGRjAAAABXRUJQVlA4ICQAAABwAQCdASoBAAEADMDOJaACdAFAAAD+2iYRho1+LuxHGSQAAAA="
    ),
    "animated WebP": b64decode(
        "UklGRoQAAABXRUJQVlA4WAoAAAACAAAAAAAAAAAAQU5JTQYAAAAAAAAAAABBTk1GKgAAAAAAAAAAAAAAAAAAAAAAAAJWUDhMEQAAAC8AAAAAB1CP"
        "Itej/4GI6H8AAEFOTUYmAAAAAAAAAAAAAAAAAAAAAAAAAFZQOEwOAAAALwAAAAAHEBH9D0RE/wM="
    ),
    "animated PNG": b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAACGFjVEwAAAACAAAAAPONk3AAAAAaZmNUTAAAAAAAAAABAAAAAQAAAAAAAAAAAAAAAQAA"
        "a0r2gQAAAAxJREFUeJxjOCEnBwACtgEFNKZ1qgAAABpmY1RMAAAAAQAAAAEAAAABAAAAAAAAAAAAAAABAADwORxVAAAAEGZkQVQAAAACeJxjYGBg"
        "AAAABAABliEXTQAAAABJRU5ErkJggg=="
    ),
}  # fmt: skip
"""Other images of these formats, as they are met with."""


def on_wire(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    """An entry of `data.images`."""
    return {"mediaType": media_type, "data": b64encode(data).decode()}


def sent(*images: bytes) -> tuple[SentImage, ...]:
    return tuple(map(SentImage.of, images))
