"""Images in requests: their bytes go in last, and an error that is about one of them says which.

A body is kept between rounds with a mark in the place of each image, since the bytes are large and needed only while
a request is sent. No JSON holds the byte that a mark begins and ends with.
"""

from __future__ import annotations

import hashlib
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from peen.errors import ModelError
from peen.wire.records import ImageRef, MessageRecord

_MARK: Final = re.compile(rb"\x00([0-9a-f]{64})\x00")
_PLACE: Final = re.compile(r"\b(messages|input)\W{1,3}(\d+)\W{1,4}content\W{1,3}(\d+)")
# The name of a model may hold the word as well, between hyphens.
_ABOUT_IMAGE: Final = re.compile(r"(?<![\w-])images?(?![\w-])|image_url|image_parse|_image\b", re.IGNORECASE)
_NO_EYES: Final = re.compile(
    r"(not|n't) (currently )?(support|accept|take|allow|have)\w* (an? |any )?(image|vision|multimodal)s?\b"
    r"(?! (format|type|url|size|larger|of|with))"
    r"|(image|vision|multimodal)s?( input\w*| content)? (is|are) (not |un)(supported|accepted|available)"
    r"|not a (multimodal|vision)|text[- ]only model",
    re.IGNORECASE,
)
_STATUSES: Final = (None, 400, 413, 415, 422)
"""Of an answer that judges what was sent; an error inside a stream may have none."""
_decode: Final = msgspec.json.Decoder().decode


def mark(image: ImageRef) -> bytes:
    """What stands between the quotes where the base64 of this image belongs."""
    return b"\x00%b\x00" % image.sha256.encode()


def data_url(image: ImageRef) -> bytes:
    """A data URL of this image, with its mark."""
    return b"data:%b;base64,%b" % (image.media_type.encode(), mark(image))


def filled(body: bytes, images: Mapping[str, bytes]) -> bytes:
    """`body` with the images in the place of their marks. Raises: KeyError for one that is not among `images`."""
    if b"\x00" not in body:
        return body
    return _MARK.sub(lambda found: b2a_base64(images[found[1].decode()], newline=False), body)


def named(error: ModelError, body: bytes) -> ModelError:
    """The same error; where its text points to an image of the request `body`, `images` holds that one's hash."""
    place = _PLACE.search(str(error)) if _is_refusal(error) else None
    if place is not None:
        try:
            part = _decode(body)[place[1]][int(place[2])]["content"][int(place[3])]
            error.images = (hashlib.sha256(_bytes_of(part)).hexdigest(),)
        except (msgspec.DecodeError, LookupError, TypeError, ValueError):
            pass  # it points to something else
    return error


def refused_images(error: ModelError, messages: Sequence[MessageRecord]) -> list[ImageRef]:
    """Which images of a request the provider has refused; empty if its error is about something else.

    Where it does not point to one, those that no answer has come to yet, or else all: one of them it must be, and
    a conversation with it would fail for ever.
    """
    held = {image.sha256: image for message in messages for image in message.images}
    if not held or not _is_refusal(error) or takes_none(error):
        return []
    pointed = [held[sha256] for sha256 in error.images if sha256 in held]
    if pointed:
        return pointed
    answered = max((at for at, message in enumerate(messages) if message.role == "assistant"), default=-1)
    new = {image.sha256: image for message in messages[answered + 1 :] for image in message.images}
    return list((new or held).values())


def takes_none(error: ModelError) -> bool:
    """Whether the provider says that its model takes no images at all, which is no fault of any."""
    return _is_refusal(error) and not error.images and _NO_EYES.search(str(error)) is not None


def _is_refusal(error: ModelError) -> bool:
    judges = error.kind == "invalid_request" and error.http_status in _STATUSES
    return judges and _ABOUT_IMAGE.search(str(error)) is not None


def _bytes_of(part: dict[str, Any]) -> bytes:
    """Of an image in any dialect. Raises: LookupError, TypeError, ValueError if it is none."""
    if "source" in part:
        return a2b_base64(part["source"]["data"])
    url = part["image_url"]
    text: str = url if isinstance(url, str) else url["url"]
    return a2b_base64(text.partition(",")[2])
