"""Images: which bytes are one, and what is wrong with those that only begin like one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_kit import GIF, IMAGES, JPEG, MORE_IMAGES, PNG, WEBP

from peen.wire.image import checked_media_type, image_fault, media_type_of
from peen.wire.imageparts import MOST_PARTS

WHOLE = {**IMAGES, **MORE_IMAGES}
SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"GIF87a", b"RIFF\x1e\0\0\0WEBP")
PNG_START = PNG[:33]


def fault(data: bytes) -> str | None:
    media_type = media_type_of(data)
    assert media_type is not None
    return image_fault(data, media_type)


@pytest.mark.parametrize("data", WHOLE.values(), ids=WHOLE)
def test_whole_images_of_every_kind_pass_and_so_do_bytes_behind_their_end(data: bytes) -> None:
    assert fault(data) is None
    assert fault(data + b"\0\xffand more") is None


@pytest.mark.parametrize("data", WHOLE.values(), ids=WHOLE)
def test_an_image_that_ends_anywhere_before_its_end_is_broken(data: bytes) -> None:
    passed = [size for size in range(1, len(data)) if media_type_of(data[:size]) and fault(data[:size]) is None]

    # The last byte of a WebP may be padding, which some programs leave out.
    assert [size for size in passed if not (data.startswith(b"RIFF") and size == len(data) - 1)] == []


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (SIGNATURES[0], "cut off: nothing follows its signature"),
        (SIGNATURES[0] + b"and then some text follows", "no header (IHDR)"),
        (PNG_START[:16] + bytes(4) + PNG[20:], "width or height is 0"),
        (PNG_START[:20] + bytes(4) + PNG[24:], "width or height is 0"),
        (PNG_START[:24] + b"\x03" + PNG[25:], "its header (IHDR) is none of a PNG"),
        (PNG_START + b"\0\0\0\0IEND\xaeB`\x82", "it has no pixels (IDAT)"),
        (PNG_START + b"\0\0\0\0!!!!" + PNG[33:], "at byte 33 is no chunk of a PNG"),
        (PNG[:-12], "cut off: it ends without its last chunk (IEND)"),
        (PNG[:45], "cut off: its chunk IDAT has 13 bytes"),
        (SIGNATURES[1], "cut off: it ends in front of its pixels"),
        (SIGNATURES[1] + b"\xe0\x00\x10 and then some text", "cut off: it ends in front of its pixels"),
        (JPEG[:-2], "cut off: it ends without its last marker (EOI)"),
        (JPEG[:20] + b"\xff\xd9" + JPEG[20:], "it has no pixels (SOS)"),
        (JPEG.replace(b"\xff\xc0\0\x0b\x08\0\x01", b"\xff\xc0\0\x0b\x08\0\0"), "width or height is 0"),
        (JPEG.replace(b"\xff\xc0", b"\xff\xfe"), "tells its size (SOF)"),
        (JPEG[:22], "cut off: it ends inside its segment at byte 20"),
        (JPEG.replace(b"\xff\xdb\x00", b"\xff\xdb\xff"), "cut off: its segment at byte 20 has 65347 bytes"),
        (SIGNATURES[2], "cut off: it ends in its header"),
        (GIF[:6] + bytes(2) + GIF[8:], "width or height is 0"),
        (GIF[:-1], "cut off: it ends without its trailer"),
        (GIF[:19] + b";", "it has no image"),
        (b"GIF89a\x01\0\x01\0\0\0\0what is this", "at byte 13 is no block of a GIF"),
        (SIGNATURES[4], "cut off: it says that it has 38 bytes, and it has 12"),
        (b"RIFF\x04\0\0\0WEBP", "no image follows its signature"),
        (b"RIFF\x14\0\0\0WEBPtext, not an image", "no image follows its signature"),
        (b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0" + bytes(10), "it has no image"),
        (WEBP[:20] + b"\0" + WEBP[21:], "its image (VP8L) has no header"),
        (b"RIFF\x16\0\0\0WEBPVP8 \x0a\0\0\0" + bytes(10), "its image (VP8) has no header"),
        (b"RIFF\x16\0\0\0WEBPVP8 \x0a\0\0\0\0\0\0\x9d\x01\x2a" + bytes(4), "width or height is 0"),
    ],
)  # fmt: skip
def test_what_only_begins_like_an_image_is_told_apart_and_why(data: bytes, why: str) -> None:
    found = fault(data)

    assert found is not None
    assert why in found


def test_the_error_names_type_fault_and_remedy() -> None:
    with pytest.raises(ValueError, match="image/png") as refused:
        checked_media_type(PNG[:-1])

    assert str(refused.value) == (
        "is a broken image/png: it is cut off: its chunk IEND has 0 bytes, and the file ends before; "
        "send the whole file, or save the image again as PNG, JPEG, GIF or WebP"
    )


@given(st.sampled_from(SIGNATURES), st.binary(max_size=300))
def test_any_bytes_behind_a_signature_give_an_answer(signature: bytes, rest: bytes) -> None:
    found = fault(signature + rest)

    assert found is None or found


@given(st.sampled_from(list(WHOLE.values())), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8))
def test_any_change_of_an_image_gives_an_answer(data: bytes, changes: list[tuple[int, int]]) -> None:
    changed = bytearray(data)
    for at, byte in changes:
        changed[at % len(data)] = byte
    media_type = media_type_of(bytes(changed))

    assert media_type is None or image_fault(bytes(changed), media_type) != ""


ENDLESS = MOST_PARTS + 1
ENDLESS_WEBP = b"VP8X\x0a\0\0\0" + bytes(10) + b"abcd\0\0\0\0" * ENDLESS


@pytest.mark.parametrize(
    "data",
    [
        GIF[:19] + b"!\xfe" + b"\x01a" * ENDLESS,
        GIF[:19] + bytes(ENDLESS),
        SIGNATURES[1] + b"\xd8\xff" * ENDLESS,
        PNG_START + b"\0\0\0\0IDATabcd" * ENDLESS,
        b"RIFF"
        + (22 + 8 * ENDLESS).to_bytes(4, "little")
        + b"WEBPVP8X\x0a\0\0\0"
        + bytes(10)
        + b"abcd\0\0\0\0" * ENDLESS,
    ],
    ids=["blocks of a GIF", "ends of blocks", "JPEG", "PNG", "WebP"],
)
def test_a_file_of_more_parts_than_are_looked_at_passes_whatever_follows(data: bytes) -> None:
    assert fault(data) is None
