"""What the model of a simulated world was told: each message and each notice once, in order, in the right turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import msgspec
from sim_model import Asked, label_of
from sim_world import Home, World

from peen.store import feed, inbox, messages, turns
from peen.store.database import Reader
from peen.store.images import decode_refs
from peen.wire.records import MessageRecord
from peen.wire.summary import OMITTED_KIND, SUMMARY_KIND
from peen.wire.turncalls import HistoryMessage

PLENTY: Final = 1_000_000


def told(world: World, reader: Reader, home: Home) -> Iterator[str]:
    """Breaches of the promises 5 and 6 in one session."""
    rows = [row for row in _inbox(reader) if row.session_no == home.no]
    whole, _ = messages.history(reader, home.no, after=0, up_to=PLENTY, max_bytes=PLENTY * 100)
    asked = [each for each in world.ledger.asked if _belongs(each.messages, rows)]
    yield from _messages(reader, home, rows, whole)
    yield from _requests(whole, asked, _made_again(reader))
    yield from _completed(reader, home, whole, asked)
    yield from _answers(world, home, rows, asked)
    yield from _notices(world, reader, home, whole)


def _messages(reader: Reader, home: Home, rows: list[inbox.InboxRow], whole: list[HistoryMessage]) -> Iterator[str]:
    """5: every accepted message is in the transcript once, in order, or is listed as undelivered."""
    spoken = _spoken([row.message for row in whole])
    told = "\n".join(row.message.content for row in whole if row.message.role == "system")
    for text, count in Counter(spoken).items():
        if count > 1:
            yield f"5: message {text!r} stands {count} times in the transcript"
    for row in rows:
        match row.state:
            case "delivered":
                if row.content not in spoken:
                    yield f"5: message {row.content!r} is called delivered and is not in the transcript"
            case "undelivered":
                if row.content not in spoken and row.content not in told:
                    yield f"5: message {row.content!r} is called undelivered and nobody was told"
            case "queued":
                ended = None if row.turn_id is None else turns.by_id(reader, row.turn_id)
                if ended is None or ended.state not in ("cancelled", "interrupted"):
                    yield f"5: message {row.content!r} still waits"
                elif row.content not in told:
                    yield f"5: message {row.content!r} waits for somebody, and nobody was told"
            case _:
                yield f"5: message {row.content!r} is left in state {row.state}"
    held_back = _held_back(reader, home)
    accepted = [row.content for row in rows if row.content in spoken and row.request_id not in held_back]
    if accepted != [text for text in spoken if text in accepted]:
        yield f"5: messages were accepted as {accepted} and told as {spoken}"


def _requests(whole: list[HistoryMessage], requests: list[Asked], made_again: set[str]) -> Iterator[str]:
    """5: every request holds its messages once, in order, and none of a turn that ran while its own was paused."""
    records = [row.message for row in whole]
    spoken, dialogue, places = _spoken(records), _dialogue(records), _places(whole)
    first = {turn: min(at for other, at in places.values() if other == turn) for turn, _ in places.values()}
    for asked in requests:
        said = _spoken(asked.messages)
        if len(set(said)) != len(said):
            yield f"5: a request holds a message twice: {said}"
        if said != [text for text in spoken if text in said]:
            yield f"5: a request has its messages in another order: {said}, not {spoken}"
        if not _is_part(_dialogue(asked.messages), dialogue):
            yield f"5: a request tells who said what in another order than it was said: {_dialogue(asked.messages)}"
        late = [label for message in asked.messages if (label := _late_label(message)) and label not in made_again]
        if late:
            yield f"5: a request tells results apart from their calls, which had been there in time: {late}"
        own, at = places.get(said[-1], (0, 0))
        began = first.get(own, at)
        between = [text for text in said if text in places and places[text][0] != own and places[text][1] > began]
        if between:
            yield f"5: a request of turn {own} holds what was said in later turns: {between}"


def _completed(
    reader: Reader, home: Home, whole: list[HistoryMessage], requests: list[Asked]
) -> Iterator[str]:  # fmt: skip
    """5: the last request of a turn that completed holds every message that the turn was given.

    Where it says that something was left out, for want of room, that was in one before.
    """
    places = _places(whole)
    last: dict[int, set[str]] = {}
    for asked in requests:
        said = _spoken(asked.messages)
        if said[-1] in places:
            turn_no = places[said[-1]][0]
            is_short = any(message.injected_kind == OMITTED_KIND for message in asked.messages)
            last[turn_no] = set(said) | (last.get(turn_no, set()) if is_short else set())
    for turn in turns.page(reader, home.no, limit=PLENTY, offset=0):
        given = {text for text, (number, _) in places.items() if number == turn.no}
        if turn.state == "completed" and (missing := given - last.get(turn.no, set())):
            yield f"5: turn {turn.no} completed and its model had never heard of {sorted(missing)}"


def _answers(world: World, home: Home, rows: list[inbox.InboxRow], requests: list[Asked]) -> Iterator[str]:
    """5: what was acknowledged is stored, and the model has heard of it in the end."""
    told_once = [message for asked in requests for message in asked.messages]
    # Not the latest alone: a replaced worker may ask once more, before it learns that nothing of it counts.
    heard = [_text_of(asked.messages) for asked in requests]
    if not heard or any(message.injected_kind == OMITTED_KIND for message in told_once):
        heard.append(_text_of(told_once))  # what a note says was left out was heard before
    due = [row.content for row in rows if row.state != "queued"]
    for content in min(([content for content in due if content not in text] for text in heard), key=len):
        yield f"5: the model never heard of {content!r}"
    sent_with = {row.content: decode_refs(row.images) for row in rows}
    for content in {each.content for each in told_once if each.images != sent_with.get(each.content, each.images)}:
        yield f"5: the model was not shown the images of {content!r}"
    for sent in _sent(world, home):
        if sent.answer is None or sent.is_refused:
            yield f"5: message {sent.message.message!r} has no answer after {sent.tries} tries"
        elif UUID(sent.message.id).bytes not in [row.frame_id for row in rows]:
            yield f"5: message {sent.message.message!r} was acknowledged and is not stored"
        elif [image.ref for image in sent.message.images] not in [decode_refs(row.images) for row in rows]:
            yield f"5: the images of message {sent.message.message!r} are not stored"


def _notices(world: World, reader: Reader, home: Home, whole: list[HistoryMessage]) -> Iterator[str]:
    """6: every notice that is meant for the model is told to it once, at the latest when the next turn opens."""
    told = [row.message.content for row in whole if row.message.role == "user" and row.message.injected]
    # By the feed, not by the clock: what a full disk has put off is stored under the time at which it happened.
    shown = [(row.type, row.sequence) for row in feed.after(reader, home.no, 0, limit=PLENTY, max_bytes=PLENTY * 100)]
    created = [sequence for frame_type, sequence in shown if frame_type == "notice.created"]
    opened = max((sequence for frame_type, sequence in shown if frame_type == "turn.started"), default=0)
    for number, summary, state in reader.rows(
        "SELECT key & 0xFFFFFFFF, summary, state FROM notice WHERE source IN ('api', 'tools.job') "
        "AND key >> 32 = ? ORDER BY key",
        (home.no,),
    ):
        count = sum(summary in text for text in told)
        is_due = state == "delivered" or created[number - 1] < opened
        expected = ("delivered", 1) if is_due else ("pending", 0)
        if (state, count) != expected:
            yield f"6: notice {summary!r} is {state} and was told {count} times"
    for asked in world.ledger.asked:
        injected = [message for message in asked.messages if message.role == "user" and message.injected]
        blocks = [message.content for message in injected if message.injected_kind != OMITTED_KIND]
        if len(set(blocks)) != len(blocks):
            yield f"6: a request tells the same notices twice: {blocks}"


# --- helpers


def _text_of(messages: list[MessageRecord]) -> str:
    return "\n".join(message.content for message in messages)


def _inbox(reader: Reader) -> list[inbox.InboxRow]:
    return [inbox.InboxRow(*row) for row in reader.rows(inbox._SELECT + " ORDER BY no")]


def _held_back(reader: Reader, home: Home) -> set[bytes]:
    """Requests of messages that a Stop or an interruption left waiting: whatever came after it may overtake them."""
    waiting: set[bytes | None] = set()
    held: set[bytes | None] = set()
    for row in feed.after(reader, home.no, 0, limit=PLENTY, max_bytes=PLENTY * 100):
        if row.type == "userMessage.queued":
            waiting.add(row.request_id)
        elif row.type == "userMessage.delivered":
            waiting.discard(row.request_id)
        elif row.type in ("turn.cancelled", "turn.failed"):
            held |= waiting
    return {request for request in held if request is not None}


def _dialogue(said: list[MessageRecord]) -> list[tuple[str, str]]:
    """What user and model said, in turn: (role, text)."""
    shown = [message for message in said if message.injected_kind not in (SUMMARY_KIND, OMITTED_KIND)]
    return [(message.role, message.content) for message in shown if message.role in ("user", "assistant")]


def _is_part(part: list[tuple[str, str]], whole: list[tuple[str, str]]) -> bool:
    """Whether `whole` holds all of `part` in that order."""
    rest = iter(whole)
    return all(each in rest for each in part)


def _belongs(said: list[Any], rows: list[inbox.InboxRow]) -> bool:
    own = {row.content for row in rows}
    return any(message.role == "user" and message.content in own for message in said)


def _spoken(said: list[MessageRecord]) -> list[str]:
    """What the user said."""
    return [message.content for message in said if message.role == "user" and not message.injected]


def _late_label(message: MessageRecord) -> str | None:
    """Label of the tool whose result is told as one that came when its turn had ended; None for other messages."""
    start, _, result = message.content.partition(" Its result was:\n")
    is_late = message.role == "system" and start.startswith("After its turn") and result.startswith('{"said":')
    return str(msgspec.json.decode(result)["said"]) if is_late else None


def _made_again(reader: Reader) -> set[str]:
    """Labels of calls that were cut off at first."""
    rows = reader.rows("SELECT given FROM activity WHERE call_id IS NOT NULL AND attempt > 1")
    return {label_of(msgspec.json.encode(msgspec.json.decode(given)["arguments"])) for (given,) in rows}


def _places(whole: list[HistoryMessage]) -> dict[str, tuple[int, int]]:
    """Of each message of the user its turn and its place in the transcript."""
    return {
        row.message.content: (row.turn, row.sequence)
        for row in whole
        if row.message.role == "user" and not row.message.injected
    }


def _sent(world: World, home: Home) -> list[Any]:
    return [
        sent for client in world.clients for sent in client.sent.values() if sent.message.session_id == home.uuid
    ]  # fmt: skip
