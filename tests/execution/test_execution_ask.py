"""The model step: attempts, retries, silence, and what of it is shown, stored and kept."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
import trio
from engine_kit import Engine, Piece, asks, engine, says, work
from trio.testing import MockClock
from world_kit import execution_of, frame_types, frames, transcript, uuid

from peen.errors import ModelError
from peen.model.reasoning import REASONING_REFUSED
from peen.model.retry import MAX_ATTEMPTS
from peen.model.stream import (
    CallDelta,
    CallStarted,
    CallStopped,
    Finished,
    ReasoningKept,
    TextDelta,
    ThinkingDelta,
    UsageReported,
)
from peen.store import activities
from peen.wire.records import MessageRecord, Usage


def broken(kind: str = "server_error", *, retryable: bool = True, **more: Any) -> ModelError:
    return ModelError("the provider is overloaded", kind=kind, retryable=retryable, **more)


def notes(own: Engine) -> list[dict[str, Any]]:
    """Data of the `provider.retry` frames."""
    return [data for name, data in frames(own.db, own.home) if name == "provider.retry"]


def failure(own: Engine) -> dict[str, Any]:
    """Data of the turn's only terminal frame, which is `turn.failed`."""
    name, data = frames(own.db, own.home)[-1]
    assert name == "turn.failed"
    return data


def model_calls(own: Engine) -> list[tuple[Any, ...]]:
    return own.db.reader.rows(
        "SELECT state, failure_kind, finish_reason, response_model, prompt_tokens FROM model_call ORDER BY key"
    )


async def test_an_attempt_that_fails_is_followed_by_another_which_the_client_hears_of(
    autojump_clock: MockClock,
) -> None:
    refused = broken("rate_limited", status=429, retry_after_ms=7_000)
    async with engine([refused], says("now")) as own:
        began = trio.current_time()
        actor = await own.run_turn()

        assert actor.state == "completed"
        assert trio.current_time() - began >= 7.0
        assert notes(own) == [{"attempt": 1, "reason": "rate_limited", "status": 429, "delayMs": 7_000}]


@pytest.mark.parametrize("reserve", [None, 4000])
async def test_an_output_reserve_that_is_set_limits_the_answer(reserve: int | None) -> None:
    async with engine(says("now"), output_reserve_tokens=reserve) as own:
        await own.run_turn()

        assert own.upstream.requests[0].max_output_tokens == reserve


async def test_the_client_hears_of_a_retry_before_the_wait(autojump_clock: MockClock) -> None:
    refused = broken("rate_limited", status=429, retry_after_ms=7_000)
    async with engine([refused], says("now")) as own, trio.open_nursery() as nursery:
        nursery.start_soon(own.run_turn)
        await trio.sleep(1.0)

        assert len(notes(own)) == 1


async def test_blocks_of_a_failed_attempt_are_stopped_and_the_next_ones_count_on(autojump_clock: MockClock) -> None:
    text: list[Piece] = [ThinkingDelta("hm"), TextDelta("I wi"), 1.0]
    unfinished: list[Piece] = [CallStarted(0, "id1", "change"), CallDelta(0, "{"), 1.0, broken()]
    async with engine([*text, *unfinished], says("done")) as own:
        await own.run_turn()
        shown = [
            (name.removeprefix("content_block_"), data.get("index"))
            for name, data in frames(own.db, own.home)
            if name.startswith("content_block") or name == "provider.retry"
        ]

        assert own.change.done == 0
    assert shown == [
        ("start", 0),
        ("delta", 0),
        ("stop", 0),
        ("start", 1),
        ("delta", 1),
        ("stop", 1),
        ("start", 2),
        ("delta", 2),
        ("stop", 2),
        ("provider.retry", None),
        ("start", 3),
        ("delta", 3),
        ("stop", 3),
    ]


async def test_the_text_of_a_failed_attempt_is_no_part_of_the_answer_the_transcript_or_the_next_request(
    autojump_clock: MockClock,
) -> None:
    async with engine([TextDelta("half an ans"), broken()], says("whole"), says("next")) as own:
        await own.run_turn()
        completed = frames(own.db, own.home)[-1]
        await own.run_turn("more")

        assert completed == ("turn.completed", {"model": "up/m", "text": "whole", "finishReason": "stop"})
        assert "half an ans" not in str([row.message for row in transcript(own.db, own.home)])
        assert "half an ans" not in str([request.messages for request in own.upstream.requests])
        assert own.upstream.requests[0].messages == own.upstream.requests[1].messages


async def test_after_the_last_attempt_the_turn_fails_with_the_providers_error(autojump_clock: MockClock) -> None:
    attempt: list[Piece] = [TextDelta("x"), broken(status=503)]
    async with engine(*[attempt] * MAX_ATTEMPTS) as own:
        actor = await own.run_turn()

        assert actor.state == "failed"
        assert len(own.upstream.requests) == MAX_ATTEMPTS
        assert [note["attempt"] for note in notes(own)] == list(range(1, MAX_ATTEMPTS))
        assert failure(own) == {
            "reason": "agentRun",
            "error": f"the provider is overloaded (gave up after {MAX_ATTEMPTS} attempts)",
        }
        types = frame_types(own.db, own.home)
        assert types.count("content_block_start") == types.count("content_block_stop") == MAX_ATTEMPTS


