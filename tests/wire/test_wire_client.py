from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_kit import GIF, IMAGES, JPEG, OTHER_PNG, PNG, on_wire

from peen.wire.client import (
    ClientLimits,
    FrameRefused,
    content_digest,
    decode_client_frame,
    encode_client_frame,
    max_frame_bytes,
)

ID = "0f0f0f0f-0f0f-4f0f-8f0f-0f0f0f0f0f0f"
SESSION = "11111111-1111-4111-8111-111111111111"
LIMITS = ClientLimits()


def frame(data: dict[str, Any] | None = None, /, **changes: Any) -> str:
    whole = {
        "id": ID,
        "type": "message.send",
        "data": {"message": "hello"} if data is None else data,
        "metadata": {"sessionId": SESSION},
        "timestamp": 0,
        "triggeredBy": None,
    }
    return json.dumps({key: value for key, value in {**whole, **changes}.items() if value != "absent"})


def refusal(text: str | bytes, limits: ClientLimits = LIMITS) -> FrameRefused:
    with pytest.raises(FrameRefused) as caught:
        decode_client_frame(text, limits)
    return caught.value


def test_a_plain_message_is_decoded() -> None:
    message = decode_client_frame(frame(), LIMITS)

    assert (message.id, message.session_id, message.message) == (ID, SESSION, "hello")
    assert (message.model, message.reasoning_effort, message.system_prompt) == (None, None, None)


def test_settings_of_the_turn_are_kept() -> None:
    data = {
        "message": "hello",
        "model": "scripted/demo",
        "reasoningEffort": "xhigh",
        "systemPrompt": {"mode": "append", "content": "Be brief."},
    }

    message = decode_client_frame(frame(data), LIMITS)

    assert (message.model, message.reasoning_effort) == ("scripted/demo", "xhigh")
    assert message.system_prompt is not None
    assert (message.system_prompt.mode, message.system_prompt.content) == ("append", "Be brief.")


def test_timestamp_and_triggered_by_may_be_left_out_and_bytes_are_read_like_text() -> None:
    assert decode_client_frame(frame(timestamp="absent", triggeredBy="absent").encode(), LIMITS).message == "hello"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (frame({}), "data.message: is required"),
        (frame({"message": ""}), "data.message: must not be empty"),
        (frame({"message": 7}), "data.message: expected `str`, got `int`"),
        (frame({"message": "x", "colour": "red"}), "data.colour: is not a known field"),
        (frame({"message": "x", "model": ""}), "data.model: must not be empty; leave it out for the default model"),
        (
            frame({"message": "x", "reasoningEffort": "huge"}),
            "data.reasoningEffort: must be one of high, low, max, medium, minimal, xhigh",
        ),
        (
            frame({"message": "x", "systemPrompt": {"mode": "prepend", "content": "y"}}),
            "data.systemPrompt.mode: must be one of append, replace",
        ),
        (frame({"message": "x", "systemPrompt": {"mode": "append"}}), "data.systemPrompt.content: is required"),
        (frame({"message": "x", "systemPrompt": {"content": "y"}}), "data.systemPrompt.mode: is required"),
        (
            frame({"message": "x", "systemPrompt": {"mode": "replace", "content": ""}}),
            "data.systemPrompt.content: must not be empty",
        ),
        (frame({"message": "x", "to": ID}), "data.to: messages to a child agent are not part of this release"),
        (frame({"message": "x", "system": True}), "data.system: the system session is not part of this release"),
        (frame(id=ID.upper()), "id: must be a version 4 UUID in lower case with dashes"),
        (frame(id="absent"), "id: is required"),
        (frame(type="message.stop"), "type: a client sends message.send and nothing else"),
        (frame(metadata={}), "metadata.sessionId: is required"),
        (frame(metadata={"sessionId": "me"}), "metadata.sessionId: must be a version 4 UUID in lower case with dashes"),
        (frame(timestamp="now"), "timestamp: expected `int | float | null`, got `str`"),
        (frame(triggeredBy=ID), "triggeredBy: expected `null`, got `str`"),
        (frame(extra=1), "extra: is not a known field"),
        ("[]", "frame: expected `object`, got `array`"),
        ("", "frame: is not one valid JSON value (input data was truncated)"),
    ],
)
def test_a_wrong_frame_is_refused_and_its_field_named(text: str, problem: str) -> None:
    assert refusal(text).message == problem


