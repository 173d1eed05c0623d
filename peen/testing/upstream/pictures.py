"""Images of requests, looked at as closely as providers do."""

from __future__ import annotations

import binascii
import hashlib
import re
from typing import Final

from peen.wire.image import image_fault, media_type_of
from peen.wire.records import ImageRef

_DATA_URL: Final = re.compile(r"data:(?P<type>[a-z]+/[a-z0-9.+-]+);base64,(?P<data>.*)", re.DOTALL)
MAX_IMAGE_BYTES: Final = 5 * 1024 * 1024


def seen_data_url(url: str) -> ImageRef:
    """What an image in a data URL is. Raises: ValueError as `seen_image` does."""
    found = _DATA_URL.fullmatch(url)
    if found is None:
        raise ValueError("only data URLs with base64 are served here")
    return seen_image(found["data"], declared=None)


def seen_image(encoded: str, *, declared: str | None) -> ImageRef:
    """What an image in base64 is; its bytes are not kept.

    Raises: ValueError, in the words of a provider, if it is none, broken, too large, or not what was `declared`.
    """
    try:
        data = binascii.a2b_base64(encoded, strict_mode=True)
    except ValueError as error:
        raise ValueError("image data is not valid base64") from error
    media_type = media_type_of(data)
    if media_type is None:
        raise ValueError("unsupported image: the formats are png, jpeg, gif and webp")
    if declared not in (None, media_type):
        raise ValueError(f"the image was specified using the {declared} media type, but it appears to be {media_type}")
    if len(data) > MAX_IMAGE_BYTES:
        raise ValueError(f"image exceeds the maximum of {MAX_IMAGE_BYTES} bytes: {len(data)} bytes")
    if image_fault(data, media_type):
        raise ValueError("could not process image")
    return ImageRef(media_type=media_type, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
