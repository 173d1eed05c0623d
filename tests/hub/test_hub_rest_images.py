"""Images over REST: what messages name, and the bytes behind the names."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from engine_kit import Attempt, PlayedUpstream, asks, says, work
from image_kit import GIF, IMAGES, PNG
from rest_kit import ROUTER, Office, engine_in, office
from world_kit import Home, make_home

from peen.errors import ModelError
from peen.hub.request import ApiRequest, ApiResponse
from peen.hub.router import dispatch
from peen.store.blobs.text import Blob

REFUSED = ModelError("image too large", kind="invalid_request", retryable=False, status=400)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def named(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    return {"mediaType": media_type, "sizeBytes": len(data), "sha256": sha256(data)}


async def talked(own: Office, *attempts: Attempt, images: tuple[bytes, ...] = (PNG, GIF)) -> Home:
    """A session with one message with images."""
    worker = await engine_in(own, PlayedUpstream(*attempts))
    await worker.run_turn("look", images=images)
    return worker.home


async def fetch(own: Office, home: Home | str, data: bytes, *, method: str = "GET", accept: str = "*/*") -> ApiResponse:
    headers = {"x-session-id": home if isinstance(home, str) else home.uuid, "accept": accept}
    request = ApiRequest(method, f"/api/v1/session/images/{sha256(data)}", headers=headers)
    return await dispatch(ROUTER, own.api, request, own.api.entropy)


async def test_messages_name_their_images_and_others_have_no_such_member(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = await talked(own, says("two cats"))
        items = (await own.get("/messages", home))["items"]

    assert items[0]["images"] == [named(PNG), named(GIF, "image/gif")]
    assert "images" not in items[1]


@pytest.mark.parametrize(("media_type", "data"), IMAGES.items())
async def test_the_bytes_of_an_image_come_as_they_were_sent(tmp_path: Path, media_type: str, data: bytes) -> None:
    async with office(tmp_path) as own:
        home = await talked(own, says("a cat"), images=(data,))
        answer = await fetch(own, home, data, accept="image/*")

    assert (answer.status, answer.body) == (200, data)
    assert answer.headers["content-type"] == media_type
    assert answer.headers["cache-control"] == "private, max-age=3600, immutable"
    assert answer.headers["vary"] == "X-Session-ID, Authorization"
    assert answer.headers["x-session-id"] == home.uuid


async def test_what_a_tool_has_read_is_named_and_readable_too(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = await talked(own, asks(("photograph", work("a.png"))), says("a cat"), images=())
        items = (await own.get("/messages", home))["items"]
        answer = await fetch(own, home, PNG)

    (shown,) = [item for item in items if "images" in item]
    assert (shown["injected"], shown["injectedKind"], shown["images"]) == (True, "image", [named(PNG)])
    assert answer.body == PNG


async def test_another_session_has_no_such_image_even_if_it_knows_the_hash(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = await talked(own, says("a cat"))
        other = await make_home(own.database, 2)
        answers = [await fetch(own, other, PNG), await fetch(own, home, b"nothing"), await fetch(own, "x" * 9, PNG)]

    assert [answer.status for answer in answers] == [404, 404, 400]
    assert b'"code":"NOT_FOUND"' in answers[0].body


async def test_what_else_is_stored_by_its_hash_is_no_image(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = await talked(own, says("a cat"))
        secret = b"<script>" * 100
        digest = hashlib.sha256(secret).digest()
        blobs = [Blob(digest, secret)]
        await own.database.write(partial(own.blobs.save, session_no=home.no, blobs=blobs))

        assert (await fetch(own, home, secret)).status == 404


@pytest.mark.parametrize("name", ["short", "AB" * 32, "zz" * 32])
async def test_a_name_that_is_no_hash_is_refused(tmp_path: Path, name: str) -> None:
    async with office(tmp_path) as own:
        home = await make_home(own.database)

        assert await own.refusal("GET", f"/session/images/{name}", home) == (400, "VALIDATION_FAILED")


async def test_a_refused_image_says_why_where_it_was_refused(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        worker = await engine_in(own, PlayedUpstream([REFUSED], says("ok"), says("fine")))
        await worker.run_turn("look", images=[PNG])
        await worker.run_turn("look again", images=[PNG])
        items = (await own.get("/messages", worker.home))["items"]
        executions = (await own.get("/session/executions", worker.home))["executions"]
        view = await own.get(f"/session/executions/{executions[-1]['id']}", worker.home)

    first, second = [item["images"] for item in items if "images" in item]
    assert first == [{**named(PNG), "refused": "image too large"}]
    assert second == [named(PNG)]
    told = next(event["data"] for event in view["controlEvents"] if event["type"] == "execution.imageRefused")
    assert told == {"sha256": sha256(PNG), "reason": "image too large"}


async def test_the_audit_names_the_images_of_a_request(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = await talked(own, says("two cats"))
        (run,) = (await own.get("/session/model-runs", home))["modelRuns"]
        (call,) = (await own.get(f"/session/model-runs/{run['id']}/calls", home))["calls"]

    (asked,) = [message for message in call["requestMessages"] if message["role"] == "user"]
    assert asked["images"] == [named(PNG), named(GIF, "image/gif")]
