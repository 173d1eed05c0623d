from __future__ import annotations

from collections.abc import Sequence

from peen.feed.fanout import Fanout


class Listener:
    def __init__(self, session_filter: str | None, leaves: Fanout | None = None) -> None:
        self.session_filter = session_filter
        self.heard: list[bytes] = []
        self._leaves = leaves

    def offer(self, frames: Sequence[bytes]) -> None:
        self.heard.extend(frames)
        if self._leaves is not None:
            self._leaves.remove(self)


def test_a_filtered_subscriber_hears_its_session_and_a_global_one_all() -> None:
    fanout = Fanout()
    everything, first, second = Listener(None), Listener("first"), Listener("second")
    for listener in (everything, first, second):
        fanout.add(listener)

    fanout.publish("first", [b"1", b"2"])
    fanout.publish("second", [b"3"])

    assert everything.heard == [b"1", b"2", b"3"]
    assert first.heard == [b"1", b"2"]
    assert second.heard == [b"3"]


def test_nobody_listening_is_known_before_anything_is_encoded() -> None:
    fanout = Fanout()
    first = Listener("first")
    fanout.add(first)

    assert fanout.has_listeners("first")
    assert not fanout.has_listeners("second")
    fanout.remove(first)
    assert not fanout.has_listeners("first")
    fanout.add(Listener(None))
    assert fanout.has_listeners("second")


def test_one_that_leaves_while_it_is_offered_takes_nobody_with_it() -> None:
    fanout = Fanout()
    leaver, stayer = Listener("first", leaves=fanout), Listener("first")
    fanout.add(leaver)
    fanout.add(stayer)

    fanout.publish("first", [b"1"])
    fanout.publish("first", [b"2"])

    assert (leaver.heard, stayer.heard) == ([b"1"], [b"1", b"2"])


def test_leaving_twice_is_no_error() -> None:
    fanout = Fanout()
    listener = Listener("first")
    fanout.add(listener)

    fanout.remove(listener)
    fanout.remove(listener)

    assert not fanout.has_listeners("first")
