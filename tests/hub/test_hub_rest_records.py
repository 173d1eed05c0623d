"""What happened, where, and what a turn was told: events, workers, places and snapshots over REST."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from engine_kit import PlayedUpstream, asks, says, work
from msgspec import Struct
from rest_kit import Office, engine_in, office
from world_kit import AT_MS, Home, make_generation, make_home, uuid

from peen.errors import ModelError
from peen.hub.rest.pages import fill
from peen.store import feed, generations, turns
from peen.store.database import Tx
from peen.store.feed import NewEvent
from peen.wire.events import EVENTS
from peen.wire.rest import encode

ABSENT = "ab" * 32
REFUSED = ModelError("no such model", kind="invalid_request", retryable=False, status=400)

# --- events -----------------------------------------------------------------------------------------------------------


async def busy(own: Office) -> Home:
    """A session with a turn that used tools and one that failed."""
    worker = await engine_in(own, PlayedUpstream(asks(("look", work("é"))), says("done"), [REFUSED]))
    await worker.run_turn("first")
    await worker.run_turn("second")
    return worker.home


async def test_events_are_the_frames_of_turns_without_their_content_blocks(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = await busy(own)
        frames = (await own.get("/session/feed", home, limit=1000))["items"]
        events = (await own.get("/session/events", home))["events"]

    wanted = [frame for frame in frames if not frame["type"].startswith(("content_block", "notice."))]
    assert len(wanted) < len(frames)
    assert [(e["id"], e["type"], e["payload"], e["requestId"], e["sequence"], e["sessionId"]) for e in events] == [
        (f["id"], f["type"], f["data"], f["metadata"]["requestId"], f["metadata"]["sequence"], home.uuid)
        for f in wanted
    ]
    assert {event["type"] for event in events} >= {"userMessage.created", "turn.started", "tool.use", "turn.failed"}


async def test_an_accepted_message_has_its_turn_and_no_worker_yet(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = await busy(own)
        turns = (await own.get("/session/turns", home))["turns"]
        (worker,) = (await own.get("/session/workers", home))["items"]
        events = (await own.get("/session/events", home))["events"]

    by_turn = {turn["id"]: turn["requestId"] for turn in turns}
    assert {event["turnId"]: event["requestId"] for event in events} == by_turn
    without = {event["type"] for event in events if "workerGenerationId" not in event}
    assert without == {"userMessage.created"}
    assert {event.get("workerGenerationId", worker["id"]) for event in events} == {worker["id"]}


async def test_events_are_paged_from_either_end(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        home = await busy(own)
        whole = (await own.get("/session/events", home))["events"]
        pages = [await own.get("/session/events", home, limit=3, offset=at) for at in range(0, len(whole) + 3, 3)]
        newest = await own.get("/session/events", home, order="desc", limit=2, offset=1)

    assert [event for page in pages for event in page["events"]] == whole
    assert [page["hasMore"] for page in pages] == [at + 3 < len(whole) for at in range(0, len(whole) + 3, 3)]
    assert newest["events"] == whole[-2:-4:-1]


async def test_frames_of_children_and_notices_are_no_events_of_the_root_turn(tmp_path: Path) -> None:
    def change(tx: Tx) -> None:
        for name in ("agent.run.started", "notice.created", "content_block_delta"):
            feed.append(tx, home.no, [NewEvent(name, b"{}")], at_ms=AT_MS, turn_no=turn.no)
            feed.append(tx, home.no, [NewEvent(name, b"{}")], at_ms=AT_MS)

    async with office(tmp_path) as own:
        home = await busy(own)
        (turn, *_) = turns.page(own.database.reader, home.no, limit=1, offset=0)
        before = await own.get("/session/events", home)
        await own.database.write(change)

        assert await own.get("/session/events", home) == before


async def test_a_page_of_events_ends_before_four_mebibytes(tmp_path: Path) -> None:
    large = work("x" * 1_500_000)
    rounds = [asks(("look", large)) for _ in range(3)]
    async with office(tmp_path) as own:
        worker = await engine_in(own, PlayedUpstream(*rounds, says("done")))
        await worker.run_turn()
        found: list[Any] = []
        sizes = []
        has_more = True
        while has_more:
            page = await own.get("/session/events", worker.home, offset=len(found))
            sizes.append(len(page["events"]))
            found += page["events"]
            has_more = page["hasMore"]

    assert len(sizes) > 1
    assert [event["type"] for event in found].count("tool.use") == 3
    assert {event["type"] for event in found} <= EVENTS.keys()


# --- workers ----------------------------------------------------------------------------------------------------------


async def test_workers_are_newest_first_and_only_a_failure_has_a_detail(tmp_path: Path) -> None:
    def change(tx: Tx) -> None:
        end = partial(generations.ended, tx, exit_code=0, at_ms=AT_MS + 1000)
        end(uuid(2001).bytes, state="stopped", detail="idle")
        make_generation(tx, home.no, 2002)
        end(uuid(2002).bytes, state="failed", detail="it was silent for 20 s")
        make_generation(tx, home.no, 2003)

    async with office(tmp_path) as own:
        home, other = await make_home(own.database, 1), await make_home(own.database, 5)
        await own.database.write(change)
        whole = await own.get("/session/workers", home)
        part = await own.get("/session/workers", home, limit=1, offset=1)
        others = await own.get("/session/workers", other)

    found = [(item["id"], item["state"], item.get("failureDetail"), item.get("endedAt")) for item in whole["items"]]
    ended = "2023-11-14T22:13:21.000Z"
    assert found == [
        (str(uuid(2003)), "ready", None, None),
        (str(uuid(2002)), "failed", "it was silent for 20 s", ended),
        (str(uuid(2001)), "stopped", None, ended),
    ]
    assert (part["items"], part["hasMore"]) == (whole["items"][1:2], True)
    assert {(item["kind"], item["agentSpace"], item["sessionId"]) for item in whole["items"]} == {
        ("native", "control", home.uuid)
    }
    assert [item["id"] for item in others["items"]] == [str(uuid(2005))]


# --- places -----------------------------------------------------------------------------------------------------------


async def test_the_one_space_and_the_one_root_are_told_without_a_session(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        spaces = await own.get("/agent-spaces")
        roots = await own.get("/workspace-roots")
        sessions = await own.get("/sessions")

    assert spaces == {
        "items": [{"name": "control", "hostRootEquivalent": False, "capabilityWarnings": []}],
        "default": "control",
    }
    assert roots == {"roots": [str(tmp_path)]}
    assert sessions["items"] == []


# --- snapshots --------------------------------------------------------------------------------------------------------


async def test_a_turn_names_its_snapshots_and_they_are_what_the_model_was_told(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        upstream = PlayedUpstream(says("x"))
        worker = await engine_in(own, upstream)
        await worker.run_turn()
        (turn,) = (await own.get("/session/turns", worker.home))["turns"]
        prompt = await own.get(f"/session/prompt-snapshots/{turn['promptSnapshotHash']}", worker.home)
        context = await own.get(f"/session/context-snapshots/{turn['contextSnapshotHash']}", worker.home)

    told = upstream.requests[0].system
    assert (prompt["effectivePrompt"], prompt["hash"]) == (told, hashlib.sha256(told.encode()).hexdigest())
    (entry,) = context["manifest"]
    assert (context["hash"], entry["kind"], entry["name"]) == (turn["contextSnapshotHash"], "instruction", "base")
    assert entry["hash"] == hashlib.sha256(context["resolvedContent"].encode()).hexdigest()
    assert context["resolvedContent"] in told


async def test_a_snapshot_of_another_session_does_not_exist(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        worker = await engine_in(own, PlayedUpstream(says("x")))
        await worker.run_turn()
        stranger = await make_home(own.database, 2)
        (turn,) = (await own.get("/session/turns", worker.home))["turns"]

        for kind in ("prompt", "context"):
            digest = turn[f"{kind}SnapshotHash"]
            assert await own.refusal("GET", f"/session/{kind}-snapshots/{digest}", stranger) == (404, "NOT_FOUND")
            assert await own.refusal("GET", f"/session/{kind}-snapshots/{ABSENT}", worker.home) == (404, "NOT_FOUND")
        # A hash of one kind is none of the other.
        mixed = f"/session/context-snapshots/{turn['promptSnapshotHash']}"
        assert await own.refusal("GET", mixed, worker.home) == (404, "NOT_FOUND")


# --- what is refused --------------------------------------------------------------------------------------------------

OF_A_SESSION = [
    "/session/events",
    "/session/workers",
    "/session/model-runs",
    f"/session/model-runs/{uuid(1)}/calls",
    f"/session/context-snapshots/{ABSENT}",
    f"/session/prompt-snapshots/{ABSENT}",
]


@pytest.mark.parametrize("path", OF_A_SESSION)
async def test_an_unknown_session_and_an_unknown_parameter_are_refused(tmp_path: Path, path: str) -> None:
    async with office(tmp_path) as own:
        home = await make_home(own.database)

        assert await own.refusal("GET", path, str(uuid(99))) == (404, "SESSION_NOT_FOUND")
        assert await own.refusal("GET", path, home, surprise=1) == (400, "VALIDATION_FAILED")
        assert await own.refusal("GET", path, "x") == (400, "INVALID_SESSION_ID")
        assert await own.refusal("GET", path) == (400, "INVALID_SESSION_ID")


@pytest.mark.parametrize("path", ["/agent-spaces", "/workspace-roots"])
async def test_places_take_no_parameters(tmp_path: Path, path: str) -> None:
    async with office(tmp_path) as own:
        assert await own.refusal("GET", path, limit=1) == (400, "VALIDATION_FAILED")


@pytest.mark.parametrize("digest", ["x", "AB" * 32, "ab" * 31, "ab" * 33])
async def test_a_hash_has_one_spelling(tmp_path: Path, digest: str) -> None:
    async with office(tmp_path) as own:
        home = await make_home(own.database)

        for kind in ("prompt", "context"):
            refused = await own.refusal("GET", f"/session/{kind}-snapshots/{digest}", home)
            assert refused == (400, "VALIDATION_FAILED")


# --- pages ------------------------------------------------------------------------------------------------------------


class Item(Struct):
    text: str


def items(*sizes: int) -> list[Item]:
    """Items whose JSON has so many bytes, with the comma behind it."""
    overhead = len(encode(Item(""))) + 1
    return [Item("x" * (size - overhead)) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ((), 5, (0, False)),
        ((100, 100), 2, (2, False)),
        ((100, 100, 100), 2, (2, True)),
        ((500, 500), 5, (2, False)),
        ((500, 501), 5, (1, True)),
        ((5000,), 5, (1, False)),
        ((5000, 20), 5, (1, True)),
        ((20, 5000, 20), 5, (1, True)),
    ],
)
def test_a_page_ends_at_its_limit_or_before_it_passes_its_bytes(
    sizes: tuple[int, ...], limit: int, expected: tuple[int, bool]
) -> None:
    found, has_more = fill(items(*sizes), limit=limit, max_bytes=1000)

    assert (len(found), has_more) == expected
