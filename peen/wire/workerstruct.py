"""What every struct on the worker socket is made of."""

from __future__ import annotations

from msgspec import Struct


class WorkerStruct(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Base of everything on the worker socket. Both ends are one release, so unknown fields are refused."""


class CallingTool(WorkerStruct, frozen=True, kw_only=True):
    """The tool call that acts: it must be running, in an execution that its worker holds."""

    execution_id: str
    holder: str
    call_id: str
