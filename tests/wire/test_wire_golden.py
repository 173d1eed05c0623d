"""Golden frames: what left this program once must be understood, and said the same way, for ever after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from protocol_kit import FOLDER, problems

from peen.wire import launch, worker
from peen.wire.client import ClientLimits, MessageSend, decode_client_frame, encode_client_frame
from peen.wire.events import EVENTS, check_event
from peen.wire.publish.golden import AT_MS, socket_golden
from peen.wire.publish.goldenworker import worker_golden
from peen.wire.publish.workerdoc import FRAMES

FILES = sorted((FOLDER / "golden").glob("*.json"))


def frames(prefix: str) -> list[Any]:
    return [pytest.param(path, id=path.stem) for path in FILES if path.name.startswith(prefix)]


def read(path: Path) -> bytes:
    """The frame: the file without its line feed."""
    data = path.read_bytes()
    assert data.endswith(b"}\n")
    return data[:-1]


def test_the_encoders_say_byte_for_byte_what_was_published() -> None:
    published = {path.stem: read(path) for path in FILES}

    assert {**socket_golden(), **worker_golden()} == published


@pytest.mark.parametrize("path", [*frames("client."), *frames("server.")])
def test_a_frame_of_the_socket_satisfies_its_schema(path: Path) -> None:
    frame = json.loads(read(path))

    assert problems(f"frame.{frame['type']}", frame) == []


@pytest.mark.parametrize("path", frames("client."))
def test_a_frame_of_a_client_is_understood(path: Path) -> None:
    message = decode_client_frame(read(path), ClientLimits())

    assert isinstance(message, MessageSend)
    assert encode_client_frame(message, AT_MS) == read(path)


@pytest.mark.parametrize("path", frames("server."))
def test_a_sequenced_frame_passes_the_outgoing_check(path: Path) -> None:
    frame = msgspec.json.decode(read(path), type=dict[str, msgspec.Raw])
    kind = json.loads(bytes(frame["type"]))

    assert kind in {*EVENTS, "message.completed", "message.failed"}
    if kind in EVENTS:
        assert check_event(kind, bytes(frame["data"])) is None


@pytest.mark.parametrize("path", [*frames("worker."), *frames("controller.")])
def test_a_frame_of_the_worker_socket_satisfies_its_schema_and_survives_a_round_trip(path: Path) -> None:
    data = read(path)
    decode = worker.decode_from_worker if path.name.startswith("worker.") else worker.decode_from_controller
    frame: Any = launch.decode_launch(data) if path.stem == "worker.launch" else decode(data)

    assert problems(f"worker.{type(frame).__name__}", json.loads(data)) == []
    assert worker.encode(frame) == data
    method = path.stem.split(".", 2)[2] if path.stem.count(".") >= 2 else ""
    pair = {**worker.CALLS, **worker.COMMANDS}.get(method)
    if pair is not None:
        struct = pair[0] if isinstance(frame, (worker.Call, worker.Command)) else pair[1]
        assert problems(f"worker.{struct.__name__}", json.loads(bytes(frame.payload))) == []
        assert worker.encode(msgspec.json.decode(frame.payload, type=struct)) == bytes(frame.payload)


def test_every_type_method_and_kind_has_an_example() -> None:
    names = {path.stem for path in FILES}
    methods = [f"worker.call.{name}" for name in worker.CALLS] + [f"controller.result.{name}" for name in worker.CALLS]
    methods += [f"controller.command.{name}" for name in worker.COMMANDS]
    methods += [f"worker.commandResult.{name}" for name in worker.COMMANDS]
    kinds = {json.loads(read(path)).get("kind") for path in FILES}

    assert {f"server.{name}" for name in EVENTS} <= names
    assert set(methods) <= names
    assert {struct.__struct_config__.tag for structs in FRAMES.values() for struct in structs} <= kinds
    assert {"client.message.send", "server.message.completed", "server.message.failed", "worker.launch"} <= names
