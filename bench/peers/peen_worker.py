"""The engine's side of the work on Peen. Started with descriptors, it is the process of the workers.

    python -m bench.peers.peen_worker --steps N DESCRIPTOR...

Each descriptor is a connected socket to the store's side. The executions come as JSON on standard input; the seconds
that all of them took together go to standard output.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec
import trio

from bench.common import SWITCH_INTERVAL_S
from bench.peers.work import Clock, parser, text
from peen.errors import PeenError
from peen.execution.journal import Journal
from peen.execution.steps import Done, Next, Step, Steps
from peen.wire.records import MessageRecord, Terminal
from peen.wire.worker import HelloAck
from peen.wire.workerstruct import WorkerStruct
from peen.worker.framing import FrameStream
from peen.worker.journal import LinkJournal
from peen.worker.link import ControllerLink

AGENT_SPACE: Final = "control"
ACK: Final = HelloAck(session_id="", workspace="", agent_space=AGENT_SPACE)


class Received(msgspec.Struct):
    """Input of a step: how much of the transcript it was given. The messages themselves are rows already."""

    messages: int


class Appended(msgspec.Struct):
    """Output of a step."""

    content: str


class Job(msgspec.Struct):
    """An execution that waits for its steps."""

    execution_id: str
    holder: str


def step(number: int) -> Step:
    return Step(id=f"r{number}.model", kind="model", given=msgspec.json.encode(Received(number)))


async def append(context: list[MessageRecord]) -> Done[Appended]:
    """A step's work: nothing but to append a message."""
    appended = MessageRecord(role="assistant", content=text(len(context)))
    context.append(appended)
    return Done(Appended(appended.content), messages=[appended])


async def execute(journal: Journal, job: Job, count: int) -> None:
    """All steps of one execution, the last of which ends its turn."""
    steps = Steps(journal, execution_id=job.execution_id, holder=job.holder)
    context: list[MessageRecord] = []

    def follow(number: int, _done: Done[Appended]) -> Next:
        if number + 1 == count:
            return Next(terminal=Terminal(state="completed", text="done"))
        return Next(begin=(step(number + 1),))

    for number in range(count):
        await steps.run(step(number), partial(append, context), partial(follow, number))


async def execute_all(journals: Sequence[Journal], jobs: Sequence[Job], count: int) -> float:
    """Seconds for all executions at once."""
    with Clock() as clock:
        async with trio.open_nursery() as nursery:
            for journal, job in zip(journals, jobs, strict=True):
                nursery.start_soon(execute, journal, job, count)
    return clock.seconds


async def serve_as_worker(descriptors: Sequence[int], jobs: Sequence[Job], count: int) -> float:
    """Seconds for all executions, each over the socket that was inherited for it."""
    async with trio.open_nursery() as nursery:
        journals = []
        for descriptor in descriptors:
            link = ControllerLink(frames_of(socket.socket(fileno=descriptor)), ACK, obey_nothing)
            await nursery.start(link.run, nursery)
            journals.append(LinkJournal(link))
        seconds = await execute_all(journals, jobs, count)
        nursery.cancel_scope.cancel()
    return seconds


async def obey_nothing(method: str, _request: WorkerStruct) -> WorkerStruct:
    raise PeenError(f"{method} is not measured")


def frames_of(end: socket.socket) -> FrameStream:
    return FrameStream(trio.SocketStream(trio.socket.from_stdlib_socket(end)))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("descriptors", type=int, nargs="+")
    arguments = options.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    jobs = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Job])
    print(trio.run(serve_as_worker, arguments.descriptors, jobs, arguments.steps))


if __name__ == "__main__":
    main()
