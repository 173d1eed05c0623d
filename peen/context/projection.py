"""The stored transcript as a provider may see it: every call paired, ended turns replayed as they happened."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from peen.wire.worker import HistoryMessage, ImageRef, MessageRecord, ToolCallRecord


class Conversation:
    """Model input that grows by whole exchanges, so that a round does not pay for the history before it.

    Rules: the results of an assistant message follow it in the order of its calls; a call that never returned is
    left out of the replay (the ended turn's system message names it); a result without its call, because it came
    after its turn had ended, becomes a system message that names the call; blank replies are left out, and so is a
    call that has no name or an id used before: whatever was stored, no provider refuses what is built from it.
    """

    def __init__(self) -> None:
        self._messages: list[MessageRecord] = []
        self._call_ids: set[str] = set()
        self._images: dict[str, ImageRef] = {}

    @property
    def images(self) -> Collection[ImageRef]:
        """The images of all messages, each once."""
        return self._images.values()

    @property
    def call_ids(self) -> Collection[str]:
        """Ids of every call in the conversation."""
        return self._call_ids

    @property
    def messages(self) -> Sequence[MessageRecord]:
        return self._messages

    def add_history(self, history: Iterable[HistoryMessage]) -> None:
        """Append stored turns; a turn must be added whole, or from where it went on after a pause.

        Somebody may decide about a call of paused work while another turn runs: that result comes behind the turn.
        """
        pending: list[MessageRecord] = []
        decided: list[MessageRecord] = []
        turn = -1
        for row in history:
            if row.turn < turn and row.message.role == "tool":
                decided.append(row.message)
                continue
            if row.turn != turn:
                self._add_turn(pending)
                self._add_turn(decided)
                pending, decided, turn = [], [], row.turn
            pending.append(row.message)
        self._add_turn(pending)
        self._add_turn(decided)

    def add(self, message: MessageRecord) -> None:
        """Append one message that is complete by itself (no calls, no result)."""
        if message.role == "system" or not _is_blank(message):
            self._messages.append(message)
            for image in message.images:
                self._images[image.sha256] = image

    def add_exchange(self, reply: MessageRecord, results: Sequence[MessageRecord]) -> None:
        """Append an assistant message with the results of its calls."""
        by_call = {result.tool_call_id: result for result in results}
        calls: list[ToolCallRecord] = []
        for call in reply.tool_calls or []:
            if call.id in by_call and call.id not in self._call_ids and call.id and call.name:
                self._call_ids.add(call.id)
                calls.append(call)
        if not calls and _is_blank(reply):
            return
        kept = calls if calls else None
        self._messages.append(reply if reply.tool_calls == kept else msgspec.structs.replace(reply, tool_calls=kept))
        self._messages.extend(by_call[call.id] for call in calls)

    def _add_turn(self, turn: Sequence[MessageRecord]) -> None:
        results = {message.tool_call_id: message for message in turn if message.role == "tool"}
        calls: dict[str, ToolCallRecord] = {}
        before: set[str | None] = set()  # calls of a segment that has ended; the turn may have gone on since
        late: set[str | None] = set()
        for message in turn:
            if message.role == "system":
                before.update(calls)
            elif message.role == "tool" and (message.tool_call_id in before or message.tool_call_id not in calls):
                late.add(message.tool_call_id)
            for call in message.tool_calls or []:
                calls[call.id] = call
        for message in turn:
            match message.role:
                case "assistant":
                    own = [
                        results[call.id]
                        for call in message.tool_calls or []
                        if call.id in results and call.id not in late
                    ]
                    self.add_exchange(message, own)
                case "tool" if message.tool_call_id in late:
                    self.add(_late_result(message, calls.get(message.tool_call_id or "")))
                case "tool":
                    pass  # it stands behind its call already
                case _:
                    self.add(message)


def _is_blank(message: MessageRecord) -> bool:
    """White space alone says nothing, and providers refuse a message that says nothing."""
    return not message.content.strip()


def _late_result(result: MessageRecord, call: ToolCallRecord | None) -> MessageRecord:
    what = "a tool call" if call is None else f"the call {call.name} ({call.id})"
    outcome = "failed" if result.is_error else "returned"
    text = f"After its turn had ended, {what} {outcome}. Its result was:\n{result.content}"
    return MessageRecord(role="system", content=text)
