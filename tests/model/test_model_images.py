"""Images in request bodies of both dialects, and errors that are about one of them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_kit import GIF, IMAGES, JPEG, OTHER_PNG, PNG, sent

from peen.errors import ModelError
from peen.model.anthropicbody import MessageBodies
from peen.model.chatbody import ChatBodies
from peen.model.images import filled, mark, named, refused_images
from peen.model.refusal import status_error
from peen.model.responsesbody import ResponsesBodies
from peen.model.stream import ModelRequest
from peen.wire.client import SentImage
from peen.wire.records import ImageRef, MessageRecord


def ref(data: bytes) -> ImageRef:
    return SentImage.of(data).ref


def user(text: str, *images: bytes) -> MessageRecord:
    return MessageRecord(role="user", content=text, images=[ref(data) for data in images])


def said(text: str) -> MessageRecord:
    return MessageRecord(role="assistant", content=text)


def request(*messages: MessageRecord) -> ModelRequest:
    known = {image.sha256: image.data for image in sent(*IMAGES.values(), OTHER_PNG)}
    return ModelRequest(model_id="m", system="be good", messages=list(messages), images=known)


def chat(*messages: MessageRecord, bodies: ChatBodies | None = None) -> bytes:
    return (bodies or ChatBodies()).body(request(*messages), None)


def messages_api(*messages: MessageRecord, bodies: MessageBodies | None = None) -> bytes:
    bodies = bodies or MessageBodies("up")
    asked = request(*messages)
    return bodies.body(asked, bodies.conversation(asked), {"model": "m", "max_tokens": 100})


def block(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": encoded}}


def part(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{base64.b64encode(data).decode()}"}}


def unmarked(body: bytes) -> list[Any]:
    """Blocks of all messages, without the marks of the cache."""
    return [
        [{name: value for name, value in each.items() if name != "cache_control"} for each in message["content"]]
        for message in json.loads(body)["messages"]
    ]


# --- bodies


def test_chat_completions_get_data_urls_behind_the_text() -> None:
    body = json.loads(chat(user("look", PNG, GIF), said("a cat"), user("sure?")))

    assert body["messages"] == [
        {"role": "system", "content": "be good"},
        {"role": "user", "content": [{"type": "text", "text": "look"}, part(PNG), part(GIF, "image/gif")]},
        {"role": "assistant", "content": "a cat"},
        {"role": "user", "content": "sure?"},
    ]


def test_the_messages_api_gets_base64_blocks_behind_the_text() -> None:
    body = messages_api(user("look", PNG, JPEG), said("a cat"), user("sure?"))

    assert unmarked(body) == [
        [{"type": "text", "text": "look"}, block(PNG), block(JPEG, "image/jpeg")],
        [{"type": "text", "text": "a cat"}],
        [{"type": "text", "text": "sure?"}],
    ]


def test_a_mark_of_the_cache_may_stand_on_an_image() -> None:
    (message,) = json.loads(messages_api(user("look", PNG)))["messages"]

    assert message["content"][-1] == {**block(PNG), "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize("bodies", [ChatBodies, lambda: MessageBodies("up")])
def test_a_round_does_not_change_what_was_sent_before_it(bodies: Any) -> None:
    kept, build = bodies(), chat if bodies is ChatBodies else messages_api
    messages = [user("look", PNG), said("a cat")]
    first = build(*messages, user("and this?", GIF), bodies=kept)
    second = build(*messages, user("and this?", GIF), said("a dog"), user("so?"), bodies=kept)
    anew = build(*messages, user("and this?", GIF), said("a dog"), user("so?"))

    assert second == anew
    before, after = json.loads(first)["messages"], json.loads(second)["messages"]
    if build is chat:
        assert after[: len(before)] == before
    else:
        assert unmarked(second)[: len(before)] == unmarked(first)


def test_what_is_kept_between_rounds_does_not_hold_the_bytes() -> None:
    large = PNG + b"\xff" * 1_000_000
    asked = ModelRequest(model_id="m", system="", messages=[user("look", large)], images={ref(large).sha256: large})
    bodies, other = ChatBodies(), MessageBodies("up")

    assert len(bodies.body(asked, None)) > 1_300_000
    assert len(other.body(asked, other.conversation(asked), {})) > 1_300_000
    assert len(bodies._conversations._kept[0].json) < 1_000
    assert other._kept[0].size < 1_000


@given(st.text(max_size=100))
def test_no_text_is_taken_for_the_mark_of_an_image(text: str) -> None:
    tricky = text + mark(ref(PNG)).decode()
    body = json.loads(chat(user("x" + tricky, PNG)))

    assert body["messages"][1]["content"] == [{"type": "text", "text": "x" + tricky}, part(PNG)]


def test_an_image_that_is_not_there_is_a_fault_of_ours() -> None:
    with pytest.raises(KeyError):
        filled(b'"' + mark(ref(PNG)) + b'"', {})


# --- errors


def error(text: str, *, kind: str = "invalid_request", status: int | None = 400) -> ModelError:
    return ModelError(text, kind=kind, retryable=False, status=status)


CONVERSATION = (user("look", PNG), said("a cat"), user("and these?", GIF, JPEG))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6 bytes > 5 bytes", PNG),
        ("messages.2.content.2.image.source.base64.data: At least one of the image dimensions exceed 8000", JPEG),
    ],
)
def test_the_place_that_the_messages_api_names_is_an_image(text: str, wanted: bytes) -> None:
    assert named(error(text), messages_api(*CONVERSATION)).images == (ref(wanted).sha256,)


@pytest.mark.parametrize(
    "text",
    [
        "Invalid image data. (messages[3].content[1].image_url)",
        "Invalid 'messages[3].content[1].image_url.url': unsupported image",
        "The image is broken (messages.[3].content.[1].image_url)",
    ],
)
def test_the_place_that_chat_completions_name_is_an_image(text: str) -> None:
    assert named(error(text), chat(*CONVERSATION)).images == (ref(GIF).sha256,)


def responses(*messages: MessageRecord) -> bytes:
    return ResponsesBodies("up").body(request(*messages), None)


def test_the_responses_api_gets_data_urls_behind_the_text() -> None:
    first, second, _ = json.loads(responses(*CONVERSATION))["input"]

    assert first == {
        "type": "message", "role": "user",
        "content": [
            {"type": "input_text", "text": "look"},
            {"type": "input_image", "image_url": part(PNG)["image_url"]["url"]},
        ],
    }  # fmt: skip
    assert second["content"] == "a cat"


def test_the_place_that_the_responses_api_names_is_an_image() -> None:
    told = error("Invalid 'input[2].content[1].image_url': unsupported image")

    assert named(told, responses(*CONVERSATION)).images == (ref(GIF).sha256,)


@pytest.mark.parametrize(
    "text",
    [
        "messages.0.content.0: the image is bad",  # that one is text
        "messages.9.content.1.image: too large",
        "messages.0.content.1: text content blocks must be non-empty",
        "Could not process image",
    ],
)
def test_a_place_without_an_image_points_to_none(text: str) -> None:
    assert named(error(text), messages_api(*CONVERSATION)).images == ()


def test_the_parameter_that_a_provider_names_beside_its_words_is_part_of_the_error() -> None:
    body = {"error": {"message": "Invalid image data", "type": "invalid_request_error", "code": "bad_image",
                      "param": "messages[3].content[1].image_url"}}  # fmt: skip
    told = status_error(400, {}, json.dumps(body).encode(), now_ms=0, place="p")

    assert named(told, chat(*CONVERSATION)).images == (ref(GIF).sha256,)


def test_a_named_image_is_refused_and_no_other() -> None:
    told = error("image too large")
    told.images = (ref(GIF).sha256,)

    assert refused_images(told, CONVERSATION) == [ref(GIF)]


def test_without_a_name_those_since_the_last_answer_are_refused_or_else_all() -> None:
    told = error("Could not process image")

    assert refused_images(told, CONVERSATION) == [ref(GIF), ref(JPEG)]
    assert refused_images(told, [*CONVERSATION, said("dogs"), user("so?")]) == [ref(PNG), ref(GIF), ref(JPEG)]


@pytest.mark.parametrize(
    "told",
    [
        error("max_tokens is too large"),
        error("the image host is overloaded", kind="server_error"),
        error("the images are more than the context window", kind="context_length_exceeded"),
        error("imagine that"),
        error("This model does not support image input"),
        error("image input is not supported"),
        error("model gemini-2.5-flash-image is overworked"),
        error("no model can see an image", status=404),
    ],
)
def test_other_errors_are_about_no_image(told: ModelError) -> None:
    assert refused_images(told, CONVERSATION) == []


@pytest.mark.parametrize(
    "told", ["we do not support image formats like BMP", "does not accept images larger than 5 MB"]
)
def test_a_rule_that_an_image_breaks_is_about_that_image(told: str) -> None:
    assert refused_images(error(told), CONVERSATION) == [ref(GIF), ref(JPEG)]


def test_an_error_inside_a_stream_may_be_about_an_image_too() -> None:
    assert refused_images(error("Invalid image data", status=None), CONVERSATION) == [ref(GIF), ref(JPEG)]


def test_a_conversation_without_images_has_none_to_refuse() -> None:
    assert refused_images(error("image input is not supported"), [user("look")]) == []