async def test_what_cannot_be_mended_by_trying_again_fails_at_once(autojump_clock: MockClock) -> None:
    async with engine([broken("invalid_request", retryable=False, status=400)]) as own:
        began = trio.current_time()
        await own.run_turn()

        assert trio.current_time() == began
        assert notes(own) == []
        assert failure(own) == {"reason": "agentRun", "error": "the provider is overloaded"}


async def test_a_wait_that_is_longer_than_allowed_fails_at_once_and_names_the_time(autojump_clock: MockClock) -> None:
    asks_too_much = broken("rate_limited", status=429, retry_after_ms=90_000)
    async with engine([asks_too_much], provider_retry_max_delay_ms=60_000) as own:
        began = trio.current_time()
        await own.run_turn()

        assert trio.current_time() == began
        assert "wait 90 s" in failure(own)["error"]
        assert "PEEN_PROVIDER_RETRY_MAX_DELAY" in failure(own)["error"]


@pytest.mark.parametrize("before", [[], [TextDelta("I be")], [TextDelta("I be"), 4.9, TextDelta("gin")]])
async def test_silence_before_or_after_the_first_piece_ends_the_attempt_and_another_follows(
    autojump_clock: MockClock, before: list[Piece]
) -> None:
    async with engine([*before, 999.0], says("done"), provider_idle_timeout_ms=5_000) as own:
        began = trio.current_time()
        actor = await own.run_turn()
        waited_s = sum(piece for piece in before if isinstance(piece, float)) + 5.0

        assert actor.state == "completed"
        assert own.upstream.open_streams == 0
        (note,) = notes(own)
        assert (note["reason"], note["status"]) == ("timeout", 0)
        assert trio.current_time() - began == pytest.approx(waited_s + note["delayMs"] / 1000)


async def test_a_model_that_goes_on_sending_is_never_silent(autojump_clock: MockClock) -> None:
    slow = [piece for _ in range(20) for piece in (TextDelta("."), 4.9)]
    async with engine([*slow, Finished("stop", "m")], provider_idle_timeout_ms=5_000) as own:
        actor = await own.run_turn()

        assert actor.state == "completed"
        assert notes(own) == []


@pytest.mark.parametrize(
    "cut",
    [[], [TextDelta("half")], [CallStarted(0, "a", "change"), CallDelta(0, "{}"), Finished("tool_calls", "m")]],
    ids=["nothing", "text", "an open call"],
)
async def test_a_stream_that_ends_without_its_end_is_tried_again_and_none_of_its_calls_runs(
    autojump_clock: MockClock, cut: list[Piece]
) -> None:
    async with engine(cut, says("whole")) as own:
        actor = await own.run_turn()

        assert actor.state == "completed"
        assert own.change.done == 0
        assert [note["reason"] for note in notes(own)] == ["transport"]
        assert [row[1] for row in model_calls(own)] == ["stream_cut", None]


async def test_calls_of_an_answer_that_was_cut_by_its_length_are_not_run() -> None:
    cut: list[Piece] = [
        TextDelta("I will"),
        CallStarted(0, "a", "change"),
        CallDelta(0, '{"say"'),
        Finished("length", "m"),
    ]
    async with engine(cut) as own:
        actor = await own.run_turn()

        assert actor.state == "completed"
        assert own.change.done == 0
        assert frames(own.db, own.home)[-1] == (
            "turn.completed",
            {"model": "up/m", "text": "I will", "finishReason": "length"},
        )
        started = frame_types(own.db, own.home).count("content_block_start")
        assert started == frame_types(own.db, own.home).count("content_block_stop") == 2


async def test_every_attempt_is_in_the_audit_with_what_it_used(autojump_clock: MockClock) -> None:
    whole: list[Piece] = [TextDelta("done"), UsageReported(Usage(prompt=12)), Finished("stop", "m-2024")]
    async with engine([broken()], asks(("look", work())), [broken("rate_limited")], whole) as own:
        await own.run_turn()

        assert model_calls(own) == [
            ("failed", "server_error", None, None, None),
            ("completed", None, "tool_calls", "m", None),
            ("failed", "rate_limited", None, None, None),
            ("completed", None, "stop", "m-2024", 12),
        ]


async def test_the_audit_names_the_transcript_that_the_request_was_made_of() -> None:
    async with engine(asks(("look", work())), says("done"), says("again")) as own:
        await own.run_turn()
        await own.run_turn()
        sequences = own.db.reader.rows("SELECT request_sequence FROM model_call ORDER BY key")

    assert sequences == [(1,), (3,), (5,)]


