"""The REST API as an OpenAPI 3.1 document, from the table of operations."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final

from peen.wire import rest
from peen.wire.operations import MAX_CURSOR, OPERATIONS, TAGS, Operation, Query, Whole, failures_of
from peen.wire.publish.envelope import SHA256, UUID, UUID4, Schema
from peen.wire.publish.schemas import Schemas, description

VERSION: Final = "1.0.0"
"""Of the protocol, not of the program. Additions raise the middle number."""

SERVER: Final = "http://127.0.0.1:8080"

_ABOUT: Final = """\
Reads what Peen has stored and controls running work. Messages for the agent go over the WebSocket at /ws/v1, which
asyncapi.yaml describes.

Every answer carries X-Request-ID: the one that was sent, if it is a UUID, else a new one. A path that does not exist
is 404 NOT_FOUND, a method that a path does not have 405 BAD_REQUEST with Allow. GET answers HEAD too. A trailing slash
makes no difference. Unknown query parameters and unknown members of a body are refused. Readers ignore members that
they do not know: later releases add some.
"""


def openapi_document() -> dict[str, Any]:
    schemas = Schemas("#/components/schemas/")
    paths: dict[str, Any] = {}
    responses: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas, responses)
    tags = dict.fromkeys(operation.tag for operation in OPERATIONS)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Peen REST API",
            "version": VERSION,
            "description": _ABOUT,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": SERVER, "description": "PEEN_HTTP_LISTEN_ADDRESS; this is the default."}],
        "security": [{}, {"bearer": []}],
        "tags": [{"name": tag, "description": TAGS[tag]} for tag in tags],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": dict(sorted(responses.items())),
            "parameters": _shared_parameters(),
            "headers": {
                "RequestId": {"description": "Names this exchange.", "required": True, "schema": UUID},
                "SessionId": {"description": "The session that was meant.", "required": True, "schema": UUID4},
            },
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Asked for where PEEN_API_TOKEN is set, and then on every call but the probes.",
                }
            },
        },
    }


def _shared_parameters() -> dict[str, Schema]:
    return {
        "RequestId": {
            "name": "X-Request-ID", "in": "header", "required": False, "schema": {"type": "string"},
            "description": "A UUID to find this exchange by. Anything else is replaced.",
        },
        "SessionId": {
            "name": "X-Session-ID", "in": "header", "required": True, "schema": UUID4,
            "description": "The session, as `POST /api/v1/sessions/open` returned it.",
        },
    }  # fmt: skip


def _operation(operation: Operation, schemas: Schemas, responses: dict[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = {"operationId": operation.id, "tags": [operation.tag], "summary": operation.summary}
    if operation.about:
        whole["description"] = operation.about
    if operation.public:
        whole["security"] = []
    whole["parameters"] = [{"$ref": "#/components/parameters/RequestId"}]
    if operation.session:
        whole["parameters"].append({"$ref": "#/components/parameters/SessionId"})
    whole["parameters"] += [
        {"name": name, "in": "path", "required": True, "schema": _path_schema(name)}
        for name in operation.path_parameters
    ]
    whole["parameters"] += [_query(parameter) for parameter in operation.query]
    if operation.method != "GET":
        whole["requestBody"] = _body(operation, schemas)
    whole["responses"] = {
        str(operation.status): _success(operation, schemas),
        **_failures(operation, schemas, responses),
    }
    return whole


def _path_schema(name: str) -> Schema:
    return SHA256 if name == "sha256" or name.endswith("Hash") else UUID4


def _query(parameter: Query) -> Schema:
    schema: Schema
    if isinstance(parameter, Whole):
        schema = {"type": "integer", "minimum": parameter.minimum, "maximum": parameter.maximum}
        if parameter.maximum == MAX_CURSOR:
            schema["format"] = "int64"
    else:
        schema = {"type": "string", "enum": list(parameter.choices)}
    if parameter.default is not None:
        schema["default"] = parameter.default
    about = {"name": parameter.name, "in": "query", "required": False, "description": parameter.about}
    return about | {"schema": schema}


def _body(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    if operation.body is not None:
        return {"required": True, "content": {"application/json": {"schema": schemas.ref(operation.body)}}}
    nothing: Schema = {"type": "object", "maxProperties": 0}
    return {
        "description": "None. The header Content-Type: application/json is needed all the same.",
        "required": False,
        "content": {"application/json": {"schema": nothing}},
    }


def _success(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    headers = {"X-Request-ID": {"$ref": "#/components/headers/RequestId"}}
    if operation.session or operation.answer is rest.OpenedSession:
        headers["X-Session-ID"] = {"$ref": "#/components/headers/SessionId"}
    return {
        "description": description(operation.answer) or operation.summary,
        "headers": headers,
        "content": (
            {media: {} for media in operation.media}
            if operation.media
            else {"application/json": {"schema": schemas.ref(operation.answer)}}
        ),
    }


def _failures(operation: Operation, schemas: Schemas, responses: dict[str, Any]) -> dict[str, Any]:
    """Each status outside 2xx. What several operations share is a component."""
    found: dict[str, Any] = {}
    for status, group in groupby(failures_of(operation), key=lambda failure: failure.status):
        failures = list(group)
        reasons: dict[str, list[str]] = {}
        for failure in failures:
            reasons.setdefault(failure.code, []).append(failure.when)
        response = _failure(reasons, schemas)
        if set(failures).isdisjoint(operation.failures):
            name = ".".join([str(status), *reasons])
            responses[name] = response
            response = {"$ref": f"#/components/responses/{name}"}
        found[str(status)] = response
    return found


def _failure(reasons: Mapping[str, list[str]], schemas: Schemas) -> dict[str, Any]:
    code: Schema = {"properties": {"code": {"enum": list(reasons)}}}
    return {
        "description": "\n".join(f"- `{name}`: {'; or '.join(when)}." for name, when in reasons.items()),
        "headers": {"X-Request-ID": {"$ref": "#/components/headers/RequestId"}},
        "content": {"application/json": {"schema": {"allOf": [schemas.ref(rest.ErrorBody), code]}}},
    }
