from __future__ import annotations

import pytest
import wsproto
from wsproto.connection import Connection
from wsproto.events import Ping, TextMessage

from peen.wire.websocket import PING, text_frame


@pytest.mark.parametrize(
    ("size", "header"),
    [
        (0, "8100"),
        (125, "817d"),
        (126, "817e007e"),
        (65535, "817effff"),
        (65536, "817f0000000000010000"),
    ],
)
def test_the_header_grows_with_the_payload(size: int, header: str) -> None:
    payload = b"x" * size

    assert text_frame(payload) == bytes.fromhex(header) + payload


def test_another_implementation_reads_the_frames() -> None:
    client = Connection(wsproto.ConnectionType.CLIENT)
    texts = ["", "héllo", "y" * 126, "z" * 70_000]

    client.receive_data(b"".join(text_frame(text.encode()) for text in texts) + PING)
    events = list(client.events())

    assert [event.data for event in events if isinstance(event, TextMessage)] == texts
    assert isinstance(events[-1], Ping)
