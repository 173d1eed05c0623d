from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from protocol_kit import FOLDER, closed, document, problems, references, resolve

from peen.hub.sockets import HubLimits
from peen.wire import client, worker
from peen.wire.client import ClientLimits, Effort, FrameRefused, decode_client_frame, max_frame_bytes
from peen.wire.events import EVENTS
from peen.wire.operations import OPERATIONS, failures_of
from peen.wire.publish.__main__ import main
from peen.wire.publish.folder import GoldenChanged, files, schema_documents, write
from peen.wire.publish.frames import MessageData
from peen.wire.publish.golden import FRAME, SESSION
from peen.wire.publish.schemas import Schemas, bundle


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- the folder -----------------------------------------------------------------------------------------------------


def test_the_published_folder_is_what_the_code_says() -> None:
    assert contents(FOLDER) == files(), "out of date: run `make protocol`, and look at what changed"


def test_another_process_with_another_hash_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}

    run = [sys.executable, "-m", "peen.wire.publish", str(tmp_path / "new")]
    subprocess.run(run, env=environment, check=True, capture_output=True, cwd=FOLDER.parent)

    assert contents(tmp_path / "new") == contents(FOLDER)


def test_a_golden_frame_changes_only_when_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    frame, other = tmp_path / "golden" / "worker.beat.json", tmp_path / "README.md"
    frame.write_text('{"kind":"beet"}\n')
    other.write_text("old")

    assert main([str(tmp_path)]) == 1
    assert "golden/worker.beat.json" in capsys.readouterr().err
    assert (frame.read_text(), other.read_text()) == ('{"kind":"beet"}\n', "old")

    assert main([str(tmp_path), "--change-golden"]) == 0
    assert contents(tmp_path) == files()


def test_a_new_golden_frame_needs_no_permission_and_one_that_goes_does(tmp_path: Path) -> None:
    write(tmp_path, change_golden=False)
    (tmp_path / "golden" / "worker.beat.json").unlink()

    assert write(tmp_path, change_golden=False) == ["golden/worker.beat.json"]

    (tmp_path / "golden" / "worker.gone.json").write_text("{}\n")
    with pytest.raises(GoldenChanged) as refused:
        write(tmp_path, change_golden=False)
    assert refused.value.names == ["golden/worker.gone.json"]


def test_schemas_of_structures_that_are_gone_are_removed_and_foreign_files_stay(tmp_path: Path) -> None:
    write(tmp_path, change_golden=False)
    (tmp_path / "schemas" / "rest.Gone.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")

    assert write(tmp_path, change_golden=False) == ["schemas/rest.Gone.json"]

    assert contents(tmp_path) == {**files(), "notes.txt": b"mine"}


# --- the documents --------------------------------------------------------------------------------------------------


def test_the_openapi_document_is_valid_and_has_every_operation() -> None:
    whole = document("openapi")

    validate(whole)

    found = {(method.upper(), path) for path, methods in whole["paths"].items() for method in methods}
    assert found == {(row.method, row.path) for row in OPERATIONS}


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.id)
def test_every_failure_of_an_operation_is_documented_with_its_code(row: object) -> None:
    whole = document("openapi")
    operation = next(o for o in OPERATIONS if o is row)
    responses = whole["paths"][operation.path][operation.method.lower()]["responses"]

    documented = set()
    for status, response in responses.items():
        found = resolve(whole, response["$ref"]) if "$ref" in response else response
        if operation.media and status == str(operation.status):
            assert list(found["content"]) == list(operation.media)
            continue
        content = found["content"]["application/json"]["schema"]
        documented |= {(int(status), code) for code in content.get("allOf", [{}, {}])[-1].get("properties", {}).get(
            "code", {}).get("enum", [])}  # fmt: skip

    assert documented == {(failure.status, failure.code) for failure in failures_of(operation)}
    assert str(operation.status) in responses


@pytest.mark.parametrize("name", ["openapi", "asyncapi", "worker"])
def test_every_reference_leads_somewhere_and_every_component_is_used(name: str) -> None:
    whole = document(name)
    named = set(references(whole))

    for reference in named:
        resolve(whole, reference)
    schemas = whole["schemas"] if name == "worker" else whole["components"]["schemas"]
    prefix = "#/schemas/" if name == "worker" else "#/components/schemas/"
    assert {f"{prefix}{schema}" for schema in schemas} <= named


def test_the_asyncapi_document_sends_and_receives_every_frame_once() -> None:
    whole = document("asyncapi")
    directions = {operation["action"]: operation["messages"] for operation in whole["operations"].values()}
    heard = [reference["$ref"].rpartition("/")[2] for reference in directions["send"]]

    assert whole["asyncapi"] == "3.0.0"
    assert heard == [*EVENTS, "message.completed", "message.failed"]
    assert [reference["$ref"].rpartition("/")[2] for reference in directions["receive"]] == ["message.send"]
    assert whole["channels"]["socket"]["address"] == "/ws/v1"
    assert whole["components"]["messages"].keys() == whole["channels"]["socket"]["messages"].keys()


