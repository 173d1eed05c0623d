"""Tokens: estimated from characters, corrected by what was reported, lowered by what was refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, structs
from world_kit import call

from peen.context.count import BYTES_PER_TOKEN, IMAGE_TOKENS, Gauge, fixed_tokens, message_tokens, text_tokens
from peen.model.reasoning import kept_reasoning
from peen.wire.model import ToolDefinition
from peen.wire.records import ImageRef, MessageRecord

# As OpenAI's o200k_base cuts them.
KNOWN = [
    ("The quick brown fox jumps over the lazy dog.", 10),
    ("def count(self, message: MessageRecord) -> int:", 12),
    ("    return sum(len(part) for part in parts)\n", 11),
    ('{"path":"src/main.py","lines":[1,2,3]}', 15),
    ("Hello, world!", 4),
    ("-rw-r--r-- 1 root root 10482 Nov 30 19:07 units.py", 22),
    ("SELECT count(*) FROM message WHERE key >= ? AND key <= ?", 13),
    ("如果磁盘已满，新的工作会被拒绝。", 13),
    ("Если диск переполнен, новая работа отклоняется.", 12),
    ("9f43fc7eb647dce3", 10),
]


@pytest.mark.parametrize(("text", "tokens"), KNOWN)
def test_an_estimate_is_near_what_a_tokenizer_counts(text: str, tokens: int) -> None:
    assert tokens * 0.8 <= text_tokens(text) <= tokens * 1.5


def test_other_scripts_cost_more_for_a_character_and_only_no_text_costs_nothing() -> None:
    assert text_tokens("") == 0
    assert text_tokens(" ") == 1
    assert text_tokens("a" * 100) < text_tokens("я" * 100) < text_tokens("字" * 100) < text_tokens("🐟" * 100)
    assert text_tokens("\ud800") > 0  # half of a pair, as some server sends it


@given(st.text(max_size=200), st.text(max_size=200))
def test_two_texts_together_count_about_as_much_as_each_by_itself(one: str, other: str) -> None:
    apart = text_tokens(one) + text_tokens(other)
    assert apart - 2 <= text_tokens(one + other) <= apart


def test_a_message_counts_what_is_sent_of_it() -> None:
    bare = MessageRecord(role="assistant", content="text")
    with_call = MessageRecord(role="assistant", content="text", tool_calls=[call("call_1", "look", b'{"path":"a"}')])
    shown = MessageRecord(role="assistant", content="text", thinking="long thoughts " * 100, model="up/m")

    assert message_tokens(with_call) > message_tokens(bare) > text_tokens("text")
    assert message_tokens(shown) == message_tokens(bare)


def test_reasoning_that_its_provider_wants_back_counts_by_its_bytes() -> None:
    bare = MessageRecord(role="assistant", content="text")
    kept = kept_reasoning([Raw(b'{"encrypted":"%b"}' % (b"x" * 4000))], upstream="up", model="m")
    reasoned = structs.replace(bare, provider_reasoning=kept)

    assert message_tokens(reasoned) - message_tokens(bare) == len(bytes(kept)) // BYTES_PER_TOKEN > 1000


def test_prompt_and_tools_count_in_every_request() -> None:
    tool = ToolDefinition(name="look", description="Looks.", parameters=Raw(b'{"type":"object"}'))

    assert fixed_tokens("prompt", [tool, tool]) - fixed_tokens("prompt", [tool]) > 8
    assert fixed_tokens("prompt", []) == text_tokens("prompt")


def test_a_report_corrects_every_later_estimate() -> None:
    gauge = Gauge(window=10_000, budget=8_000)
    assert gauge.tokens(1000) == 1000

    gauge.reported(1000, 1500)

    assert gauge.tokens(2000) == 3000
    assert gauge.counted(3000) == 2000


@pytest.mark.parametrize(("counted", "reported"), [(1000, None), (1000, 0), (255, 700)])
def test_a_report_that_says_nothing_changes_nothing(counted: int, reported: int | None) -> None:
    gauge = Gauge(window=10_000, budget=8_000)
    gauge.reported(counted, reported)

    assert gauge.ratio == 1.0


def test_a_report_that_cannot_be_right_is_taken_for_what_it_may_be() -> None:
    gauge = Gauge(window=10_000, budget=8_000)
    gauge.reported(1000, 1_000_000)
    assert gauge.ratio == 4.0
    gauge.reported(1000, 1)
    assert gauge.ratio == 0.5


def test_each_refusal_lowers_what_a_prompt_may_have() -> None:
    gauge = Gauge(window=10_000, budget=8_000)
    gauge.refused(6000, fixed=2000)
    assert (gauge.budget, gauge.window) == (5000, 5999)
    gauge.refused(4000, fixed=2000)
    assert (gauge.budget, gauge.window) == (3500, 3999)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(0, 1))
def test_room_lies_between_what_is_fixed_and_the_budget(budget: int, fixed: int, part: float) -> None:
    room = Gauge(window=2 * 10**6, budget=budget).room(fixed, part)

    assert min(fixed, budget) <= room <= budget


@given(st.integers(0, 10**7), st.floats(0.5, 4.0))
def test_counts_and_tokens_of_the_model_translate_back(counted: int, ratio: float) -> None:
    gauge = Gauge(window=1, budget=1)
    gauge.ratio = ratio

    assert gauge.tokens(gauge.counted(gauge.tokens(counted))) <= gauge.tokens(counted)
    assert gauge.counted(gauge.tokens(counted)) >= counted


@pytest.mark.parametrize("size_bytes", [70, 5_000_000])
def test_an_image_counts_the_same_whatever_its_bytes(size_bytes: int) -> None:
    image = ImageRef(media_type="image/png", size_bytes=size_bytes, sha256="ab" * 32)
    bare = MessageRecord(role="user", content="look")

    assert message_tokens(structs.replace(bare, images=[image] * 2)) == message_tokens(bare) + 2 * IMAGE_TOKENS
