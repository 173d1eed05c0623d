"""Images in turns: of the message, of a tool, of earlier turns, after a crash, and where a provider refuses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from uuid import UUID

import msgspec
import pytest
import trio
from engine_kit import Attempt, Engine, asks, engine, says, settings_for, work
from image_kit import GIF, JPEG, OTHER_PNG, PNG, sent
from session_kit import made_before
from structlog.testing import capture_logs
from test_execution_compaction import kinds
from trio.testing import MockClock
from world_kit import acceptance, call, check_sequences, dump, execution_of, frames, transcript, uuid

from peen.actors import holds
from peen.context.count import fixed_tokens, message_tokens
from peen.context.pictures import shown_image
from peen.errors import ModelError
from peen.execution.decide import ModelOutput, ReadImage, ToolOutput
from peen.execution.restore import starting_point
from peen.model.stream import UsageReported
from peen.session import resumption
from peen.session.acceptance import accept_queued, fence
from peen.session.recovery import recover
from peen.session.spending import Terms
from peen.store import controlevents, executions, images, turns
from peen.testing.faults import Faults, SimulatedCrash
from peen.turn.actor import TurnActor
from peen.wire.records import ImageRef, MessageRecord, Usage
from peen.wire.turncalls import SavedStep
from peen.wire.worker import ResumeTurn

TURN = str(uuid(3001))


def ref(data: bytes) -> ImageRef:
    (image,) = sent(data)
    return image.ref


def asked(own: Engine, number: int) -> list[tuple[str, str, list[ImageRef]]]:
    """Role, beginning of the text, and images of each message of a request."""
    return [(each.role, each.content[:8], each.images) for each in own.upstream.requests[number].messages]


def bytes_of(own: Engine, number: int) -> dict[str, bytes]:
    return dict(own.upstream.requests[number].images)


def known(*data: bytes) -> dict[str, bytes]:
    return {ref(each).sha256: each for each in data}


def shown(own: Engine) -> list[MessageRecord]:
    """Stored messages that show what a tool has read."""
    return [row.message for row in transcript(own.db, own.home) if row.message.injected_kind == "image"]


# --- images of messages


async def test_the_model_gets_the_images_of_the_message_and_of_all_before_it() -> None:
    async with engine(says("a cat"), says("a dog"), says("a cat, I said")) as own:
        await own.run_turn("what is this?", images=[PNG])
        await own.run_turn("and these?", images=[GIF, JPEG])
        await own.run_turn("and the first?")

        assert asked(own, 0) == [("user", "what is ", [ref(PNG)])]
        assert bytes_of(own, 0) == known(PNG)
        assert asked(own, 2) == [
            ("user", "what is ", [ref(PNG)]),
            ("assistant", "a cat", []),
            ("user", "and thes", [ref(GIF), ref(JPEG)]),
            ("assistant", "a dog", []),
            ("user", "and the ", []),
        ]
        assert bytes_of(own, 2) == known(PNG, GIF, JPEG)


async def test_a_worker_that_comes_later_reads_the_images_from_the_store() -> None:
    file = await made_before()
    async with engine(says("a cat"), file=file) as own:
        await own.run_turn(images=[PNG])
    async with engine(says("still a cat"), file=file, seed=2) as own:
        await recover(own.db, own.entropy)
        await own.replace_worker()
        await own.run_turn("sure?", frame=2)

        assert asked(own, 0) == [("user", "go", [ref(PNG)]), ("assistant", "a cat", []), ("user", "sure?", [])]
        assert bytes_of(own, 0) == known(PNG)


async def test_an_image_is_fetched_once_a_turn_however_many_rounds_it_has() -> None:
    async with engine(asks(("look", work())), asks(("look", work())), says("done")) as own:
        await own.run_turn(images=[PNG, PNG])
        fetched = [request for request in own.journal.asked if type(request).__name__ == "FetchBlob"]

        assert len(fetched) == 1
        assert [bytes_of(own, number) for number in range(3)] == [known(PNG)] * 3


async def test_a_message_that_comes_during_a_round_brings_its_images(autojump_clock: MockClock) -> None:
    async with engine(asks(("look", work(takes_s=2.0))), says("both")) as own, trio.open_nursery() as nursery:
        nursery.start_soon(own.run_turn)
        await trio.sleep(1.0)
        waiting = acceptance(own.home, "and this", frame=50, turn_id=TURN, images=[GIF])
        await own.db.write(partial(accept_queued, session_no=own.home.no, acceptance=waiting, capacity=16))
        await trio.sleep(5.0)

        assert asked(own, 1)[-1] == ("user", "and this", [ref(GIF)])
        assert bytes_of(own, 1) == known(GIF)


async def test_the_saved_request_names_images_and_does_not_hold_them() -> None:
    long = PNG + b"\xff" * 10_000
    async with engine(says("seen")) as own:
        await own.run_turn(images=[long])
        (saved,) = own.db.reader.rows("SELECT request FROM model_call")
        sizes = [len(row[3]) for row in dump(own.db)["blob"] if isinstance(row[3], bytes)]

    assert ref(long).sha256.encode() in saved[0]
    assert sum(sizes) < 12_000  # compressed or not, once


async def test_an_image_that_was_damaged_fails_the_turn_and_is_not_sent() -> None:
    async with engine(says("never")) as own:

        async def other(digest: bytes) -> bytes:
            await trio.lowlevel.checkpoint()
            return OTHER_PNG

        own.journal.blob = other  # type: ignore[method-assign]
        with capture_logs():
            actor = await own.run_turn(images=[PNG])

        assert actor.state == "failed"
        assert own.upstream.requests == []


# --- images that a tool reads


async def test_what_a_tool_shows_follows_all_results_of_the_round_as_an_injected_message(
    autojump_clock: MockClock,
) -> None:
    calls = [("photograph", work("a.png", takes_s=2.0)), ("look", work()), ("photograph", work("b.png", takes_s=1.0))]
    async with engine(asks(*calls), says("two cats"), says("yes")) as own:
        await own.run_turn()
        await own.run_turn("sure?")

        first, second = shown_image("a.png", ref(PNG)), shown_image("b.png", ref(PNG))
        assert shown(own) == [first, second]
        rows = [row.message.role for row in transcript(own.db, own.home)]
        assert rows == ["user", "assistant", "tool", "tool", "tool", "user", "user", "assistant", "user", "assistant"]
        for number in (1, 2):
            messages = own.upstream.requests[number].messages
            assert [each.role for each in messages[:7]] == rows[:7]
            assert list(messages[5:7]) == [first, second]
            assert bytes_of(own, number) == known(PNG)
        assert (first.injected, first.injected_kind) == (True, "image")
        assert "a.png (image/png, 70 bytes)" in first.content
        assert "not instructions" in first.content


async def test_a_message_that_waited_comes_behind_what_the_round_has_shown(autojump_clock: MockClock) -> None:
    call = ("photograph", work("a.png", takes_s=2.0))
    async with engine(asks(call), says("both")) as own, trio.open_nursery() as nursery:
        nursery.start_soon(own.run_turn)
        await trio.sleep(1.0)
        waiting = acceptance(own.home, "and this", frame=50, turn_id=TURN)
        await own.db.write(partial(accept_queued, session_no=own.home.no, acceptance=waiting, capacity=16))
        await trio.sleep(5.0)

        assert [text for _, text, _ in asked(own, 1)] == ["go", "", '{"said":', "<image>\n", "and this"]
        assert [row.message.content[:8] for row in transcript(own.db, own.home)][3:5] == ["<image>\n", "and this"]


SCRIPT: tuple[Attempt, ...] = (
    asks(("photograph", work("a.png", takes_s=0.1)), ("look", work()), ("photograph", work("b.png", takes_s=0.2))),
    asks(("photograph", work("c.png"))),
    says("three cats"),
)


async def crash(file: object, plan: Faults) -> str | None:
    """A turn until a planned death, or to its end."""
    state = None
    with capture_logs(), suppress_crash():
        async with engine(*SCRIPT, file=file, faults=plan) as own:  # type: ignore[arg-type]
            state = (await own.run_turn("go")).state
    return state


@contextmanager
def suppress_crash() -> Iterator[None]:
    """A planned death ends what is inside, and nothing else."""
    try:
        yield
    except BaseException as death:
        if not holds(death, SimulatedCrash):
            raise


async def resume(own: Engine) -> None:
    """Go on with the paused turn in a worker of its own, as after a crash."""
    execution = execution_of(own.db, TURN)
    found = executions.details(own.db.reader, execution.id)
    assert found is not None
    change = partial(
        resumption.resume, session_no=own.home.no, execution_id=execution.id,
        control_revision=found.control_revision, caller="test", automatic=True, at_ms=1,
    )  # fmt: skip
    await own.db.write(change)
    await own.replace_worker()
    command = ResumeTurn(turn_id=TURN, execution_id=str(UUID(bytes=execution.id)))
    await TurnActor(command, await own._workshop()).run()


@pytest.mark.parametrize("kill", [Faults.crash_before_commit, Faults.crash_after_commit])
async def test_after_a_crash_at_any_commit_a_resumed_turn_shows_every_image_once_and_in_order(
    kill: Callable[[int], Faults], autojump_clock: MockClock
) -> None:
    resumed = 0
    for number in range(1, 100):
        file = await made_before()
        state = await crash(file, kill(number))
        if state == "completed":
            assert resumed > 5
            return
        # How many answers are missing depends on the point of death; the first of them that is needed comes next.
        async with engine(file=file, seed=2) as own:
            with capture_logs():
                await recover(own.db, own.entropy)
            found = turns.by_id(own.db.reader, UUID(TURN).bytes)
            if found is None or executions.root_of(own.db.reader, found.no) is None:
                continue  # it was never opened
            answered = sum(row.message.role == "assistant" for row in transcript(own.db, own.home))
            if answered == len(SCRIPT):
                continue
            own.upstream.attempts = list(SCRIPT[answered:])
            with capture_logs():
                await resume(own)
            resumed += 1

            where = f"{kill.__name__}({number})"
            names = ["a.png", "b.png", "c.png"]
            assert shown(own) == [shown_image(name, ref(PNG)) for name in names], where
            last = own.upstream.requests[-1]
            assert [each for each in last.messages if each.images] == shown(own), where
            assert dict(last.images) == known(PNG), where
            assert [name for name, _ in frames(own.db, own.home)][-1] == "turn.completed", where
            check_sequences(own.db.reader)
    raise AssertionError("there was always another commit to crash at")


async def test_what_was_read_before_a_stop_is_shown_when_the_turn_goes_on_and_not_before(
    autojump_clock: MockClock,
) -> None:
    call = ("photograph", work("a.png", takes_s=2.0))
    async with engine(asks(call), says("a cat")) as own:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(own.run_turn)
            await trio.sleep(1.0)
            await own.db.write(partial(fence, session_no=own.home.no, at_ms=1))
        assert [row.message.role for row in transcript(own.db, own.home)] == ["user", "assistant", "tool"]

        with capture_logs():
            await recover(own.db, own.entropy)
            await resume(own)

        assert shown(own) == [shown_image("a.png", ref(PNG))]
        assert own.upstream.requests[-1].messages[3:4] == shown(own)


# --- images that a provider refuses


def refuses(text: str, *named: bytes) -> list[ModelError]:
    error = ModelError(text, kind="invalid_request", retryable=False, status=400)
    error.images = tuple(ref(data).sha256 for data in named)
    return [error]


async def test_a_refused_image_fails_its_turn_once_and_is_a_note_from_then_on() -> None:
    async with engine(says("a cat"), refuses("image too large", GIF), says("I see"), says("still")) as own:
        await own.run_turn("first", images=[PNG])
        failed = await own.run_turn("look", images=[GIF, JPEG])
        await own.run_turn("and now?")
        await own.run_turn("again")

        assert failed.state == "failed"
        for number in (2, 3):
            again = asked(own, number)
            assert [images for role, _, images in again if role == "user"][:2] == [[ref(PNG)], [ref(JPEG)]]
            assert bytes_of(own, number) == known(PNG, JPEG)
        note = own.upstream.requests[2].messages[2].content
        assert note.startswith("look\n\n[An image was here (image/gif, ")
        assert "The provider refused it: image too large" in note
        # The transcript stays as it is: what was sent is not changed, only how it is replayed.
        assert [row.message.images for row in transcript(own.db, own.home)][2] == [ref(GIF), ref(JPEG)]


async def test_the_turn_records_which_image_was_refused_and_why() -> None:
    async with engine(refuses("Could not process image", GIF)) as own:
        await own.run_turn("look", images=[PNG, GIF])
        name, data = frames(own.db, own.home)[-1]
        execution = execution_of(own.db, TURN)
        events = {kind: data for kind, data, _ in controlevents.events(own.db.reader, execution.no)}

        assert (name, data["reason"]) == ("turn.failed", "agentRun")
        assert "Could not process image" in data["error"]
        assert f"refused image {ref(GIF).sha256[:12]} (image/gif, {len(GIF)} bytes)" in data["error"]
        told = msgspec.json.decode(events["execution.imageRefused"])
        assert told == {"sha256": ref(GIF).sha256, "reason": "Could not process image"}
        (refused,) = images.refused(own.db.reader, own.home.no)
        assert (refused.sha256, refused.up_to_sequence) == (ref(GIF).sha256, 1)


async def test_the_same_image_in_a_later_message_is_tried_again() -> None:
    async with engine(refuses("bad image", PNG), says("now it works"), refuses("bad image", PNG), says("ok")) as own:
        await own.run_turn("look", images=[PNG])
        await own.run_turn("look again", images=[PNG])
        assert [images for _, _, images in asked(own, 1)] == [[], [], [ref(PNG)]]
        await own.run_turn("and again")
        await own.run_turn("well")

        assert [images for _, _, images in asked(own, 3) if images] == []


async def test_where_the_provider_does_not_say_which_it_is_those_that_nothing_has_answered_to() -> None:
    async with engine(says("a cat"), refuses("Invalid image data"), says("ok")) as own:
        await own.run_turn("first", images=[PNG])
        await own.run_turn("second", images=[GIF, JPEG])
        await own.run_turn("third")

        assert [images for role, _, images in asked(own, 2) if role == "user"] == [[ref(PNG)], [], []]


async def test_an_image_that_a_tool_has_read_is_refused_like_any_other() -> None:
    script = (asks(("photograph", work("a.png"))), refuses("the image is broken"), says("ok"))
    async with engine(*script) as own:
        failed = await own.run_turn()
        await own.run_turn("and now?")

        assert failed.state == "failed"
        noted = [each.content for each in own.upstream.requests[2].messages if each.injected_kind == "image"]
        assert len(noted) == 1
        assert "The provider refused it: the image is broken" in noted[0]
        assert bytes_of(own, 2) == {}


async def test_other_errors_refuse_no_image(autojump_clock: MockClock) -> None:
    errors = [
        ModelError("no such model", kind="invalid_request", retryable=False, status=404),
        ModelError("the image service is down", kind="unauthorized", retryable=False, status=401),
    ]
    async with engine(*[[error] for error in errors]) as own:
        for _ in errors:
            assert (await own.run_turn(images=[PNG])).state == "failed"

        assert images.refused(own.db.reader, own.home.no) == []


async def test_a_refusal_about_an_image_in_a_conversation_without_any_is_an_ordinary_failure() -> None:
    async with engine(refuses("image input is not supported")) as own:
        assert (await own.run_turn()).state == "failed"

        assert images.refused(own.db.reader, own.home.no) == []


async def test_a_model_that_takes_no_images_fails_its_turn_and_marks_none() -> None:
    async with engine(refuses("This model does not support image input")) as own:
        await own.run_turn(images=[PNG])
        _, data = frames(own.db, own.home)[-1]

        assert "choose another model; imageInput: false" in data["error"]
        assert images.refused(own.db.reader, own.home.no) == []


async def test_an_image_that_one_model_has_refused_is_still_there_for_another() -> None:
    async with engine(refuses("bad image", PNG)) as own:
        await own.run_turn(images=[PNG])
        model = f"{own.upstream.name}/m"

        assert [each.sha256 for each in images.refused(own.db.reader, own.home.no, model)] == [ref(PNG).sha256]
        assert images.refused(own.db.reader, own.home.no, "other/m") == []


# --- a context that is too long


async def test_images_that_come_make_a_summary_due_and_those_that_it_covers_are_not_sent_any_more() -> None:
    given = await settings_for(2500)
    script: list[Attempt] = [
        says("a dog"), says("yes"), asks(("photograph", work("a.png"))), says("They saw a dog."), says("a cat"),
    ]  # fmt: skip
    async with engine(*script, **given) as own:
        await own.run_turn("look", images=[GIF])
        await own.run_turn("sure?")
        await own.run_turn("and here?")

        assert kinds(own) == "mmmsm"
        (commit,) = [commit for commit in own.journal.commits if commit.opening]
        assert [claim.step for claim in commit.claims] == ["r1.prepare", "r1.compact"]
        assert commit.opening == shown(own) == [shown_image("a.png", ref(PNG))]
        assert "image: image/gif, " in own.upstream.requests[3].messages[0].content
        last = own.upstream.requests[-1].messages
        assert last[0].injected_kind == "summary"
        assert [message for message in last if message.images] == shown(own)


async def test_a_note_in_the_place_of_a_refused_image_counts_as_text() -> None:
    async with engine(refuses("Could not process image"), says("never mind")) as own:
        await own.run_turn("look", images=[GIF])
        await own.run_turn("go on")

        sent_last = own.upstream.requests[-1]
        assert not any(message.images for message in sent_last.messages)
        counted = fixed_tokens(sent_last.system, sent_last.tools) + sum(map(message_tokens, sent_last.messages))
        rows = own.db.reader.rows("SELECT response FROM model_call WHERE response IS NOT NULL")
        assert [msgspec.json.decode(response)["estimatedTokens"] for (response,) in rows] == [counted]


def test_a_round_that_was_prepared_has_shown_its_images_although_its_model_step_has_not_begun() -> None:
    answer = ModelOutput(calls=[call("a", "photograph")])
    seen = ToolOutput(content="{}", image=ReadImage(path="a.png", image=ref(PNG)))
    steps = [
        SavedStep(step="r0.model", state="completed", output=msgspec.Raw(msgspec.json.encode(answer))),
        SavedStep(step="r0.t0.handler", state="completed", output=msgspec.Raw(msgspec.json.encode(seen))),
    ]
    prepared = SavedStep(step="r1.prepare", state="completed", output=msgspec.Raw(b"{}"))

    assert starting_point(steps).unshown == [seen.image]
    assert starting_point([*steps, prepared]).unshown == []
    assert starting_point([*steps, prepared]).is_begun


async def test_after_a_crash_of_a_session_without_budget_the_turn_fails_and_shows_its_image_once() -> None:
    used: Attempt = [*asks(("photograph", work("a.png"))), UsageReported(Usage(prompt=60, completion=40))]
    terms = Terms(max_tokens=100)
    resumed = 0
    for number in range(1, 100):
        file, state = await made_before(), None
        with capture_logs(), suppress_crash():
            async with engine(used, file=file, faults=Faults.crash_after_commit(number), terms=terms) as own:
                state = (await own.run_turn("go")).state
        if state == "failed":
            assert resumed == 1  # the commit with the tool's result is the last before the end
            return
        async with engine(file=file, seed=2, terms=terms) as own:
            with capture_logs():
                await recover(own.db, own.entropy)
                stored = transcript(own.db, own.home)
                if [row.message.role for row in stored[1:3]] != ["assistant", "tool"]:
                    continue  # the model has not answered, or the call is still to be made
                if own.db.reader.rows("SELECT 1 FROM turn WHERE state = 'failed'"):
                    continue
                await resume(own)
            resumed += 1

            assert shown(own) == [shown_image("a.png", ref(PNG))], number
            name, data = frames(own.db, own.home)[-1]
            assert (name, data["reason"]) == ("turn.failed", "budgetReached"), number
            assert own.upstream.requests == [], number
            check_sequences(own.db.reader)
    raise AssertionError("there was always another commit to crash at")
