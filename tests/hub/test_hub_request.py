from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.errors import InvalidSessionId, Refused, SessionBusy, StorageFull, ValidationFailed
from peen.hub.request import (
    MAX_BODY_BYTES,
    ApiRequest,
    BodyTooLarge,
    CursorPage,
    MethodNotAllowed,
    Page,
    check_no_body,
    check_query,
    cursor_page,
    decode_body,
    error_response,
    page,
    parse_query,
    query_choice,
)
from peen.wire.execution import ResumeExecution
from peen.wire.rest import OpenSession


def asked(query: str = "", body: bytes = b"") -> ApiRequest:
    return ApiRequest("GET", "/", parse_query(query), body=body)


def revision_of(number: str) -> ApiRequest:
    return asked(body=f'{{"controlRevision":{number}}}'.encode())


def problem(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(ValidationFailed) as caught:
        call(*args, **kwargs)
    return caught.value.message


def test_paging_has_defaults() -> None:
    assert page(asked()) == Page(limit=50, offset=0, order="asc")
    assert cursor_page(asked(), default_limit=100, max_limit=1000) == CursorPage(cursor=0, limit=100)


def test_paging_is_read_from_the_query() -> None:
    assert page(asked("limit=200&offset=9&order=desc"), ordered=True) == Page(limit=200, offset=9, order="desc")
    assert page(asked("state=running"), also=["state"]) == Page(limit=50, offset=0, order="asc")
    assert cursor_page(asked("cursor=42&limit=1000"), default_limit=100, max_limit=1000) == CursorPage(42, 1000)


@pytest.mark.parametrize("value", ["0", "201", "-1", "1.0", "+1", " 1", "", "x", "１", "9" * 30, "1e2"])
def test_a_bad_limit_is_named(value: str) -> None:
    request = ApiRequest("GET", "/", {"limit": [value]})

    assert problem(page, request) == "limit: must be a whole number, 1..200"


@pytest.mark.parametrize("value", ["-1", "x", "", "9223372036854775808"])
def test_a_bad_cursor_is_named(value: str) -> None:
    request = ApiRequest("GET", "/", {"cursor": [value]})

    assert problem(cursor_page, request, default_limit=1, max_limit=1) == "cursor: must be a whole number, 0 or more"


def test_an_order_is_one_of_two() -> None:
    assert problem(page, asked("order=up"), ordered=True) == "order: must be one of asc, desc"
    assert problem(query_choice, asked("state=x"), "state", ["a", "b"]) == "state: must be one of a, b"


def test_a_parameter_that_the_operation_lacks_is_named() -> None:
    expected = "order: is not a query parameter of this operation; known here: limit, offset"

    assert problem(page, asked("order=asc")) == expected
    assert problem(check_query, asked("x=1")) == "x: is not a query parameter of this operation"


def test_a_repeated_parameter_is_refused() -> None:
    assert problem(page, asked("limit=1&limit=2")) == "limit: is given 2 times; once is allowed"


def test_an_unreadable_query_is_refused() -> None:
    for text in ("a=%ff", "&".join(f"a{n}=1" for n in range(101))):
        with pytest.raises(Refused, match="query string"):
            parse_query(text)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8"))))
def test_what_a_client_encodes_is_what_is_read(pairs: dict[str, str]) -> None:
    from urllib.parse import urlencode

    assert parse_query(urlencode(pairs)) == {name: [value] for name, value in pairs.items()}


def test_a_body_is_decoded_strictly() -> None:
    opened = decode_body(asked(body=b'{"workspace":"/srv"}'), OpenSession)

    assert (opened.workspace, opened.agent_space) == ("/srv", None)
    assert problem(decode_body, asked(), OpenSession) == "body: is missing; this call takes one JSON object"
    assert problem(decode_body, asked(body=b"{}"), OpenSession) == "workspace: is required"
    assert problem(decode_body, asked(body=b"[]"), OpenSession) == "body: expected `object`, got `array`"
    assert problem(decode_body, asked(body=b'{"workspace":1}'), OpenSession) == "workspace: expected `str`, got `int`"
    unknown = b'{"workspace":"/","image":"x"}'
    assert problem(decode_body, asked(body=unknown), OpenSession) == "image: is not a known field"
    twice = b'{"workspace":"/"} {"workspace":"/"}'
    assert problem(decode_body, asked(body=twice), OpenSession).startswith("body: is not one valid JSON value")


@pytest.mark.parametrize(("number", "revision"), [("3", 3), ("3.0", 3), ("30e1", 300)])
def test_a_whole_number_may_be_written_with_a_point(number: str, revision: int) -> None:
    assert decode_body(revision_of(number), ResumeExecution).control_revision == revision


@pytest.mark.parametrize("number", ["3.5", "-1.0", '"3"', "1e300"])
def test_no_other_number_is_taken_for_a_whole_one(number: str) -> None:
    with pytest.raises(ValidationFailed, match="controlRevision"):
        decode_body(revision_of(number), ResumeExecution)


def test_a_body_over_the_limit_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(BodyTooLarge):
        decode_body(asked(body=b" " * (MAX_BODY_BYTES + 1)), OpenSession)


def test_a_call_without_input_takes_nothing_or_an_empty_object() -> None:
    check_no_body(asked())
    check_no_body(asked(body=b" { } "))

    for body in (b'{"x":1}', b" ", b"\n", b"\x0c{}", b"[]", b"null", b"{}{}"):
        assert problem(check_no_body, asked(body=body)) == "body: this call takes none"


def test_a_session_is_needed_where_it_is_asked_for() -> None:
    with pytest.raises(InvalidSessionId):
        _ = asked().session


@pytest.mark.parametrize(
    ("error", "status", "body"),
    [
        (SessionBusy("a turn runs"), 409, b'{"code":"SESSION_BUSY","message":"a turn runs"}'),
        (
            ValidationFailed("no", details={"field": "x"}),
            400,
            b'{"code":"VALIDATION_FAILED","message":"no","details":{"field":"x"}}',
        ),
        (KeyError("secret"), 500, b'{"code":"INTERNAL_SERVER_ERROR","message":"internal server error"}'),
    ],
)
def test_only_a_refusal_speaks_for_itself(error: Exception, status: int, body: bytes) -> None:
    answer = error_response(error)

    assert (answer.status, answer.body) == (status, body)


def test_a_full_disk_is_told_without_the_name_of_a_file() -> None:
    answer = error_response(StorageFull("/home/somebody/peen.db", "disk full"))

    assert answer.status == 507
    assert b'"code":"STORAGE_FULL"' in answer.body
    assert b"somebody" not in answer.body


def test_a_wrong_method_is_answered_with_the_right_ones() -> None:
    assert error_response(MethodNotAllowed(["POST", "GET"])).headers == {"allow": "GET, POST"}
