"""What follows from a model's answer. Pure: saved outputs in, decisions out, the same on every replay."""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, Struct

from peen.execution.limits import REASON
from peen.wire.records import NOTHING, ImageRef, Terminal, ToolCallRecord, Usage

AGENT_RUN = "agentRun"


class ModelOutput(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Saved output of a model step: the answer, or why there is none.

    `provider_reasoning` is as a `MessageRecord` has it.
    """

    text: str = ""
    thinking: str = ""
    calls: list[ToolCallRecord] = []
    finish_reason: str = ""
    response_model: str = ""
    usage: Usage = Usage()
    provider_reasoning: Raw = NOTHING
    error_kind: str = ""
    error: str = ""


class ReadImage(Struct, frozen=True, kw_only=True, rename="camel"):
    """An image file that a tool has read: it is shown to the model when the round is over."""

    path: str
    image: ImageRef


class ToolOutput(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Saved output of a tool step. `seen` is what the call taught the read-before-change ledger."""

    content: str
    is_error: bool = False
    seen: Raw = Raw(b"null")
    image: ReadImage | None = None


class CompactGiven(Struct, frozen=True, kw_only=True, rename="camel"):
    """Saved input of a compaction: why it happens, and which stored messages the summary is to cover."""

    round: int
    estimated_tokens: int
    budget_tokens: int
    units_covered: int
    messages_covered: int
    to_sequence: int


class CompactOutput(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Saved output of a compaction. Without a `summary` (its number in the session) history stays as it is."""

    outcome: Literal["summarized", "empty", "useless", "failed"]
    summary: int = 0
    to_sequence: int = 0
    summary_tokens: int = 0
    error: str = ""


class Dispatch(Struct, frozen=True):
    """Run these calls, then ask again."""

    calls: list[ToolCallRecord]


class Finish(Struct, frozen=True):
    """The execution ends like this."""

    terminal: Terminal


def after_answer(output: ModelOutput, *, turn_round: int, round_limit: int) -> Dispatch | Finish:
    """What to do with the answer of round `turn_round` (from 0) out of `round_limit`.

    Calls of the last permitted round are not dispatched: nobody would read their results.
    """
    if output.error_kind:
        reason = REASON if output.error_kind == REASON else AGENT_RUN
        return Finish(failure(output.error or f"the model call failed ({output.error_kind})", reason=reason))
    if not output.calls:
        return Finish(Terminal(state="completed", text=output.text, finish_reason=output.finish_reason))
    if turn_round + 1 >= round_limit:
        plural = "" if round_limit == 1 else "s"
        return Finish(
            failure(
                f"the turn used all of its {round_limit} model round{plural} and the model still asked for tools; "
                "raise PEEN_MAX_TOOL_ROUNDS or split the task"
            )
        )
    return Dispatch(output.calls)


def failure(error: str, *, reason: str = AGENT_RUN) -> Terminal:
    """A failed end. `reason` is one of the documented words of `turn.failed`; `error` is for people."""
    return Terminal(state="failed", reason=reason, error=error, classification=reason)
