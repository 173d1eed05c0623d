"""Small images of each format, as their programs write them, and what stands for them on the wire."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

from peen.wire.client import SentImage
from peen.wire.publish.golden import PIXEL

PNG: Final = PIXEL
OTHER_PNG: Final = PIXEL + b"\0"  # what stands behind the end of a PNG is nobody's business
JPEG: Final = bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffd9")
GIF: Final = b"GIF89a\x01\0\x01\0\0\0\0;"
WEBP: Final = b"RIFF\x0e\0\0\0WEBPVP8L\x02\0\0\0\x2f\0"

IMAGES: Final = {"image/png": PNG, "image/jpeg": JPEG, "image/gif": GIF, "image/webp": WEBP}


def on_wire(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    """An entry of `data.images`."""
    return {"mediaType": media_type, "data": b64encode(data).decode()}


def sent(*images: bytes) -> tuple[SentImage, ...]:
    return tuple(map(SentImage.of, images))
