from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from world_kit import uuid

from peen.feed.project import render
from peen.ids import derived_id
from peen.store.feed import FeedRow

SESSION = uuid(1)
ROW = FeedRow(7, "tool.use", b'{"callId":"a","arguments":{"b":1.50}}', uuid(2).bytes, 1_700_000_000_123)


def rendered(row: FeedRow) -> dict[str, object]:
    frame: dict[str, object] = msgspec.json.decode(render(row, session=SESSION.bytes, session_id=str(SESSION)))
    return frame


def test_a_row_becomes_the_documented_envelope() -> None:
    assert rendered(ROW) == {
        "id": derived_id("feed", SESSION.bytes, 7),
        "type": "tool.use",
        "data": {"callId": "a", "arguments": {"b": 1.5}},
        "timestamp": 1_700_000_000_123,
        "metadata": {"sessionId": str(SESSION), "requestId": str(uuid(2)), "sequence": 7},
        "triggeredBy": None,
    }


def test_the_data_of_a_row_goes_out_as_the_bytes_that_were_stored() -> None:
    assert ROW.data in render(ROW, session=SESSION.bytes, session_id=str(SESSION))


def test_a_row_without_a_request_carries_none() -> None:
    metadata = rendered(ROW._replace(type="notice.created", request_id=None))["metadata"]

    assert metadata == {"sessionId": str(SESSION), "sequence": 7}


@given(st.integers(1, 2**32 - 1), st.integers(1, 2**32 - 1))
def test_the_id_of_a_frame_is_that_of_its_row_every_time(one: int, other: int) -> None:
    first, again, second = (rendered(ROW._replace(sequence=number))["id"] for number in (one, one, other))

    assert first == again
    assert (first == second) == (one == other)
