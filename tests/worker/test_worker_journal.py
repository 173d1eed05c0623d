"""The journal over a worker's socket: what is too much for one frame travels ahead of the commit that names it."""

from __future__ import annotations

import math

import msgspec
import pytest
import trio
from msgspec import Raw
from trio.testing import memory_stream_pair

from peen.store.blobs.text import hash_of
from peen.wire.records import NewBlob
from peen.wire.turncalls import BlobsSaved, CommitSteps, Committed, SaveBlobs
from peen.wire.worker import HelloAck, encode
from peen.worker import journal as module
from peen.worker.framing import FrameStream
from peen.worker.journal import LinkJournal
from peen.worker.link import ControllerLink, Reply, WorkerLink

ACK = HelloAck(session_id="s", workspace="/w", agent_space="control")


async def carried(request: CommitSteps) -> list[SaveBlobs | CommitSteps]:
    """The calls that a commit becomes, as the controller gets them."""
    heard: list[SaveBlobs | CommitSteps] = []

    def handle(method: str, payload: Raw, reply: Reply) -> None:
        if method == "blobs.save":
            heard.append(msgspec.json.decode(payload, type=SaveBlobs))
            reply(encode(BlobsSaved()))
        else:
            heard.append(msgspec.json.decode(payload, type=CommitSteps))
            reply(encode(Committed(message_sequence=1)))

    async def obey(*_: object) -> CommitSteps:
        raise AssertionError("no command is given")

    ours, theirs = memory_stream_pair()
    worker = ControllerLink(FrameStream(theirs), ACK, obey, beat_s=math.inf)
    async with trio.open_nursery() as nursery:
        await nursery.start(WorkerLink(FrameStream(ours), handle).run)
        await nursery.start(worker.run, nursery)
        await LinkJournal(worker).commit(request)
        nursery.cancel_scope.cancel()
    return heard


def blobs(*sizes: int) -> list[NewBlob]:
    made = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    return [NewBlob(digest=hash_of(data), data=data) for data in made]


def a_commit(*sizes: int) -> CommitSteps:
    return CommitSteps(execution_id="e", holder="h", blobs=blobs(*sizes))


async def test_what_fits_travels_with_the_commit() -> None:
    request = a_commit(600, 400)

    assert await carried(request) == [request]


@pytest.mark.parametrize(
    ("sizes", "frames"),
    [((600, 600), [[600], [600]]), ((300, 600, 400, 5), [[300, 600], [400, 5]]), ((9000,), [[9000]])],
)
async def test_what_is_too_much_travels_ahead_in_parts(
    sizes: tuple[int, ...], frames: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BLOBS_BYTES", 1000)

    *ahead, commit = await carried(a_commit(*sizes))

    assert commit == CommitSteps(execution_id="e", holder="h")
    parts = [call.blobs for call in ahead]
    assert [[len(blob.data) for blob in part] for part in parts] == frames
    assert [blob for part in parts for blob in part] == blobs(*sizes)
