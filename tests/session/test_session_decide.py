from __future__ import annotations

import msgspec
import pytest

from peen.errors import ValidationFailed
from peen.session.decide import Decision, Join, Queue, Refuse, Repeat, RunningSettings, Start, acknowledgement, admit
from peen.session.state import Known, Outcome
from peen.wire.client import MessageSend
from peen.wire.feed import Completed, Failed
from peen.wire.worker import SystemPrompt

SAME, OTHER = b"s" * 32, b"o" * 32
ENDED = Outcome("completed", "", "request")
MESSAGE = MessageSend(id="frame", session_id="session", message="hello")
RUNNING = RunningSettings(model="up/m", reasoning_effort="high")


def decision(
    message: MessageSend = MESSAGE, *, known: Known | None = None, running: RunningSettings | None = None
) -> Decision:
    return admit(message, digest=SAME, known=known, running=running)


def test_a_new_message_starts_a_turn_where_none_runs() -> None:
    assert decision() == Start()


def test_a_message_of_any_settings_starts_a_turn_where_none_runs() -> None:
    own = msgspec.structs.replace(
        MESSAGE, model="other/n", reasoning_effort="low", system_prompt=SystemPrompt(mode="append", content="be brief")
    )

    assert decision(own) == Start()


@pytest.mark.parametrize("settings", [{}, {"model": "up/m"}, {"reasoning_effort": "high"}])
def test_a_new_message_that_repeats_the_settings_of_the_running_turn_joins_its_queue(settings: dict[str, str]) -> None:
    assert decision(msgspec.structs.replace(MESSAGE, **settings), running=RUNNING) == Queue()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"model": "up/other"}, "data.model"),
        ({"reasoning_effort": "low"}, "data.reasoningEffort"),
        ({"system_prompt": SystemPrompt(mode="append", content="be brief")}, "data.systemPrompt"),
    ],
)
def test_a_message_cannot_change_the_settings_of_the_running_turn(settings: dict[str, object], field: str) -> None:
    refused = decision(msgspec.structs.replace(MESSAGE, **settings), running=RUNNING)

    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, ValidationFailed)
    assert refused.error.message.startswith(f"{field}:")


@pytest.mark.parametrize("running", [None, RUNNING])
def test_a_resend_of_a_message_whose_turn_has_not_ended_joins_the_wait(running: RunningSettings | None) -> None:
    assert decision(known=Known(SAME, None), running=running) == Join()


@pytest.mark.parametrize("outcome", [ENDED, Outcome("failed", "timeout", "r"), Outcome("queued", "", "r")])
@pytest.mark.parametrize("running", [None, RUNNING])
def test_a_resend_of_a_message_that_was_answered_is_answered_the_same_whatever_runs_now(
    outcome: Outcome, running: RunningSettings | None
) -> None:
    assert decision(known=Known(SAME, outcome), running=running) == Repeat(outcome)


@pytest.mark.parametrize("outcome", [None, ENDED])
@pytest.mark.parametrize("running", [None, RUNNING])
def test_a_known_id_with_other_content_is_refused_whatever_became_of_the_first(
    outcome: Outcome | None, running: RunningSettings | None
) -> None:
    refused = decision(known=Known(OTHER, outcome), running=running)

    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, ValidationFailed)
    assert refused.error.message.startswith("id:")


@pytest.mark.parametrize(("state", "is_queued"), [("completed", False), ("queued", True)])
def test_a_message_that_was_served_or_joined_a_queue_is_acknowledged_as_completed(state: str, is_queued: bool) -> None:
    assert acknowledgement(Outcome(state, "", "request")) == Completed(queued=is_queued)


@pytest.mark.parametrize(
    ("state", "reason", "code", "shown"),
    [
        ("failed", "timeout", "INTERNAL_SERVER_ERROR", "timeout"),
        ("failed", "", "INTERNAL_SERVER_ERROR", "agentRun"),
        ("interrupted", "shutdown", "INTERNAL_SERVER_ERROR", "shutdown"),
        ("interrupted", "", "INTERNAL_SERVER_ERROR", "interrupted"),
        ("cancelled", "cancelled", "TURN_CANCELLED", None),
    ],
)
def test_a_turn_that_did_not_complete_is_acknowledged_as_failed_with_a_reason_that_is_safe_to_show(
    state: str, reason: str, code: str, shown: str | None
) -> None:
    answer = acknowledgement(Outcome(state, reason, "request"))

    assert isinstance(answer, Failed)
    assert (answer.code, answer.reason) == (code, shown)
    assert answer.message
