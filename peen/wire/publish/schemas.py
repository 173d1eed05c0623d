"""msgspec structs as JSON Schema (draft 2020-12, and within what draft-07 knows).

What a struct cannot say stands here: formats by the name of a member, and a few limits. Members whose None is left out
by the encoder are optional, not nullable. What the server sends is open: later releases may add members.
"""

from __future__ import annotations

import inspect
import re
from typing import Final

from msgspec import Struct
from msgspec import inspect as types

from peen.wire import events, rest
from peen.wire.publish.envelope import SHA256, UUID4, Schema, any_feed_frame

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_UUIDS: Final = frozenset(
    {
        "id", "sessionId", "turnId", "requestId", "generationId", "executionId", "workerGenerationId", "compactionId",
        "modelRunId", "agentRunId", "parentAgentRunId", "parentTurnId", "sourceEventId", "originEventId", "jobId",
        "parentCompactionId", "fromMessageId", "toMessageId",
    }
)  # fmt: skip
_PROVIDERS_IDS: Final = frozenset({"ToolCall", "ToolCallRecord", "ToolUseBlock"})
"""Structs whose `id` is the provider's own text."""

_EXTRA: Final[dict[tuple[str, str], Schema]] = {
    ("MessageData", "message"): {"minLength": 1, "pattern": r"\S"},
    ("MessageData", "model"): {"minLength": 1},
    ("SystemPrompt", "content"): {"minLength": 1, "pattern": r"\S"},
    ("OpenSession", "workspace"): {"pattern": r"^/[^\x00]*$"},
    ("PostNotice", "type"): {
        "pattern": r"^(?!(job|agent|turn)(\.|$))[a-z][a-z0-9]*(\.[a-z][a-z0-9]*){0,7}$",
        "maxLength": 128,
    },
    ("PostNotice", "summary"): {"pattern": r"\S", "maxLength": 4096},
    ("ContinueInput", "requestId"): UUID4,
    ("Prune", "olderThan"): {"pattern": rest.AGE_PATTERN},
    ("PostNotice", "data"): {"type": ["object", "null"]},
    ("ProtocolEvent", "payload"): {"type": "object"},
    ("ToolDefinition", "parameters"): {"type": "object"},
}
"""Rules that the code checks beyond the types, by struct and member."""

_PLAIN: Final[dict[type[types.Type], str]] = {
    types.StrType: "string",
    types.IntType: "integer",
    types.FloatType: "number",
    types.BoolType: "boolean",
    types.NoneType: "null",
}
_LIMITS: Final = {
    "ge": "minimum",
    "le": "maximum",
    "gt": "exclusiveMinimum",
    "lt": "exclusiveMaximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
}


