"""What a model is told of a tool: bytes that go to every provider alike."""

from __future__ import annotations

import msgspec


class ToolDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One tool. `parameters` is a plain JSON Schema object: no references, `additionalProperties` false."""

    name: str
    description: str
    parameters: msgspec.Raw