def test_workspace_is_refused_with_the_way_that_works() -> None:
    assert "sessions/open" in refusal(frame({"message": "x", "workspace": "/srv"})).message


def test_two_json_values_are_not_one() -> None:
    assert refusal(frame() + frame()).message.startswith("frame: is not one valid JSON value")


def test_what_is_known_of_a_wrong_frame_is_kept() -> None:
    wrong_data = refusal(frame({}))
    no_session = refusal(frame({}, metadata={}))
    no_json = refusal(frame()[:-1])

    assert (wrong_data.frame_id, wrong_data.session_id) == (ID, SESSION)
    assert (no_session.frame_id, no_session.session_id) == (ID, None)
    assert (no_json.frame_id, no_json.session_id) == (None, None)


def test_limits_count_bytes_of_utf_8() -> None:
    limits = ClientLimits(max_message_bytes=4, max_system_prompt_bytes=3)

    assert decode_client_frame(frame({"message": "éé"}), limits).message == "éé"
    assert refusal(frame({"message": "ééa"}), limits).message == "data.message: is larger than the limit of 4 bytes"
    long_prompt = {"message": "x", "systemPrompt": {"mode": "append", "content": "éé"}}
    assert (
        refusal(frame(long_prompt), limits).message == "data.systemPrompt.content: is larger than the limit of 3 bytes"
    )


ALLOWED = st.characters(exclude_categories=["Cs"], exclude_characters=":")
"""A colon may name a skill, which is refused."""


@given(st.text(ALLOWED, min_size=1, max_size=200).filter(str.strip), st.booleans())
def test_every_allowed_message_fits_into_the_largest_frame(text: str, ascii_only: bool) -> None:
    size = len(text.encode())
    limits = ClientLimits(max_message_bytes=size, max_system_prompt_bytes=size)
    data = {"message": text, "systemPrompt": {"mode": "append", "content": text}}
    sent = json.dumps(json.loads(frame(data)), ensure_ascii=ascii_only)

    assert decode_client_frame(sent, limits).message == text
    assert len(sent.encode()) <= max_frame_bytes(limits)


@given(
    st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(repr).map(str.encode)
)
def test_no_bytes_make_anything_but_a_refusal(data: bytes) -> None:
    assert refusal(data).code == "VALIDATION_FAILED"


@pytest.mark.parametrize("place", ['{"id":%s}', '{"id":"x","data":{"message":"a","to":%s}}', '{"zzz":%s}'])
def test_deep_nesting_is_refused_like_anything_else(place: str) -> None:
    assert refusal(place % ("[" * 50_000 + "]" * 50_000)).code == "VALIDATION_FAILED"


# --- images


@pytest.mark.parametrize(("media_type", "data"), IMAGES.items())
def test_an_image_of_each_format_is_decoded_with_its_hash(media_type: str, data: bytes) -> None:
    (image,) = decode_client_frame(frame({"message": "x", "images": [on_wire(data, media_type)]}), LIMITS).images

    assert (image.media_type, image.data) == (media_type, data)
    assert image.sha256 == hashlib.sha256(data).hexdigest()
    assert (image.ref.size_bytes, image.ref.media_type) == (len(data), media_type)


def test_a_message_with_images_is_written_as_it_is_read() -> None:
    message = decode_client_frame(frame({"message": "x", "images": [on_wire(PNG), on_wire(GIF, "image/gif")]}), LIMITS)

    assert decode_client_frame(encode_client_frame(message, 5), LIMITS) == message