def test_limits_of_the_socket_in_the_text_are_those_of_the_hub() -> None:
    text, limits = document("asyncapi")["info"]["description"], HubLimits()

    assert f"every {limits.ping_s:g} s" in text
    assert f"for {limits.silent_s:g} s" in text
    assert f"{limits.held_bytes // 1024**2} MiB" in text
    assert f"{limits.held_frames} frames" in text
    assert str(max_frame_bytes(ClientLimits())) in document("asyncapi")["channels"]["socket"]["description"]


def test_the_worker_document_has_every_method_with_request_and_reply() -> None:
    whole = document("worker")

    assert whole["calls"].keys() == worker.CALLS.keys()
    assert whole["commands"].keys() == worker.COMMANDS.keys()
    assert whole["transport"]["maxFrameBytes"] == worker.MAX_FRAME_BYTES
    assert {"STALE_CLAIM", "INTERNAL_SERVER_ERROR"} <= set(whole["errorCodes"])


def test_the_guide_names_every_frame_and_every_failure() -> None:
    text = (FOLDER / "README.md").read_text()

    for name in [*EVENTS, "message.completed", "message.failed"]:
        assert f"| `{name}` |" in text
    for row in OPERATIONS:
        for failure in failures_of(row):
            assert f"| `{failure.code}` | {failure.status} |" in text
    assert "{" not in text.replace('{"', "").replace("{…", "")


# --- schemas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", schema_documents())
def test_a_schema_is_valid_and_stands_alone(name: str) -> None:
    schema = schema_documents()[name]

    Draft202012Validator.check_schema(schema)
    Draft202012Validator.check_schema(closed(schema))
    for reference in references(schema):
        resolve(schema, reference)


def test_the_published_message_has_the_members_that_are_accepted() -> None:
    accepted = {
        name
        for name in client._Data.__struct_encode_fields__
        if name not in client._REFUSED_FIELDS
    }  # fmt: skip

    assert set(MessageData.__struct_encode_fields__) == accepted


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"message": ""},
        {"message": 1},
        {"message": "x", "model": ""},
        {"message": "x", "reasoningEffort": "huge"},
        {"message": "x", "systemPrompt": {"mode": "append"}},
        {"message": "x", "systemPrompt": {"mode": "append", "content": ""}},
        {"message": "x", "systemPrompt": {"mode": "prepend", "content": "y"}},
        {"message": "x", "surprise": None},
        {"message": "x", "workspace": "/"},
    ],
)
def test_what_the_schema_of_a_message_refuses_the_server_refuses_too(data: dict[str, object]) -> None:
    frame = {"id": FRAME, "type": "message.send", "data": data, "metadata": {"sessionId": SESSION}}

    assert problems("frame.message.send", frame) != []
    with pytest.raises(FrameRefused):
        decode_client_frame(msgspec.json.encode(frame), ClientLimits())


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"model": None, "reasoningEffort": None, "systemPrompt": None},
        *[{"reasoningEffort": effort} for effort in get_args(Effort)],
        {"systemPrompt": {"mode": "replace", "content": "y"}, "model": "scripted/demo"},
    ],
)
def test_what_the_schema_of_a_message_allows_the_server_takes(extra: dict[str, object]) -> None:
    frame = {
        "id": FRAME, "type": "message.send", "data": {"message": "x", **extra}, "metadata": {"sessionId": SESSION},
        "timestamp": None, "triggeredBy": None,
    }  # fmt: skip

    assert problems("frame.message.send", frame) == []
    assert decode_client_frame(msgspec.json.encode(frame), ClientLimits()).message == "x"


def test_members_that_are_left_out_when_none_are_optional_and_not_nullable() -> None:
    class Sparse(msgspec.Struct, omit_defaults=True, rename="camel"):
        """Has `some_text`."""

        some_text: str | None = None
        several: list[int | None] = []
        count: int = 3

    assert bundle(Sparse) == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Sparse",
        "description": "Has `someText`.",
        "type": "object",
        "properties": {
            "someText": {"type": "string"},
            "several": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
            "count": {"type": "integer", "default": 3},
        },
    }


def test_two_structs_of_one_name_are_noticed() -> None:
    def make() -> type[msgspec.Struct]:
        return msgspec.defstruct("Twice", [("x", int)])

    schemas = Schemas("#/")
    schemas.ref(make())

    with pytest.raises(ValueError, match="Twice"):
        schemas.ref(make())
    schemas.put("Free", {"type": "object"})
    with pytest.raises(ValueError, match="Free"):
        schemas.put("Free", {"type": "string"})
