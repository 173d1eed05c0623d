"""What was sent to the model is kept as it was sent, at the price of what each round adds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from engine_kit import Attempt, Engine, StoreJournal, asks, engine, says, work
from msgspec import Raw, structs
from trio.testing import MockClock

from peen.context.count import message_tokens, text_tokens
from peen.context.projection import Conversation
from peen.errors import StorageFull
from peen.execution.requests import SentRequests, as_sent, sent_tokens
from peen.model.reasoning import kept_reasoning
from peen.model.stream import ModelInfo, ModelRequest
from peen.store import audit
from peen.store.blobs.decode import decode, earlier_values
from peen.store.direct import MemoryFile
from peen.wire.records import MessageRecord, NewBlob
from peen.wire.turncalls import CommitSteps, Committed
from peen.wire.worker import encode

LONG = "a line of output that is worth keeping once\n" * 30
ROUNDS = 40
MODEL = ModelInfo(name="up/m", connection_name="up", model_id="m")


def sent_as(request: ModelRequest) -> Any:
    """A request as it is saved, decoded."""
    head = {"model": request.model_id, "system": request.system, "tools": request.tools}
    return msgspec.json.decode(msgspec.json.encode(head)) | {
        "messages": [msgspec.json.decode(encode(as_sent(message, MODEL))) for message in request.messages]
    }


def saved_requests(own: Engine) -> list[Any]:
    """What the store says was sent, round by round of every completed run, decoded."""
    found = []
    db = own.db.reader
    for run in reversed(list(audit.runs(db, own.home.no, stage=None, state="completed", limit=99, offset=0))):
        for attempts in audit.rounds(db, run.no):
            latest = audit.requests(db, run.no, up_to_round=attempts[0].round, limit=1)
            depth = earlier_values(latest[0])
            chain = audit.requests(db, run.no, up_to_round=attempts[0].round, limit=depth + 1)
            found.append(msgspec.json.decode(decode(chain, own.home.blobs.fetcher(db, own.home.no))))
    return found


def rounds(count: int = ROUNDS) -> list[Attempt]:
    return [*(asks(("look", work(f"{number} {LONG}"))) for number in range(count)), says("done")]


async def test_every_request_of_a_long_turn_is_read_back_as_the_upstream_got_it(autojump_clock: MockClock) -> None:
    async with engine(*rounds(), *rounds(3)) as own:
        await own.run_turn("first")
        await own.run_turn("second")

        assert saved_requests(own) == [sent_as(request) for request in own.upstream.requests]


async def test_a_round_stores_what_it_adds_and_not_what_was_there(autojump_clock: MockClock) -> None:
    def stored(own: Engine) -> int:
        query = """SELECT coalesce(sum(octet_length(request)), 0) + (SELECT sum(octet_length(data)) FROM blob)
                     FROM model_call"""
        return int(own.db.reader.rows(query)[0][0])

    async with engine(*rounds(10), *rounds(10)) as own:
        await own.run_turn("first")
        first = stored(own)
        await own.run_turn("second")
        second = stored(own) - first

    assert second < first * 1.1


async def test_a_turn_does_not_send_blobs_again_that_the_turn_before_has_sent(autojump_clock: MockClock) -> None:
    async with engine(*rounds(5), says("done")) as own:
        await own.run_turn("first")
        before = len(own.journal.commits)
        await own.run_turn("second")
        sent = [blob.digest for commit in own.journal.commits[:before] for blob in commit.blobs]
        again = [blob.digest for commit in own.journal.commits[before:] for blob in commit.blobs]

    assert sent
    assert not set(sent) & set(again)


async def test_blobs_that_the_store_turns_out_not_to_have_are_sent_again(autojump_clock: MockClock) -> None:
    file = MemoryFile()
    async with engine(*rounds(5), file=file) as own:
        await own.run_turn("first")
        everything = {blob.digest for commit in own.journal.commits for blob in commit.blobs}

    # As after a commit that failed: the worker believes that the store has them, and it has not.
    async with engine(*rounds(5)) as own:
        (await own._workshop()).known_blobs.update(everything)
        actor = await own.run_turn("first")

        assert actor.state == "completed"
        assert saved_requests(own) == [sent_as(request) for request in own.upstream.requests]
        refused = [commit for commit in own.journal.commits if commit.calls and not commit.blobs]
        assert refused  # and nothing of it was stored: each round has one attempt
        assert own.db.reader.rows("SELECT count(*) FROM model_call") == [(len(own.upstream.requests),)]


async def test_a_request_that_could_not_be_stored_costs_no_later_turn(autojump_clock: MockClock) -> None:
    async with engine(*rounds(), says("lost"), says("kept")) as own:
        await own.run_turn("first")
        await own.replace_worker()  # the new one sends the whole conversation, whose runs are new to the store
        refuse_next_answer(own.journal)

        lost = await own.run_turn(f"second {LONG}")
        kept = await own.run_turn("third")

        assert (lost.state, kept.state) == ("failed", "completed")
        assert saved_requests(own)[-1] == sent_as(own.upstream.requests[-1])
        answers = [commit for commit in own.journal.commits if commit.calls]
        assert len(answers) == 1  # the worker knows that nothing of the lost one is there


def refuse_next_answer(journal: StoreJournal) -> None:
    """The disk is full at the next commit of an answer, once."""
    commit = journal.commit

    async def refuse_once(request: CommitSteps) -> Committed:
        if request.calls:
            journal.commit = commit  # type: ignore[method-assign]
            raise StorageFull("peen.db", "no space")
        return await commit(request)

    journal.commit = refuse_once  # type: ignore[method-assign]


async def test_parts_that_only_missing_parts_name_are_sent_as_well(autojump_clock: MockClock) -> None:
    async with engine(*rounds(), says("kept")) as own:
        await own.run_turn("first")
        history = own.upstream.requests[-1].messages
        await own.replace_worker()
        # Whatever the reason: the worker believes that the store has everything, down to the smallest part.
        known = (await own._workshop()).known_blobs
        longer = [*history, MessageRecord(role="assistant", content="done"), MessageRecord(role="user", content=LONG)]
        SentRequests(known, MODEL).save(structs.replace(own.upstream.requests[-1], messages=longer))

        actor = await own.run_turn(LONG)

        assert actor.state == "completed"
        assert saved_requests(own)[-1] == sent_as(own.upstream.requests[-1])
        attempts = [commit for commit in own.journal.commits if commit.calls]
        assert len(attempts) > 2  # one level of the tree after another


@pytest.mark.parametrize("change", ["shorter", "other", "same length"])
def test_a_conversation_that_did_not_only_grow_is_saved_whole(change: str) -> None:
    first = [MessageRecord(role="user", content=f"{number} {LONG}") for number in range(9)]
    then = {
        "shorter": first[:4],
        "other": [MessageRecord(role="user", content="a summary"), *first[6:]],
        "same length": [*first[:8], MessageRecord(role="user", content="another last one")],
    }[change]
    log = SentRequests(set(), MODEL)
    store: dict[bytes, bytes] = {}

    def save(messages: list[MessageRecord]) -> bytes:
        value, blobs = log.save(ModelRequest(model_id="m", system="s", messages=messages))
        store.update(_by_digest(blobs))
        return value

    save(first)
    value = save(then)

    assert earlier_values(value) == 0
    assert msgspec.json.decode(decode([value], store.__getitem__))["messages"] == [
        msgspec.json.decode(encode(message)) for message in then
    ]


def test_a_message_that_made_room_for_a_note_leaves_the_list_as_long_as_it_was() -> None:
    conversation = Conversation()
    for message in (user("asked and not answered"), MessageRecord(role="assistant", content=LONG), user("new")):
        conversation.add(message)
    log, known = SentRequests(set(), MODEL), ModelRequest(model_id="m", system="s", messages=conversation.messages)
    log.save(known)
    before = list(conversation.messages)

    assert conversation.drop(excess=1) == 1
    assert len(conversation.messages) == len(before)
    assert conversation.messages[-1] is before[-1]
    value, _ = log.save(structs.replace(known, messages=conversation.messages))
    assert earlier_values(value) == 0
    assert [message["content"] for message in messages_of(log, value)] == [m.content for m in conversation.messages]


def test_reasoning_counts_for_the_model_that_it_goes_back_to_and_for_no_other() -> None:
    kept = kept_reasoning([Raw(b'{"encrypted":"%b"}' % (b"x" * 4000))], upstream="a", model="b")
    answer = MessageRecord(role="assistant", content="yes", thinking=LONG, model="a/b", provider_reasoning=kept)
    own = ModelInfo(name="a/b", connection_name="a", model_id="b")
    returning = structs.replace(own, thinking_returns=True)

    assert sent_tokens(answer, MODEL) == message_tokens(MessageRecord(role="assistant", content="yes"))
    assert sent_tokens(answer, own) > 1000
    assert sent_tokens(answer, returning) == sent_tokens(answer, own) + text_tokens(LONG)


def test_reasoning_and_the_name_of_the_model_are_not_part_of_what_is_sent() -> None:
    kept = kept_reasoning([Raw(b"{}")], upstream="a", model="b")
    answer = MessageRecord(role="assistant", content="yes", thinking="hm", model="a/b", provider_reasoning=kept)

    assert as_sent(answer, MODEL) == MessageRecord(role="assistant", content="yes")


def test_reasoning_that_goes_back_to_its_model_is_part_of_what_is_sent() -> None:
    kept = kept_reasoning([Raw(b"{}")], upstream="a", model="b")
    answer = MessageRecord(role="assistant", content="yes", thinking="hm", model="a/b", provider_reasoning=kept)
    own = ModelInfo(name="a/b", connection_name="a", model_id="b")
    returning = msgspec.structs.replace(own, thinking_returns=True)

    assert as_sent(answer, own) == msgspec.structs.replace(answer, thinking=None, model=None)
    assert as_sent(answer, returning) == msgspec.structs.replace(answer, model=None)


def user(text: str) -> MessageRecord:
    return MessageRecord(role="user", content=text)


def messages_of(log: SentRequests, value: bytes) -> Any:
    """The messages of a saved value, with the parts that only its writer has."""
    return msgspec.json.decode(decode([value], lambda digest: log.blobs([digest])[0].data))["messages"]


def _by_digest(blobs: list[NewBlob]) -> dict[bytes, bytes]:
    return {blob.digest: blob.data for blob in blobs}