class Schemas:
    """Collects the structs that one document names. `prefix` stands before a name in a reference."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._structs: dict[str, type[Struct]] = {}
        self._done: dict[str, Schema] = {}

    @property
    def components(self) -> dict[str, Schema]:
        """Every schema that was referred to, by name."""
        return dict(sorted(self._done.items()))

    @property
    def structs(self) -> dict[str, type[Struct]]:
        """Every struct that was referred to, by name."""
        return dict(sorted(self._structs.items()))

    def ref(self, struct: type[Struct]) -> Schema:
        """A reference to the schema of `struct`, which becomes a component."""
        name = struct.__name__
        if self._structs.setdefault(name, struct) is not struct:
            raise ValueError(f"two structs are called {name}: {struct.__module__}, {self._structs[name].__module__}")
        if name not in self._done:
            self._done[name] = {}  # a struct may refer to itself
            self._done[name] = self.inline(struct)
        return {"$ref": f"{self._prefix}{name}"}

    def put(self, name: str, schema: Schema) -> Schema:
        """A component that is no struct; a reference to it."""
        if self._done.setdefault(name, schema) != schema:
            raise ValueError(f"two schemas are called {name}")
        return {"$ref": f"{self._prefix}{name}"}

    def inline(self, struct: type[Struct]) -> Schema:
        """The schema of `struct` itself; what it holds is referred to."""
        described = types.type_info(struct)
        assert isinstance(described, types.StructType)
        is_sparse = struct.__struct_config__.omit_defaults
        properties: dict[str, Schema] = {}
        required: list[str] = []
        if described.tag_field is not None:
            properties[described.tag_field] = {"type": "string", "const": described.tag}
            required.append(described.tag_field)
        for field in described.fields:
            properties[field.encode_name] = self._member(struct.__name__, field, is_sparse=is_sparse)
            if field.required:
                required.append(field.encode_name)
        schema: Schema = {"type": "object", "properties": properties}
        if about := description(struct):
            schema = {"description": about, **schema}
        if required:
            schema["required"] = required
        if described.forbid_unknown_fields and struct.__module__ != events.__name__:
            schema["additionalProperties"] = False
        return schema

    def _member(self, owner: str, field: types.Field, *, is_sparse: bool) -> Schema:
        type_, default = field.type, field.default
        if is_sparse and default is None and isinstance(type_, types.UnionType):
            type_ = _without_none(type_)
        schema = self.of(type_)
        if schema == {"type": "string"}:
            schema |= _format(owner, field.encode_name)
        schema |= _EXTRA.get((owner, field.encode_name), {})
        if (owner, field.encode_name) == ("FeedPage", "items"):
            schema["items"] = self.put("FeedFrame", any_feed_frame())
        return schema | {"default": default} if isinstance(default, (str, int, float, bool)) else schema

    def of(self, type_: types.Type) -> Schema:
        """The schema of a type as `msgspec.inspect` describes it."""
        match type_:
            case types.Metadata(type=inner, extra_json_schema=extra):
                return self.of(inner) | (extra or {})
            case types.StructType(cls=struct):
                return self.ref(struct)
            case types.UnionType(types=members):
                wanted = "oneOf" if all(isinstance(m, types.StructType) and m.tag_field for m in members) else "anyOf"
                return {wanted: [self.of(member) for member in members]}
            case types.LiteralType(values=values):
                return {"type": "string", "enum": list(values)}
            case types.ListType(item_type=item):
                return {"type": "array", "items": self.of(item)}
            case types.BytesType():
                return {"type": "string", "contentEncoding": "base64"}
            case types.DictType(value_type=held):
                values_schema = self.of(held)
                return (
                    {"type": "object", "additionalProperties": values_schema} if values_schema else {"type": "object"}
                )
            case types.RawType() | types.AnyType() | types.CustomType():
                return {}
            case _:
                found = {key: getattr(type_, name, None) for name, key in _LIMITS.items()}
                limits = {key: limit for key, limit in found.items() if limit is not None}
                return {"type": _PLAIN[type(type_)], **limits}


def bundle(struct: type[Struct]) -> Schema:
    """A document of its own: the schema of `struct`, with everything that it refers to in `$defs`."""
    schemas = Schemas("#/$defs/")
    return stand_alone(struct.__name__, schemas.inline(struct), schemas)


def stand_alone(title: str, schema: Schema, schemas: Schemas) -> Schema:
    """`schema`, whose references `schemas` has collected below `#/$defs/`, as a document."""
    whole: Schema = {"$schema": DIALECT, "title": title, **schema}
    return whole | {"$defs": schemas.components} if schemas.components else whole


def description(struct: type[Struct]) -> str:
    """The struct's own docstring, a paragraph a line, with members as they are spelt on the wire."""
    text = inspect.cleandoc(struct.__dict__.get("__doc__") or "")
    lines = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    spelt = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
    return re.sub(r"`(\w+)`", lambda found: f"`{spelt.get(found[1], found[1])}`", lines)


def _without_none(union: types.UnionType) -> types.Type:
    left = [member for member in union.types if not isinstance(member, types.NoneType)]
    return left[0] if len(left) == 1 else types.UnionType(tuple(left))


def _format(owner: str, name: str) -> Schema:
    if name in _UUIDS and not (name == "id" and owner in _PROVIDERS_IDS):
        return {"format": "uuid"}
    if name.endswith("At"):
        return {"format": "date-time"}
    if name.endswith("Hash") or name in ("hash", "sha256"):
        return SHA256
    return {}
