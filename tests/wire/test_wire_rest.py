from __future__ import annotations

import json

import msgspec
import pytest
from msgspec import Raw

from peen.wire.rest import ErrorBody, FeedPage, OpenSession, Session, SessionPage, UsedSoFar, encode, rfc3339


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_005, "2023-11-14T22:13:20.005Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_times_are_rfc_3339_in_utc_with_milliseconds(ms: int, text: str) -> None:
    assert rfc3339(ms) == text


def test_a_session_has_camel_case_members_and_none_that_are_unknown() -> None:
    session = Session(
        id="s",
        created_at=rfc3339(0),
        updated_at=rfc3339(0),
        message_count=0,
        completed_turn_count=0,
        active_turn=False,
        status="idle",
        agent="peen",
        model="scripted/demo",
        workspace="/srv/work",
        agent_space="control",
        feed_sequence=0,
        usage=UsedSoFar(prompt=3, billed_cost_amount="0", cost_known=True),
    )

    page = json.loads(encode(SessionPage(items=[session], limit=50, offset=0, has_more=False)))

    assert page["items"] == [
        {
            "id": "s",
            "createdAt": "1970-01-01T00:00:00.000Z",
            "updatedAt": "1970-01-01T00:00:00.000Z",
            "messageCount": 0,
            "completedTurnCount": 0,
            "activeTurn": False,
            "status": "idle",
            "agent": "peen",
            "model": "scripted/demo",
            "workspace": "/srv/work",
            "agentSpace": "control",
            "feedSequence": 0,
            "usage": {"prompt": 3, "billedCostAmount": "0", "costKnown": True},
        }
    ]
    assert (page["limit"], page["offset"], page["hasMore"]) == (50, 0, False)


def test_feed_items_are_the_stored_bytes() -> None:
    frame = b'{"id":"r1",  "n":1.0}'

    assert frame in encode(FeedPage(items=[Raw(frame)], next_cursor=1, has_more=False))


def test_an_error_without_details_has_no_such_member() -> None:
    assert encode(ErrorBody(code="NOT_FOUND", message="no")) == b'{"code":"NOT_FOUND","message":"no"}'


def test_a_misspelt_member_of_a_request_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="agentspace"):
        msgspec.json.decode(b'{"workspace":"/srv","agentspace":"control"}', type=OpenSession)