async def test_the_saved_output_of_the_model_step_is_all_that_the_loop_needs() -> None:
    async with engine(asks(("look", work("hi")), text="I look"), says("done")) as own:
        await own.run_turn()
        steps = activities.steps(own.db.reader, execution_of(own.db, str(uuid(3001))).no)
        output = msgspec.json.decode(next(step.output for step in steps if step.step == "r0.model") or b"null")

    assert output["text"] == "I look"
    assert [(call["name"], call["arguments"]["say"]) for call in output["calls"]] == [("look", "hi")]


async def test_every_request_of_a_turn_has_the_same_prompt_and_tools() -> None:
    async with engine(asks(("look", work())), says("done")) as own:
        await own.run_turn()
        first, second = own.upstream.requests

    assert first.system == second.system != ""
    assert (
        [tool.name for tool in first.tools] == [tool.name for tool in second.tools] == ["look", "change", "photograph"]
    )
    assert first.model_id == "m"


async def test_ids_that_the_provider_repeats_are_made_unique_for_it_and_for_clients() -> None:
    same: list[Piece] = [
        CallStarted(0, "same", "look"),
        CallDelta(0, work()),
        CallStopped(0),
        Finished("tool_calls", "m"),
    ]
    async with engine(same, same, says("done"), same, says("done")) as own:
        await own.run_turn()
        await own.run_turn()
        ids = [call.id for row in transcript(own.db, own.home) for call in row.message.tool_calls or []]
        used = [data["callId"] for name, data in frames(own.db, own.home) if name == "tool.use"]
        starts = [data["content_block"] for name, data in frames(own.db, own.home) if name == "content_block_start"]

    assert ids[0] == "same"
    assert len(set(ids)) == 3
    assert used == [block["id"] for block in starts if block["type"] == "tool_use"] == ids
    assert [block["tool_use_id"] for block in starts if block["type"] == "tool_result"] == ids


async def test_reasoning_for_its_provider_is_saved_and_stored_byte_for_byte_and_shown_to_nobody() -> None:
    items = [b'{"sealed" : "\\/ \\u00e9"}', b'"call"']
    kept = b'{"upstream":"up","model":"m","items":[' + b",".join(items) + b"]}"
    thought: list[Piece] = [ThinkingDelta("hm"), *(ReasoningKept(msgspec.Raw(item)) for item in items)]
    async with engine([*thought, *asks(("look", work("one")))], says("done"), says("next")) as own:
        await own.run_turn()
        await own.run_turn("more")
        saved = own.db.reader.rows("SELECT output FROM activity WHERE kind = 'model' ORDER BY key LIMIT 1")[0][0]
        stored = [bytes(row.message.provider_reasoning) for row in transcript(own.db, own.home)]
        sent = [
            [bytes(m.provider_reasoning) for m in request.messages if m.tool_calls] for request in own.upstream.requests
        ]
        shown = str(frames(own.db, own.home))

    assert kept in bytes(saved)
    assert stored == [b"null", kept, b"null", b"null", b"null", b"null"]
    assert sent == [[], [kept], [kept]]
    assert "sealed" not in shown


async def test_reasoning_that_is_refused_is_left_out_of_an_attempt_like_any_other_and_of_all_later_turns() -> None:
    def thought(text: str) -> ReasoningKept:
        return ReasoningKept(msgspec.Raw(b'{"sealed":"%b"}' % text.encode()))

    refused = ModelError("Invalid signature", kind=REASONING_REFUSED, retryable=False, status=400)
    script: list[Any] = [
        [thought("old"), *says("first")],
        [refused], [thought("new"), *asks(("look", work("one")))], [thought("newer"), *says("done")],
        says("again"),
    ]  # fmt: skip
    async with engine(*script) as own:
        await own.run_turn("one")
        assert (await own.run_turn("two")).state == "completed"
        calls = own.db.reader.rows(
            "SELECT state, failure_kind, status, request IS NULL, unpriced FROM model_call ORDER BY key"
        )
        told = notes(own)
        await own.run_turn("three")
        # A turn begins with what the store tells of its session.
        requests = [_sealed(request.messages) for request in own.upstream.requests]
    assert requests == [[], ["old"], [], ["new"], ["new", "newer"]]
    assert [(note["attempt"], note["reason"], note["status"], note["delayMs"]) for note in told] == [
        (1, "reasoning_refused", 400, 0)
    ]
    assert [call[:4] for call in calls[1:3]] == [("failed", "reasoning_refused", 400, 1), ("completed", None, None, 0)]
    assert calls[1][4] == 0


async def test_reasoning_that_is_refused_where_none_was_sent_fails_the_turn() -> None:
    refused = ModelError("Invalid signature", kind=REASONING_REFUSED, retryable=False, status=400)
    async with engine([refused]) as own:
        assert (await own.run_turn()).state == "failed"
        assert notes(own) == []


def _sealed(messages: Iterable[MessageRecord]) -> list[str]:
    return [
        found for each in messages for found in re.findall('"sealed":"(.*?)"', bytes(each.provider_reasoning).decode())
    ]