def test_no_images_are_as_good_as_none() -> None:
    assert decode_client_frame(frame({"message": "x", "images": []}), LIMITS).images == ()
    assert decode_client_frame(frame({"message": "x", "images": None}), LIMITS).images == ()


@pytest.mark.parametrize(
    ("images", "problem"),
    [
        ("x", "data.images: expected `array | null`, got `str`"),
        ([{"mediaType": "image/png"}], "data.images[0].data: is required"),
        ([{"data": "AAAA"}], "data.images[0].mediaType: is required"),
        ([{**on_wire(PNG), "url": "http://x"}], "data.images[0].url: is not a known field"),
        (
            [on_wire(PNG), on_wire(PNG, "image/bmp")],
            "data.images[1].mediaType: must be one of image/png, image/jpeg, image/gif, image/webp",
        ),
        (
            [on_wire(PNG), on_wire(JPEG)],
            "data.images[1].mediaType: says image/png, but the bytes are image/jpeg",
        ),
        ([on_wire(b"BM not one of ours")], "data.images[0].data: is no image in the format PNG, JPEG, GIF or WebP"),
        ([on_wire(b"")], "data.images[0].data: is no image in the format PNG, JPEG, GIF or WebP"),
        (
            [on_wire(PNG), on_wire(GIF[:-1], "image/gif")],
            "data.images[1].data: is a broken image/gif: it is cut off: it ends without its trailer; "
            "send the whole file, or save the image again as PNG, JPEG, GIF or WebP",
        ),
        (
            [{"mediaType": "image/png", "data": "iVBOR w0KGgo="}],
            "data.images[0].data: must be base64 with padding and without white space",
        ),
        (
            [{"mediaType": "image/png", "data": "iVBORw0KGg"}],
            "data.images[0].data: must be base64 with padding and without white space",
        ),
        (
            [{"mediaType": "image/png", "data": "data:image/png;base64,iVBORw0KGgo="}],
            "data.images[0].data: must be base64 with padding and without white space",
        ),
        (
            [on_wire(PNG)] * 5,
            "data.images: has 5 images; a message may have 4 (PEEN_MAX_IMAGES_PER_MESSAGE)",
        ),
    ],
)
def test_a_wrong_image_is_refused_and_its_place_named(images: Any, problem: str) -> None:
    assert refusal(frame({"message": "x", "images": images})).message == problem


def test_the_limit_of_an_image_counts_its_own_bytes() -> None:
    limits = ClientLimits(max_image_bytes=len(PNG))

    decode_client_frame(frame({"message": "x", "images": [on_wire(PNG)]}), limits)
    too_large = refusal(frame({"message": "x", "images": [on_wire(OTHER_PNG)]}), limits)

    assert too_large.message == "data.images[0].data: has 71 bytes, more than the limit of 70 (PEEN_MAX_IMAGE_BYTES)"


def test_the_digest_covers_images_and_their_order_and_is_as_it_was_without_them() -> None:
    def digest(*images: dict[str, Any]) -> bytes:
        return content_digest(decode_client_frame(frame({"message": "x", "images": list(images)}), LIMITS))

    png, other = on_wire(PNG), on_wire(OTHER_PNG)

    assert digest(png) == digest(png)
    assert len({digest(), digest(png), digest(other), digest(png, other), digest(other, png), digest(png, png)}) == 6
    as_released = [SESSION, "x", None, None, None]
    assert digest() == hashlib.sha256(json.dumps(as_released, separators=(",", ":")).encode()).digest()


def test_the_digest_tells_content_apart_but_not_ids() -> None:
    first = decode_client_frame(frame(), LIMITS)
    again = decode_client_frame(frame(id="1f1f1f1f-1f1f-4f1f-8f1f-1f1f1f1f1f1f", timestamp=5), LIMITS)
    other = decode_client_frame(frame({"message": "hello", "reasoningEffort": "low"}), LIMITS)

    assert content_digest(first) == content_digest(again)
    assert content_digest(first) != content_digest(other)
    assert len(content_digest(first)) == 32
