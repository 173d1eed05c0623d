"""The socket between controller and worker, as a document of its own form."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from peen import errors
from peen.errors import PeenError
from peen.wire import launch, turncalls, worker, workerstruct
from peen.wire.publish.envelope import Schema
from peen.wire.publish.schemas import Schemas, description

FRAMES: Final[dict[str, tuple[type[Struct], ...]]] = {
    "fromWorker": (worker.Hello, worker.Beat, worker.Call, worker.CommandResult),
    "fromController": (worker.HelloAck, worker.Result, worker.Command),
}

_ABOUT: Final = """\
Private to one release: controller and worker are the same program, and a worker of another protocol number is refused.
It is written down for whoever debugs it or puts a worker elsewhere. The controller listens on a Unix socket, one for
each generation of a session's worker; the worker dials and says hello; what it may write is fixed by the generation,
whatever its frames say.
"""


def worker_document() -> dict[str, Any]:
    schemas = Schemas("#/schemas/")
    frames = {side: [schemas.ref(frame) for frame in kinds] for side, kinds in FRAMES.items()}
    return {
        "peenWorkerProtocol": worker.PROTOCOL_VERSION,
        "description": _ABOUT,
        "transport": {
            "socket": "unix, stream",
            "framing": "4 bytes of length (unsigned, big-endian), then that many bytes of JSON in UTF-8",
            "maxFrameBytes": worker.MAX_FRAME_BYTES,
            "maxHistoryPageBytes": turncalls.MAX_HISTORY_PAGE_BYTES,
        },
        "launch": {
            "description": "One JSON document on the worker's standard input, which then ends.",
            "maxBytes": launch.MAX_LAUNCH_BYTES,
            "document": schemas.ref(launch.LaunchDocument),
        },
        "handshake": [
            "The worker sends hello with the credential of its launch document.",
            "The controller answers helloAck, or closes the connection: the worker then exits.",
        ],
        "frames": frames,
        "calls": _methods(worker.CALLS, schemas),
        "commands": _methods(worker.COMMANDS, schemas),
        "errorCodes": error_codes(),
        "schemas": schemas.components,
    }


def _methods(
    table: dict[str, tuple[type[workerstruct.WorkerStruct], type[workerstruct.WorkerStruct]]], schemas: Schemas
) -> Schema:
    return {
        method: {**_summary(request), "request": schemas.ref(request), "reply": schemas.ref(reply)}
        for method, (request, reply) in table.items()
    }


def _summary(request: type[Struct]) -> Schema:
    text = description(request)
    return {"summary": text} if text else {}


def error_codes() -> list[str]:
    """Every code of the error tree, sorted."""
    codes = {PeenError.code}
    codes |= {kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PeenError)}
    return sorted(codes)
