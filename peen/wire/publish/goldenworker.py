"""Golden frames of the worker socket: the launch document, and every frame with every method."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Raw, Struct

from peen.wire import execution, launch, records, turncalls, worker, workerstruct
from peen.wire.publish.golden import (
    ANSWER,
    AT_MS,
    CALL,
    EVENTS,
    MODEL,
    PIXEL,
    QUESTION,
    REQUEST,
    RESULT,
    SESSION,
    WORKSPACE,
)
from peen.wire.publish.goldenjobs import job_calls, job_commands
from peen.wire.records import EventRecord, MessageRecord
from peen.wire.rest import rfc3339

_GENERATION: Final = "6e6e6e6e-0000-4000-8000-000000000005"
_EXECUTION: Final = "e8ec0710-0000-4000-8000-000000000006"
_TURN: Final = "70707070-0000-4000-8000-000000000007"
_HOLDER: Final = "0123456789abcdef0123456789abcdef"
_CREDENTIAL: Final = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
_ID: Final = 7
_PAUSED: Final = "e8ec0710-0000-4000-8000-000000000008"
_ACTIVITY: Final = "ac000000-0000-8000-8000-000000000009"
_CALLER: Final = workerstruct.CallingTool(execution_id=_EXECUTION, holder=_HOLDER, call_id=CALL)
_VIEW: Final = execution.ExecutionView(
    execution=execution.Execution(
        id=_PAUSED, session_id=SESSION, turn_id=_TURN, kind="root", state="paused", pause_reason="stop",
        control_revision=2, round_limit=200, created_at=rfc3339(AT_MS),
    ),
    stop_revision=1,
    activities=[
        execution.Activity(
            id=_ACTIVITY, step="r0.t0.handler", kind="effect", call_id=CALL, state="uncertain", attempt=1,
            input=Raw(b'{"name":"writeFile","arguments":{"path":"hello.txt","content":"hello"}}'), output=Raw(b"null"),
        )
    ],
    control_events=[
        execution.ControlEvent(
            type="execution.paused", data=Raw(b'{"reason":"stop","controlRevision":2}'), created_at=rfc3339(AT_MS)
        )
    ],
    inbox=[],
)  # fmt: skip

_LONG: Final = b"0123456789abcdef" * 32
_BLOB: Final = records.NewBlob(digest=sha256(_LONG).digest(), data=_LONG)
_REQUEST: Final = Raw(
    rb'["~l0.84bfce8d","{\"model\":\"demo\",\"system\":\"You are Peen.\",\"tools\":[],\"messages\":","}",'
    b'{"role":"user","content":"~sdhEwU5PgJ2hxbylN6XXhuQSiParh7KHk/qoOYmei/rI"}]'
)
"""A request with one message, whose text of 512 bytes is the blob above."""


def _event(name: str) -> EventRecord:
    return EventRecord(type=name, data=Raw(msgspec.json.encode(EVENTS[name])))


_HISTORY: Final = [
    turncalls.HistoryMessage(sequence=1, turn=1, message=MessageRecord(role="user", content="Hello")),
    turncalls.HistoryMessage(sequence=2, turn=1, message=MessageRecord(role="assistant", content="Hi!", model=MODEL)),
]
_CALLED: Final = records.ToolCallRecord(id=CALL, name="readFile", arguments=Raw(b'{"path":"hello.txt"}'))

CALLS: Final[dict[str, tuple[Struct, Struct]]] = {
    "turn.open": (
        turncalls.OpenTurn(
            turn_id=_TURN, holder=_HOLDER, model=MODEL, prompt="You are Peen.", context_manifest=Raw(b"[]"),
            context_content="", context_hash="0" * 64, tools=Raw(b"[]"), round_limit=200, tool_parallelism=4,
            request_settings=Raw(b'{"model":"scripted/demo"}'),
            messages=[MessageRecord(role="user", content=QUESTION)], events=[_event("turn.started")],
            known_sequence=0,
        ),
        turncalls.OpenedTurn(execution_id=_EXECUTION, turn=2, history_sequence=2, message_sequence=3, history=_HISTORY),
    ),
    "execution.restore": (
        turncalls.RestoreExecution(execution_id=_EXECUTION, holder=_HOLDER),
        turncalls.RestoredExecution(
            turn=7, model=MODEL, prompt="You are an agent.", round_limit=200, tool_parallelism=4, history_sequence=2,
            message_sequence=5, next_block=3,
            steps=[turncalls.SavedStep(step="r0.prepare", state="completed", output=Raw(b"{}"))],
        ),
    ),
    "history.page": (
        turncalls.HistoryPage(after_sequence=0, up_to_sequence=2),
        turncalls.HistoryRows(history=_HISTORY, has_more=True),
    ),
    "blobs.save": (turncalls.SaveBlobs(blobs=[_BLOB]), turncalls.BlobsSaved()),
    "blobs.fetch": (
        turncalls.FetchBlob(digest=sha256(PIXEL).digest(), offset=0),
        turncalls.BlobPiece(data=PIXEL, size_bytes=len(PIXEL)),
    ),
    "steps.commit": (
        turncalls.CommitSteps(
            execution_id=_EXECUTION,
            holder=_HOLDER,
            completions=[records.Completion(step="r0.t0.handler", output=Raw(b'{"content":"1\\thello\\n"}'))],
            messages=[
                MessageRecord(role="assistant", content="", model=MODEL, tool_calls=[_CALLED]),
                MessageRecord(role="tool", content=RESULT, tool_call_id=CALL),
            ],
            events=[_event("tool.use"), _event("tool.result")],
            calls=[
                records.ModelCallRecord(
                    round=0, state="completed", request_sequence=3, request=_REQUEST,
                    usage=records.Usage(prompt=812, completion=23), finish_reason="tool_calls",
                    response_model=MODEL, started_at_ms=AT_MS, completed_at_ms=AT_MS + 420,
                )
            ],
            claims=[records.Claim(step="r1.model", kind="model", given=Raw(b'{"round":1}'))],
            passed=[records.Completion(step="r1.prepare", output=Raw(b"{}"))],
            terminal=records.Terminal(state="completed", text=ANSWER, finish_reason="stop"),
            blobs=[_BLOB],
        ),
        turncalls.Committed(message_sequence=5),
    ),
    "events.emit": (
        turncalls.EmitEvents(execution_id=_EXECUTION, holder=_HOLDER, events=[_event("content_block_delta")]),
        turncalls.Emitted(),
    ),
    "leases.renew": (
        turncalls.RenewLeases(execution_id=_EXECUTION, holder=_HOLDER),
        turncalls.LeasesRenewed(),
    ),
    "execution.read": (
        turncalls.ReadExecution(execution_id=_PAUSED, max_bytes=32_640),
        turncalls.ExecutionsRead(view=_VIEW),
    ),
    "execution.resolve": (
        turncalls.ResolveExecutionActivity(
            caller=_CALLER, execution_id=_PAUSED, activity_id=_ACTIVITY, decision="accept",
            outcome="The file is there.", control_revision=2,
        ),
        turncalls.ExecutionActivityResolved(step="r0.t0.handler"),
    ),
    "execution.continue": (
        turncalls.ContinueExecution(caller=_CALLER, execution_id=_PAUSED, control_revision=2),
        turncalls.ContinuationAdmitted(),
    ),
    **job_calls(_CALLER, _TURN),
}  # fmt: skip
COMMANDS: Final[dict[str, tuple[Struct, Struct]]] = {
    **job_commands(),
    "resumeTurn": (
        worker.ResumeTurn(turn_id=_TURN, execution_id=_EXECUTION),
        worker.TurnEnded(state="completed"),
    ),
    "runTurn": (
        worker.RunTurn(turn_id=_TURN, request_id=REQUEST, message=QUESTION, reasoning_effort="low"),
        worker.TurnEnded(state="completed"),
    ),
}
LAUNCH: Final = launch.LaunchDocument(
    session_id=SESSION,
    generation_id=_GENERATION,
    credential=_CREDENTIAL,
    socket_path=f"/home/ada/.local/state/peen/workers/{SESSION}/worker.sock",
    workspace=WORKSPACE,
    config_directory="/home/ada/.config/peen",
    agent_space="control",
    marker="peen-worker",
    settings=launch.WorkerSettings(
        upstreams=[launch.UpstreamConfig(name="scripted", type="scripted")], default_model=MODEL
    ),
)


def worker_golden() -> dict[str, bytes]:
    """Name of the example -> the bytes of the frame, without its length."""
    examples: dict[str, Struct] = {"worker.launch": LAUNCH, **_handshake()}
    for method in worker.CALLS:
        request, reply = _example(CALLS, worker.CALLS, method)
        examples[f"worker.call.{method}"] = worker.Call(id=_ID, method=method, payload=_raw(request))
        examples[f"controller.result.{method}"] = worker.Result(id=_ID, payload=_raw(reply))
    for method in worker.COMMANDS:
        request, reply = _example(COMMANDS, worker.COMMANDS, method)
        examples[f"controller.command.{method}"] = worker.Command(id=_ID, method=method, payload=_raw(request))
        examples[f"worker.commandResult.{method}"] = worker.CommandResult(id=_ID, payload=_raw(reply))
    stale = worker.WireError(code="STALE_CLAIM", message="another holder owns this execution now")
    failed = worker.WireError(code="VALIDATION_FAILED", message="model: no upstream offers it")
    examples["controller.result.error"] = worker.Result(id=_ID, error=stale)
    examples["worker.commandResult.error"] = worker.CommandResult(id=_ID, error=failed)
    return {name: worker.encode(example) for name, example in examples.items()}


def _handshake() -> dict[str, Struct]:
    hello = worker.Hello(
        protocol=worker.PROTOCOL_VERSION, session_id=SESSION, generation_id=_GENERATION, credential=_CREDENTIAL,
        agent_space="control", pid=4711,
    )  # fmt: skip
    ack = worker.HelloAck(session_id=SESSION, workspace=WORKSPACE, agent_space="control")
    return {"worker.hello": hello, "controller.helloAck": ack, "worker.beat": worker.Beat()}


def _example(
    written: dict[str, tuple[Struct, Struct]], table: Mapping[str, tuple[type[Struct], type[Struct]]], method: str
) -> tuple[Struct, Struct]:
    """Request and reply of a method; those that hold nothing need not be written down."""
    if method in written:
        return written[method]
    request, reply = table[method]
    if request.__struct_fields__ or reply.__struct_fields__:
        raise LookupError(f"peen/wire/publish/goldenworker.py has no example of {method}")
    return request(), reply()


def _raw(payload: Struct) -> Raw:
    return Raw(worker.encode(payload))
