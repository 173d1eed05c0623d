"""What is wrong with a document, in words: the field, what was there, and what may be."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

import peen.wire
from peen.wire.launch import UpstreamConfig
from peen.wire.price import Price
from peen.wire.problem import problem_text
from peen.wire.rest import OpenSession


def problem(document: object, kind: Any) -> str:
    data = msgspec.json.encode(document)
    with pytest.raises(msgspec.ValidationError) as wrong:
        msgspec.json.decode(data, type=kind)
    return problem_text(wrong.value, whole="body", kind=kind, given=data)


def test_the_key_of_a_mapping_and_the_place_in_a_list_are_named() -> None:
    right = {"input": "3", "output": "15"}
    entries = [
        {"name": "a", "type": "openai", "prices": {"m": right}},
        {"name": "b", "type": "openai", "prices": {"m": right, "openai/gpt-4o": {**right, "cacheRead": 0.3}}},
    ]

    text = problem(entries, list[UpstreamConfig])

    assert text.startswith("[1].prices.openai/gpt-4o.cacheRead: must be dollars a million tokens as decimal text")
    assert text.endswith("; got 0.3")


def test_a_part_of_a_price_for_long_prompts_is_named_too() -> None:
    price = {"input": "3", "output": "15", "longContext": {"aboveTokens": 5, "input": "6", "output": "-1"}}

    assert problem(price, Price).startswith("longContext.output: must be dollars")


def test_without_the_document_the_form_is_told_all_the_same() -> None:
    with pytest.raises(msgspec.ValidationError) as wrong:
        msgspec.json.decode(b'{"workspace": "/w", "budget": {"costUsd": "1e3"}}', type=OpenSession)

    text = problem_text(wrong.value, whole="body", kind=OpenSession)

    assert text.startswith("budget.costUsd: must be US dollars as decimal text")
    assert "got" not in text


@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(), st.lists, max_leaves=5))
def test_whatever_stands_in_the_place_of_an_amount_nobody_reads_a_regular_expression(value: object) -> None:
    document = {"workspace": "/w", "budget": {"costUsd": value}}
    try:
        msgspec.json.decode(msgspec.json.encode(document), type=OpenSession)
    except msgspec.ValidationError:
        assert "regex" not in problem(document, OpenSession)


def texts_of_a_form(at: inspect.Type) -> Iterator[inspect.Metadata]:
    """Every text with a pattern that the type of a field allows."""
    if isinstance(at, inspect.Metadata) and isinstance(at.type, inspect.StrType) and at.type.pattern:
        yield at
    inner = (at.types if isinstance(at, inspect.UnionType) else ()), (getattr(at, "item_type", None),)
    for each in (*inner[0], *inner[1], getattr(at, "value_type", None), getattr(at, "key_type", None)):
        if each is not None:
            yield from texts_of_a_form(each)


def fields_of(struct: type[msgspec.Struct]) -> Sequence[inspect.Field]:
    """None for one that is only written: bytes do not tell which of several structs they are."""
    try:
        info = inspect.type_info(struct)
    except TypeError:
        return ()
    assert isinstance(info, inspect.StructType)
    return info.fields


def test_every_text_of_a_form_has_a_description_that_errors_can_give() -> None:
    modules = [import_module(f"peen.wire.{module.name}") for module in pkgutil.iter_modules(peen.wire.__path__)]
    structs = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
    }
    found = [
        (struct.__name__, field.name, form)
        for struct in structs
        for field in fields_of(struct)
        for form in texts_of_a_form(field.type)
    ]

    assert {("OpenBudget", "cost_usd"), ("Price", "input"), ("PriceRow", "date")} <= {each[:2] for each in found}
    assert [each for each in found if not (each[2].extra_json_schema or {}).get("description")] == []
