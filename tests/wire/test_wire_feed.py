from __future__ import annotations

from msgspec import Raw

from peen.wire.feed import Completed, Failed, ack_frame, frame_bytes

SESSION = "11111111-1111-4111-8111-111111111111"
REQUEST = "33333333-3333-4333-8333-333333333333"
FRAME = "0f0f0f0f-0f0f-4f0f-8f0f-0f0f0f0f0f0f"


def test_a_turn_frame_is_these_bytes() -> None:
    data = Raw(b'{"message": "h\xc3\xa9llo",  "n":1.0}')

    sent = frame_bytes("r1", "userMessage.created", data, 1_700_000_000_123, SESSION, REQUEST, 42)

    assert sent.decode() == (
        '{"id":"r1","type":"userMessage.created","data":{"message": "héllo",  "n":1.0},"timestamp":1700000000123,'
        f'"metadata":{{"sessionId":"{SESSION}","requestId":"{REQUEST}","sequence":42}},"triggeredBy":null}}'
    )


def test_a_frame_without_a_request_has_no_such_member() -> None:
    sent = frame_bytes("r2", "notice.created", Raw(b"{}"), 0, SESSION, None, 1)

    assert sent.decode() == (
        '{"id":"r2","type":"notice.created","data":{},"timestamp":0,'
        f'"metadata":{{"sessionId":"{SESSION}","sequence":1}},"triggeredBy":null}}'
    )


def test_a_finished_turn_is_acknowledged_with_these_bytes() -> None:
    sent = ack_frame("a1", Completed(queued=False), 5, session_id=SESSION, request_id=REQUEST, triggered_by=FRAME)

    assert sent.decode() == (
        '{"id":"a1","type":"message.completed","data":{"queued":false},"timestamp":5,'
        f'"metadata":{{"sessionId":"{SESSION}","requestId":"{REQUEST}"}},"triggeredBy":"{FRAME}"}}'
    )


def test_a_private_failure_carries_only_what_is_known() -> None:
    nothing = ack_frame("a2", Failed(code="VALIDATION_FAILED", message="id: is required"), 5)
    reason = ack_frame("a3", Failed(code="X", message="m", reason="timeout"), 6, session_id=SESSION)

    assert nothing.decode() == (
        '{"id":"a2","type":"message.failed","data":{"code":"VALIDATION_FAILED","message":"id: is required"},'
        '"timestamp":5,"metadata":{},"triggeredBy":null}'
    )
    assert reason.decode() == (
        '{"id":"a3","type":"message.failed","data":{"code":"X","message":"m","reason":"timeout"},'
        f'"timestamp":6,"metadata":{{"sessionId":"{SESSION}"}},"triggeredBy":null}}'
    )
