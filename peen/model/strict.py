"""What a strict provider refuses, checked before anything is sent or scripted."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from peen.errors import ModelError
from peen.model.stream import ModelRequest
from peen.wire.records import MessageRecord


class _Pairing(Struct):
    """Calls seen so far: those that still wait for their result, and every id ever used."""

    open: set[str]
    used: set[str]


class StrictCheck:
    """Checks one conversation that grows: a round pays only for the messages that are new in it.

    After a refusal it must not be used again.
    """

    def __init__(self) -> None:
        self._pairing = _Pairing(open=set(), used=set())
        self._seen = 0

    def take(self, request: ModelRequest, new: Sequence[MessageRecord]) -> None:
        """Refuse `request`, whose last messages are `new` and whose others were taken before.

        Raises: ModelError as `strict_request_check` does.
        """
        names = [tool.name for tool in request.tools]
        if len(set(names)) != len(names):
            raise _refusal(f"tools: a name occurs twice among {', '.join(names)}")
        if not request.messages:
            raise _refusal("messages: must not be empty")
        for index, message in enumerate(new, self._seen):
            problem = _problem(message, self._pairing)
            if problem is not None:
                raise _refusal(f"messages[{index}]: {problem}")
        self._seen += len(new)
        if self._pairing.open:
            raise _refusal(f"messages: no result for the call {_listed(self._pairing.open)}")


def strict_request_check(request: ModelRequest) -> None:
    """Refuse what some provider would refuse.

    Every call has exactly one result, and the results follow their answer before anything else does; call ids are
    unique in the conversation; no user or assistant message is blank; tool names are unique.
    Raises: ModelError `invalid_request` with status 400, which names the message by its index.
    """
    StrictCheck().take(request, request.messages)


def _problem(message: MessageRecord, pairing: _Pairing) -> str | None:
    if message.role == "tool":
        return _take_result(message, pairing)
    if pairing.open:
        return f"a {message.role} message where the result of the call {_listed(pairing.open)} belongs"
    if message.role == "user":
        return None if message.content.strip() else "an empty user message"
    if message.role == "assistant":
        if not message.tool_calls:
            return None if message.content.strip() else "an empty assistant message"
        return _open_calls(message, pairing)
    return None


def _open_calls(message: MessageRecord, pairing: _Pairing) -> str | None:
    for call in message.tool_calls or ():
        if not call.id or not call.name:
            return "a call without an id or a name"
        if call.id in pairing.used:
            return f"the call id {call.id!r} was used before"
        pairing.used.add(call.id)
        pairing.open.add(call.id)
    return None


def _take_result(message: MessageRecord, pairing: _Pairing) -> str | None:
    if message.tool_call_id not in pairing.open:
        return f"a result for the call {message.tool_call_id!r}, which is not open"
    pairing.open.remove(message.tool_call_id)
    return None


def _listed(ids: set[str]) -> str:
    return ", ".join(sorted(repr(call_id) for call_id in ids))


def _refusal(problem: str) -> ModelError:
    return ModelError(f"the request is invalid: {problem}", kind="invalid_request", retryable=False, status=400)
