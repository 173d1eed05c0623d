"""The stored transcript as a provider may see it: every call paired, ended turns replayed as they happened."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import msgspec

from peen.context.count import message_tokens
from peen.context.turns import stored_turns
from peen.context.units import Unit, note, plan_drop, without
from peen.wire.records import ImageRef, MessageRecord, ToolCallRecord
from peen.wire.summary import SUMMARY_KIND
from peen.wire.turncalls import HistoryMessage


class Conversation:
    """Model input that grows by whole exchanges, so that a round does not pay for the history before it.

    Rules: the results of an assistant message follow it in the order of its calls; a call that never returned is
    left out of the replay (the ended turn's system message names it); a result without its call, because it came
    after its turn had ended, becomes a system message that names the call; blank replies are left out, and so is a
    call that has no name or an id used before: whatever was stored, no provider refuses what is built from it.
    """

    def __init__(self, count: Callable[[MessageRecord], int] = message_tokens) -> None:
        """`count` gives the tokens of a message as its model is sent it."""
        self._count_one = count
        self._units: list[Unit] = []
        self._messages: list[MessageRecord] = []
        self._call_ids: set[str] = set()
        self._images: dict[str, ImageRef] = {}
        self._counted: dict[int, tuple[MessageRecord, int]] = {}  # messages that are on their way
        self._summary: Unit | None = None
        self.tokens = 0
        """What all messages count together."""
        self._asked: dict[tuple[int, str | None], ToolCallRecord] = {}
        """Calls of stored turns, by turn and id: a late result may stand behind other turns."""

    @property
    def images(self) -> Collection[ImageRef]:
        """The images of the messages, each once. Those of what a summary or a note stands for are not among them."""
        return self._images.values()

    @property
    def call_ids(self) -> Collection[str]:
        """Ids of every call in the conversation."""
        return self._call_ids

    @property
    def messages(self) -> Sequence[MessageRecord]:
        return self._messages

    @property
    def units(self) -> Sequence[Unit]:
        """What the messages are made of, without the summary in front of them."""
        return self._units

    @property
    def summary_tokens(self) -> int:
        """What the summary in front counts; 0 if there is none."""
        return 0 if self._summary is None else self._summary.tokens

    def count(self, messages: Iterable[MessageRecord]) -> int:
        """What messages count that are to be added next; adding them does not count them again."""
        return sum(self._count(message) for message in messages)

    def add_history(self, history: Iterable[HistoryMessage], counts: Iterable[int] = ()) -> None:
        """Append stored turns; a turn must be added whole, or from where it went on after a pause.

        Somebody may decide about a call of paused work while another turn runs: that result comes behind the turn.
        `counts` are those of the messages, as far as known.
        """
        stored = list(history)
        for row, tokens in zip(stored, counts, strict=False):
            self._counted[id(row.message)] = row.message, tokens
        for turn in stored_turns(stored):
            self._add_turn(turn.own, turn.through)
            self._add_turn(turn.decided, turn.through)
        self._counted.clear()

    def add(self, message: MessageRecord, *, through: int = 0) -> None:
        """Append one message that is complete by itself (no calls, no result)."""
        if message.role == "system" or not _is_blank(message):
            self._append((message,), through)

    def add_exchange(self, reply: MessageRecord, results: Sequence[MessageRecord], *, through: int = 0) -> None:
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
        said = reply if reply.tool_calls == kept else msgspec.structs.replace(reply, tool_calls=kept)
        self._append((said, *(by_call[call.id] for call in calls)), through)

    def summarize(self, text: str, *, through: int) -> None:
        """Put the summary `text` in the place of every stored turn up to the message with that sequence."""
        message = MessageRecord(role="user", content=text, injected=True, injected_kind=SUMMARY_KIND)
        self._summary = Unit((message,), message_tokens(message), through)
        left: list[Unit] = []
        for unit in self._units:
            gone = [missing for missing in unit.gone if not 0 < missing[0] <= through]
            if unit.gone:
                left += [note(gone)] if gone else []
            elif not 0 < unit.through <= through:
                left.append(unit)
        self._keep(left)

    def drop(self, *, excess: int) -> int:
        """Leave out the oldest units, until at least `excess` tokens are gone or nothing more may go.

        A note stands where something went. The number of messages that went.
        """
        gone = set(plan_drop(self._units, excess=excess))
        if not gone:
            return 0
        went = sum(len(unit.messages) for at, unit in enumerate(self._units) if at in gone)
        self._keep(without(self._units, gone.__contains__))
        return went

    def change(self, changed: Callable[[MessageRecord], MessageRecord]) -> bool:
        """Send `changed(message)` in the place of each message that is there; whether any is another one by that."""
        units = [self._changed(unit, changed) for unit in self._units]
        if all(map(operator.is_, units, self._units)):
            return False
        self._keep(units)
        return True

    def _changed(self, unit: Unit, changed: Callable[[MessageRecord], MessageRecord]) -> Unit:
        messages = tuple(map(changed, unit.messages))
        if all(map(operator.is_, messages, unit.messages)):
            return unit
        return replace(unit, messages=messages, tokens=sum(map(self._count_one, messages)))

    def _append(self, messages: tuple[MessageRecord, ...], through: int) -> None:
        tokens = self.count(messages)
        for message in messages:
            self._counted.pop(id(message), None)
        self._units.append(Unit(messages, tokens, through))
        self._messages.extend(messages)
        self._images |= _images_of(messages)
        self.tokens += tokens

    def _count(self, message: MessageRecord) -> int:
        known = self._counted.get(id(message))
        if known is None:
            known = self._counted[id(message)] = message, self._count_one(message)
        return known[1]

    def _keep(self, units: list[Unit]) -> None:
        """Let the conversation be the summary and these units."""
        self._units = units
        shown = [*([] if self._summary is None else [self._summary]), *units]
        # A new list: whoever holds the old one has what was sent.
        self._messages = [message for unit in shown for message in unit.messages]
        self._images = _images_of(self._messages)
        self.tokens = sum(unit.tokens for unit in shown)

    def _add_turn(self, rows: Sequence[HistoryMessage], through: int) -> None:
        turn = [row.message for row in rows]
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
        for row in rows:
            self._asked.update({(row.turn, call.id): call for call in row.message.tool_calls or []})
        for row in rows:
            message = row.message
            match message.role:
                case "assistant":
                    own = [
                        results[call.id]
                        for call in message.tool_calls or []
                        if call.id in results and call.id not in late
                    ]
                    self.add_exchange(message, own, through=through)
                case "tool" if message.tool_call_id in late:
                    asked = self._asked.get((row.turn, message.tool_call_id))
                    self.add(_late_result(message, asked), through=through)
                case "tool":
                    pass  # it stands behind its call already
                case _:
                    self.add(message, through=through)


def _is_blank(message: MessageRecord) -> bool:
    """White space alone says nothing, and providers refuse a message that says nothing."""
    return not message.content.strip()


def _images_of(messages: Iterable[MessageRecord]) -> dict[str, ImageRef]:
    return {image.sha256: image for message in messages for image in message.images}


def _late_result(result: MessageRecord, call: ToolCallRecord | None) -> MessageRecord:
    what = "a tool call" if call is None else f"the call {call.name} ({call.id})"
    outcome = "failed" if result.is_error else "returned"
    text = f"After its turn had ended, {what} {outcome}. Its result was:\n{result.content}"
    return MessageRecord(role="system", content=text)
