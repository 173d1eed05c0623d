"""Formats of images, told by their first bytes, and whether the rest of the bytes is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from peen.wire.imageparts import gif_fault, jpeg_fault, png_fault, webp_fault

MediaType = Literal["image/png", "image/jpeg", "image/gif", "image/webp"]

MEDIA_TYPES: Final[tuple[MediaType, ...]] = ("image/png", "image/jpeg", "image/gif", "image/webp")
FORMATS: Final = "PNG, JPEG, GIF or WebP"
_FAULTS: Final[dict[MediaType, Callable[[bytes], str | None]]] = {
    "image/png": png_fault,
    "image/jpeg": jpeg_fault,
    "image/gif": gif_fault,
    "image/webp": webp_fault,
}


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


def image_fault(data: bytes, media_type: MediaType) -> str | None:
    """Why these bytes, which begin as this type does, cannot be an image of it; None if nothing speaks against it.

    A clause such as `it is cut off: it ends without its last chunk (IEND)`. Pixels are not looked at.
    """
    return _FAULTS[media_type](data)


def checked_media_type(data: bytes) -> MediaType:
    """What these bytes are. Raises: ValueError if they are no image that a model could be shown, with the remedy."""
    media_type = media_type_of(data)
    if media_type is None:
        raise ValueError(f"is no image in the format {FORMATS}")
    if fault := image_fault(data, media_type):
        raise ValueError(
            f"is a broken {media_type}: {fault}; send the whole file, or save the image again as {FORMATS}"
        )
    return media_type


def known_media_type(text: str) -> MediaType | None:
    """`text` itself if it names one of the four formats."""
    return next((media_type for media_type in MEDIA_TYPES if media_type == text), None)
