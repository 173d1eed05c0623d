"""Images of messages, from their acceptance into the transcript: stored once, refused where no model could see them."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from functools import partial
from uuid import UUID

import msgspec
import pytest
from image_kit import GIF, OTHER_PNG, PNG, sent
from session_kit import TEXT_ONLY, House, PlayedLink, house, made_before, waits_then_completes
from trio.testing import wait_all_tasks_blocked
from world_kit import (
    AT_MS,
    MODEL,
    Home,
    accept_message,
    acceptance,
    dump,
    frames,
    make_home,
    message_send,
    open_store,
    open_turn,
    transcript,
    uuid,
)

from peen.errors import PeenError, StorageFull, ValidationFailed
from peen.session import inspection
from peen.session.acceptance import accept, accept_queued, end_accepted, fence
from peen.session.blobwork import fetch_blob
from peen.session.ending import STOPPED, interrupted
from peen.store import compactions, deletion, executions, images, inbox, sessions, snapshots
from peen.store.compactions import CompactionRow
from peen.store.database import Database, Tx
from peen.testing.faults import Faults
from peen.wire.records import ImageRef, RefusedImage
from peen.wire.rest import Image
from peen.wire.turncalls import MAX_PIECE_BYTES, FetchBlob

TURN = str(uuid(3001))


def refs(*data: bytes) -> list[ImageRef]:
    return [image.ref for image in sent(*data)]


def stored(db: Database, home: Home, data: bytes) -> bytes:
    (ref,) = refs(data)
    return home.blobs.fetch(db.reader, home.no, bytes.fromhex(ref.sha256))


def images_of(db: Database, home: Home) -> list[list[ImageRef]]:
    return [row.message.images for row in transcript(db, home)]


# --- acceptance


async def test_an_accepted_message_has_references_and_the_session_the_bytes() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await accept_message(db, home, "look", images=[PNG, GIF])
        (row,) = inbox.opening(db.reader)

        assert images.decode_refs(row.images) == refs(PNG, GIF)
        assert [stored(db, home, data) for data in (PNG, GIF)] == [PNG, GIF]
        shown = [{"mediaType": "image/png", "sizeBytes": 70}, {"mediaType": "image/gif", "sizeBytes": len(GIF)}]
        assert frames(db, home) == [("userMessage.created", {"message": "look", "images": shown})]


async def test_the_same_image_is_stored_once_however_often_and_by_whom_it_is_sent() -> None:
    async with open_store() as db:
        first, second = await make_home(db, 1), await make_home(db, 2)
        await accept_message(db, first, frame=1, images=[PNG])
        await accept_message(db, first, frame=2, images=[PNG, PNG])
        await accept_message(db, second, frame=3, images=[PNG])

        assert len(dump(db)["blob"]) == 1
        assert len(dump(db)["blob_use"]) == 2


async def test_a_session_takes_its_images_along_when_it_is_deleted_unless_another_has_them() -> None:
    async with open_store() as db:
        first, second = await make_home(db, 1), await make_home(db, 2)
        for home, frame in ((first, 1), (second, 2)):
            await open_turn(db, home, frame=frame)
            lost = interrupted("interrupted", "lost")
            turn_id = uuid(3000 + frame).bytes
            await db.write(partial(end_accepted, session_no=home.no, turn_id=turn_id, ending=lost, at_ms=AT_MS))
        for home, frame in ((first, 3), (second, 4)):
            await accept_message(db, home, frame=frame, images=[PNG, GIF] if home is first else [PNG])
            turn_id = uuid(3000 + frame).bytes
            await db.write(partial(end_accepted, session_no=home.no, turn_id=turn_id, ending=lost, at_ms=AT_MS))
        assert len(dump(db)["blob"]) == 2

        await db.write(partial(deletion.mark, session_id=first.id, at_ms=AT_MS))
        await deletion.remove(db, first.no)

        assert len(dump(db)["blob"]) == 1
        assert stored(db, second, PNG) == PNG


async def test_the_transcript_of_a_turn_that_never_began_has_the_images_of_its_message() -> None:
    async with open_store() as db:
        home = await make_home(db)
        await accept_message(db, home, images=[PNG])
        lost = interrupted("interrupted", "the worker was lost")
        change = partial(end_accepted, session_no=home.no, turn_id=UUID(TURN).bytes, ending=lost, at_ms=AT_MS)
        await db.write(change)

        assert images_of(db, home) == [refs(PNG), []]


async def test_a_message_that_waited_opens_the_next_turn_with_its_images() -> None:
    async with house() as own:
        own.plays(waits_then_completes)
        socket = own.socket()
        await own.send(own.message("first"), socket)
        await own.send(own.message("second", images=[PNG]), socket)
        own.workers.links[own.home.no].go_on.set()
        await wait_all_tasks_blocked()

        told = [row.message for row in transcript(own.db, own.home) if row.message.role == "user"]
        assert [(message.content, message.images) for message in told] == [("first", []), ("second", refs(PNG))]
        created = [frame["data"] for frame in socket.heard if frame["type"] == "userMessage.created"]
        assert created[1]["images"] == [{"mediaType": "image/png", "sizeBytes": 70}]


async def test_the_worker_is_given_references_and_reads_the_bytes_in_pieces() -> None:
    long = PNG + bytes(MAX_PIECE_BYTES)
    async with house() as own:
        await own.send(own.message(images=[long]), own.socket())
        link = own.workers.links[own.home.no]
        (command,) = link.commands
        digest = bytes.fromhex(command.images[0].sha256)
        first = fetch_blob(own.db.reader, own.home.writer, FetchBlob(digest=digest))
        rest = fetch_blob(own.db.reader, own.home.writer, FetchBlob(digest=digest, offset=len(first.data)))

    assert command.images == refs(long)
    assert (len(first.data), len(rest.data)) == (MAX_PIECE_BYTES, len(PNG))
    assert first.data + rest.data == long
    assert first.size_bytes == rest.size_bytes == len(long)


async def test_no_session_reads_the_blobs_of_another() -> None:
    async with house(sessions=2) as own:
        await own.send(own.message(images=[PNG]), own.socket())
        other = PlayedLink(own, own.homes[1], waits_then_completes)
        (ref,) = refs(PNG)
        with pytest.raises(PeenError, match="1 blobs are missing"):
            await other.journal.blob(bytes.fromhex(ref.sha256))


async def test_an_acceptance_with_images_that_fails_at_any_statement_stores_nothing() -> None:
    file = await made_before()
    for statement in range(1, 100):
        plan = Faults.full_at(statement)
        async with open_store(file, faults=plan) as db:
            home = await make_home(db)
            before = dump(db)
            with suppress(StorageFull):
                await accept_message(db, home, images=[PNG, GIF])
            after = dump(db)
        if not plan.fired:
            assert after != before
            return
        assert after == before, f"statement {statement}"
    raise AssertionError("there was always another statement to fail at")


# --- resends


async def test_a_resend_with_the_same_images_starts_nothing_and_with_others_is_refused() -> None:
    async with house() as own:
        first, second, third = own.socket(), own.socket(), own.socket()
        message = own.message(images=[PNG])
        await own.send(message, first)
        before = dump(own.db)
        await own.send(message, second)
        await own.send(msgspec.structs.replace(message, images=sent(OTHER_PNG)), third)

        assert dump(own.db) == before
    assert [frame["type"] for frame in second.private] == ["message.completed"]
    assert [frame["data"]["code"] for frame in third.private] == ["VALIDATION_FAILED"]


# --- models that see nothing


async def refused(own: House, **message: object) -> str:
    """What a refused message is told; nothing of it is stored."""
    socket, before = own.socket(), dump(own.db)
    await own.send(own.message(**message), socket)  # type: ignore[arg-type]
    (told,) = socket.private
    assert (told["type"], told["data"]["code"]) == ("message.failed", "VALIDATION_FAILED")
    assert dump(own.db) == before
    text: str = told["data"]["message"]
    return text


async def test_a_model_that_takes_no_images_refuses_a_message_with_some() -> None:
    async with house() as own:
        assert await refused(own, model=TEXT_ONLY, images=[PNG]) == (
            f"data.images: the model {TEXT_ONLY} takes no images; choose another, or send text alone"
        )
        socket = own.socket()
        await own.send(own.message(model=TEXT_ONLY), socket)

    assert socket.ends() == ["turn.completed", "message.completed"]


async def test_a_session_that_holds_images_runs_only_on_models_that_take_some() -> None:
    async with house(sessions=2) as own:
        await own.send(own.message(images=[PNG]), own.socket())
        assert await refused(own, model=TEXT_ONLY) == (
            f"data.model: this session holds images, and the model {TEXT_ONLY} takes none; choose one that does"
        )
        socket, stranger = own.socket(own.home.uuid), own.socket(own.homes[1].uuid)
        await own.send(own.message(model=MODEL), socket)
        await own.send(own.message(model=TEXT_ONLY, home=own.homes[1]), stranger)

    assert socket.ends() == stranger.ends() == ["turn.completed", "message.completed"]


def summarize(tx: Tx, home: Home, to_sequence: int) -> None:
    """A summary of everything up to this message, as a compaction stores it."""
    summary = CompactionRow(
        sequence=1, supersedes=None, from_sequence=1, to_sequence=to_sequence, message_count=to_sequence,
        input_tokens=9, summary_tokens=1, model=MODEL, prompt_sha256=b"", summary="s", created_at_ms=AT_MS,
    )  # fmt: skip
    compactions.add(tx, home.no, summary, prompt_no=snapshots.save(tx, home.no, "prompt", "Sum up.", at_ms=AT_MS))


async def test_a_session_whose_images_are_all_summarized_runs_on_any_model_until_another_image_comes() -> None:
    async with house() as own:
        await own.send(own.message(images=[PNG]), own.socket())
        await own.send(own.message(images=[GIF]), own.socket())
        first, second = (row.sequence for row in transcript(own.db, own.home) if row.message.images)

        await own.db.write(partial(summarize, home=own.home, to_sequence=first))
        assert "this session holds images" in await refused(own, model=TEXT_ONLY)
        await own.db.write(lambda tx: tx.execute("UPDATE compaction SET to_sequence = ?", (second,)))
        socket = own.socket()
        await own.send(own.message(model=TEXT_ONLY), socket)
        assert socket.ends() == ["turn.completed", "message.completed"]

        await own.send(own.message(images=[GIF]), own.socket())
        assert "this session holds images" in await refused(own, model=TEXT_ONLY)


async def test_an_image_that_a_provider_has_refused_keeps_no_model_away_until_it_is_sent_again() -> None:
    async with house() as own:
        await own.send(own.message(images=[PNG]), own.socket())
        (row,) = (row for row in transcript(own.db, own.home) if row.message.images)
        no_more = RefusedImage(sha256=row.message.images[0].sha256, reason="too large")
        note = partial(
            images.refuse, session_no=own.home.no, refused=no_more, model=TEXT_ONLY, up_to_sequence=row.sequence,
            turn_no=row.turn,
            at_ms=AT_MS,
        )  # fmt: skip
        await own.db.write(note)
        socket = own.socket()
        await own.send(own.message(model=TEXT_ONLY), socket)
        assert socket.ends() == ["turn.completed", "message.completed"]

        await own.send(own.message(images=[PNG]), own.socket())
        assert "this session holds images" in await refused(own, model=TEXT_ONLY)


async def test_a_message_that_joins_a_running_turn_is_judged_by_the_model_of_that_turn() -> None:
    async with house() as own:
        own.plays(waits_then_completes)
        await own.send(own.message(model=TEXT_ONLY), own.socket())
        assert "data.images" in await refused(own, images=[PNG])
        own.workers.links[own.home.no].go_on.set()
        await wait_all_tasks_blocked()

        assert [name for name, _ in own.ends()] == ["turn.completed"]


async def test_a_message_that_a_stop_left_waiting_is_not_continued_on_a_model_that_sees_nothing() -> None:
    async with house() as own:
        home = own.home
        await own.db.write(partial(accept, session_no=home.no, acceptance=acceptance(home, frame=7)))
        plain = acceptance(home, frame=8, turn_id=str(uuid(3007)))
        picture = message_send(home, "look", frame=8, model=TEXT_ONLY, images=[PNG])
        waiting = dataclasses.replace(plain, message=picture)
        await own.db.write(partial(accept_queued, session_no=home.no, acceptance=waiting, capacity=4))
        await own.db.write(partial(fence, session_no=home.no, at_ms=AT_MS))
        turn_id = uuid(3007).bytes
        await own.db.write(partial(end_accepted, session_no=home.no, turn_id=turn_id, ending=STOPPED, at_ms=AT_MS))
        session = sessions.by_no(own.db.reader, home.no)
        assert session is not None
        before = dump(own.db)

        with pytest.raises(ValidationFailed, match=f"data.images: the model {TEXT_ONLY} takes no images"):
            await own.sessions.continue_input(home.uuid, str(UUID(bytes=plain.request_id)), session.stop_revision)

        assert dump(own.db) == before
        assert [row.images is None for row in inbox.stopped(own.db.reader, home.no)] == [False]


async def test_the_worker_is_told_whether_the_model_of_the_turn_sees_images() -> None:
    async with house(sessions=2) as own:
        await own.send(own.message(model=TEXT_ONLY), own.socket())
        await own.send(own.message(home=own.homes[1]), own.socket())
        told = [own.workers.links[home.no].commands[0].image_input for home in own.homes]

    assert told == [False, True]


async def test_a_message_that_waits_is_inspected_with_its_images() -> None:
    async with house() as own:
        home = own.home
        turn_id = uuid(3007)
        opened = await open_turn(own.db, home, frame=7)
        waiting = acceptance(home, "look", frame=8, turn_id=str(turn_id), images=[PNG])
        await own.db.write(partial(accept_queued, session_no=home.no, acceptance=waiting, capacity=4))
        session = sessions.by_no(own.db.reader, home.no)
        row = executions.details(own.db.reader, UUID(opened.execution_id).bytes)
        assert session is not None
        assert row is not None
        view = inspection.view(own.db.reader, home.blobs, session, row)

    (message,) = view.inbox
    assert message.images == [Image(media_type="image/png", size_bytes=70, sha256=refs(PNG)[0].sha256)]
