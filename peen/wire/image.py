"""Formats of images, told by their first bytes."""

from __future__ import annotations

from typing import Final, Literal

MediaType = Literal["image/png", "image/jpeg", "image/gif", "image/webp"]

MEDIA_TYPES: Final[tuple[MediaType, ...]] = ("image/png", "image/jpeg", "image/gif", "image/webp")
FORMATS: Final = "PNG, JPEG, GIF or WebP"


def media_type_of(data: bytes) -> MediaType | None:
    """What these bytes are, going by how they begin; None for anything but the four formats that models take."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def known_media_type(text: str) -> MediaType | None:
    """`text` itself if it names one of the four formats."""
    return next((media_type for media_type in MEDIA_TYPES if media_type == text), None)
