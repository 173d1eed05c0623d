"""Chunks with fields of an odd type: no value in any place does more than cost that field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.errors import ModelError
from peen.model.chatlenient import odd_chunk
from peen.model.chatstream import ChatTranslator
from peen.model.chatwire import ErrorObject, decode_chunk
from peen.model.sse import SseEvent
from peen.model.stream import StreamEvent

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=4)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["text", "x"]), inner, max_size=2),
    max_leaves=5,
)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional=fields) | ANYTHING


FUNCTIONS = some(name=ANYTHING, arguments=ANYTHING)
CALLS = some(index=ANYTHING, id=ANYTHING, function=FUNCTIONS, name=ANYTHING, arguments=ANYTHING)
DELTAS = some(
    content=ANYTHING, reasoning_content=ANYTHING, reasoning=ANYTHING, reasoning_details=ANYTHING, thinking=ANYTHING,
    refusal=ANYTHING, tool_calls=st.lists(CALLS, max_size=2) | CALLS, function_call=FUNCTIONS,
)  # fmt: skip
CHOICES = some(index=ANYTHING, delta=DELTAS, message=DELTAS, finish_reason=ANYTHING)
USAGES = some(prompt_tokens=ANYTHING, completion_tokens=ANYTHING, prompt_tokens_details=some(cached_tokens=ANYTHING))
ERRORS = some(message=ANYTHING, type=ANYTHING, code=ANYTHING, param=ANYTHING)
CHUNKS = some(model=ANYTHING, choices=st.lists(CHOICES, max_size=2) | CHOICES, usage=USAGES, error=ERRORS)


@given(CHUNKS)
def test_whatever_stands_in_a_chunk_it_is_read_or_refused_once(chunk: Any) -> None:
    translator = ChatTranslator("m")
    out: list[StreamEvent] = []
    try:
        translator.read(SseEvent("", msgspec.json.encode(chunk)), out)
    except ModelError as error:
        refused = error
    else:
        return
    assert isinstance(chunk, dict | list) or not refused.retryable


@given(CHUNKS.filter(lambda chunk: isinstance(chunk, dict)))
def test_a_chunk_that_the_strict_decoder_takes_says_the_same_to_the_lenient_one(chunk: Any) -> None:
    data = msgspec.json.encode(chunk)
    try:
        strict = decode_chunk(data)
    except msgspec.ValidationError:
        return
    lenient = odd_chunk(data)

    assert (lenient.model, lenient.error) == (strict.model, strict.error)
    assert (lenient.usage and lenient.usage.usage()) == (strict.usage and strict.usage.usage())
    assert [each.finish_reason or None for each in lenient.choices or ()] == [
        each.finish_reason or None for each in strict.choices or ()
    ]


@pytest.mark.parametrize(
    ("given_error", "expected"),
    [
        ({"message": {"deep": 1}, "code": 7.5}, ErrorObject(message='{"deep":1}')),
        ({"message": "busy", "type": 5}, ErrorObject(message="busy")),
        (["busy"], '["busy"]'),
        (False, None),
    ],
)
def test_an_error_of_an_odd_type_is_told_as_far_as_it_is_understood(given_error: Any, expected: Any) -> None:
    assert odd_chunk(msgspec.json.encode({"error": given_error})).error == expected
