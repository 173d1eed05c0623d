"""A list that grows from save to save: what each save costs, and that all of it comes back."""

from __future__ import annotations

import json

import pytest
from blob_kit import VALUES, Memory, message, reference, total
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from peen.store.blobs.decode import decode, earlier_values, named, restore
from peen.store.blobs.encoder import CHAIN, Encoder, pack
from peen.store.blobs.errors import BlobDamaged, BlobMissing
from peen.store.blobs.text import hash_of

MESSAGES = [message(n) for n in range(300)]
NUMBERED = st.integers(0, 299).map(message)
FIELDS = st.sampled_from(
    [(b"", b""), (b'{"messages":', b"}"), (b' { "system" : "%b" , "list":' % (b"s" * 600), b',"round":3,"~":["~"]} '),
     (b'{"tools":[%b],"in":[0,{"deep":' % b",".join([b'{"name":"a tool"}'] * 90), b"},[1]]}"), (b"[[", b"],1 ]")]
)  # fmt: skip


class Growing(RuleBasedStateMachine):
    """Any sequence of changes and saves, against a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.memory = Memory()
        self.elements: list[bytes] = []
        self.chain: list[bytes] = []
        self.whole = b""

    @rule(element=VALUES)
    def append(self, element: bytes) -> None:
        self.encoder.append(element)
        self.elements.append(element)

    @rule(start=st.integers(0, 250), count=st.integers(1, 40))
    def append_messages(self, start: int, count: int) -> None:
        for element in MESSAGES[start : start + count]:
            self.append(element)

    @rule(elements=st.lists(VALUES | NUMBERED, max_size=4), at=st.integers(0, 100), kept=st.booleans())
    def replace(self, elements: list[bytes], at: int, kept: bool) -> None:
        """In the middle, or with all that is there as a beginning."""
        self.elements = self.elements + elements if kept else elements + self.elements[at:]
        self.encoder.replace_all(self.elements)

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        length = round(len(self.elements) * share)
        self.encoder.truncate(length)
        self.elements = self.elements[:length]

    @rule(fields=FIELDS, root=st.sampled_from([False, False, False, True]))
    def save(self, fields: tuple[bytes, bytes], root: bool) -> None:
        before, after = fields
        saved = self.encoder.save(before, after, root=root)
        self.chain = [saved.value] if saved.is_root else [*self.chain, saved.value]
        self.whole = before + b"[" + b",".join(self.elements) + b"]" + after
        json.loads(self.memory.take(saved))
        assert earlier_values(saved.value) == len(self.chain) - 1
        assert named(saved.value, self.memory.blobs) <= self.memory.blobs.keys()
        assert saved.is_root or not root
        assert self.encoder.elements == self.elements
        assert decode(self.chain, self.memory.fetch) == self.whole

    @precondition(lambda self: self.chain)
    @rule()
    def die_and_go_on(self) -> None:
        """What was not saved is gone; what was saved is all that the next one knows."""
        restored = restore(self.chain, self.memory.fetch)
        self.encoder = restored.encoder
        # Blobs that only an earlier root named may come again.
        self.memory.blobs = {digest: self.memory.blobs[digest] for digest in self.encoder.known}
        self.elements = list(self.encoder.elements)
        assert restored.before + b"[" + b",".join(self.elements) + b"]" + restored.after == self.whole


Growing.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestGrowing = Growing.TestCase


def grown(encoder: Encoder, messages: list[bytes]) -> list[bytes]:
    """Append and save one by one; the saved values since the last root."""
    chain: list[bytes] = []
    for each in messages:
        encoder.append(each)
        saved = encoder.save()
        chain = [saved.value] if saved.is_root else [*chain, saved.value]
    return chain


# --- what a save costs


def test_a_step_saves_what_it_appended_and_every_16th_the_whole_root() -> None:
    encoder, memory = Encoder(), Memory()
    roots: list[int] = []
    sizes: list[int] = []
    for number, each in enumerate(MESSAGES):
        encoder.append(each)
        saved = encoder.save(b'{"system":"%b","messages":' % (b"s" * 300), b"}")
        memory.take(saved)
        (roots if saved.is_root else sizes).append(
            number if saved.is_root else len(saved.value) + total(saved.new_blobs)
        )

    assert roots == list(range(0, len(MESSAGES), CHAIN))
    assert max(sizes) < len(MESSAGES[-1]) + 100, "a step costs more than its message and a reference"


def test_the_root_grows_with_the_logarithm_of_the_length() -> None:
    short, long = Encoder(), Encoder()
    short.replace_all(MESSAGES[:30])
    long.replace_all([message(n) for n in range(3000)])

    assert len(long.save().value) < len(short.save().value) + 3000


def test_a_step_that_appended_more_than_a_run_holds_is_a_root() -> None:
    encoder = Encoder()
    encoder.save()
    for n in range(400):
        encoder.append(message(n, size=100))

    saved = encoder.save()

    assert saved.is_root
    assert len(saved.value) < 3000


def test_runs_end_where_they_did_in_the_first_release() -> None:
    """Else an updated database would store the runs of every list once more."""
    encoder = Encoder()
    encoder.replace_all([b'{"n":%d,"text":"a short one that stays in its run"}' % n for n in range(5000)])

    assert hash_of(encoder.save().value).hex() == "8a8efc832f79107ff2e1e24f56deed6e681f0a730ba335c703491811015fc941"


def test_short_messages_are_stored_in_their_step_and_once_more_in_a_run() -> None:
    encoder, memory = Encoder(), Memory()
    messages = [message(n, size=100) for n in range(160)]
    values = []
    for each in messages:
        encoder.append(each)
        values.append(memory.take(encoder.save()))

    assert sum(map(len, [*values, *memory.blobs.values()])) < 3 * sum(map(len, messages))


def test_appending_leaves_every_earlier_run_as_it_was() -> None:
    encoder = Encoder()
    whole = {each.hash for each in pack(b"[%b]" % b",".join(MESSAGES)).new_blobs}
    seen: set[bytes] = set()
    for each in MESSAGES:
        encoder.append(each)
        seen |= {each.hash for each in encoder.save(root=True).new_blobs}

    assert seen == whole


@settings(deadline=None)
@given(st.lists(st.integers(0, 299), max_size=40), st.integers(0, 40))
def test_one_list_has_one_root_however_it_came_about(numbers: list[int], at: int) -> None:
    messages = [MESSAGES[number] for number in numbers]
    whole, appended, edited, memory = Encoder(), Encoder(), Encoder(), Memory()
    whole.replace_all(messages)
    for each in messages:
        appended.append(each)
    edited.replace_all([b"1", *messages, b"2"])
    edited.save()
    edited.replace_all([*messages[:at], b"3"])
    edited.replace_all(messages)

    expected = whole.save(root=True)
    memory.take(expected)

    assert appended.save() == expected
    assert edited.save().value == expected.value
    assert restore([expected.value], memory.fetch).encoder.save() == expected._replace(new_blobs=[])


def test_encoders_of_one_session_hand_out_what_they_share_once() -> None:
    known: set[bytes] = set()
    first, second, memory = Encoder(known), Encoder(known), Memory()
    first.replace_all(MESSAGES)
    memory.take(first.save())
    second.replace_all(MESSAGES[:200])

    assert second.save().new_blobs == []


# --- edits


@pytest.mark.parametrize("length", [0, 5, 299])
def test_after_a_truncation_the_whole_root_is_saved_at_once(length: int) -> None:
    encoder, memory = Encoder(), Memory()
    encoder.replace_all(MESSAGES)
    memory.take(encoder.save())

    encoder.truncate(length)

    saved = encoder.save()
    assert saved.is_root
    assert total(saved.new_blobs) < 5_000
    assert decode([memory.take(saved)], memory.fetch) == b"[" + b",".join(MESSAGES[:length]) + b"]"


def test_what_was_appended_and_cut_off_before_a_save_is_never_handed_out() -> None:
    encoder = Encoder()
    encoder.append(MESSAGES[0])
    encoder.append(MESSAGES[1])
    encoder.truncate(1)

    assert [each.data in MESSAGES[1] for each in encoder.save().new_blobs] == [False]


def test_a_list_that_begins_with_the_old_one_is_no_edit() -> None:
    encoder = Encoder()
    encoder.replace_all(MESSAGES[:10])
    encoder.save()

    encoder.replace_all(list(MESSAGES[:12]))

    assert not encoder.save().is_root


@pytest.mark.parametrize("length", [-1, 3])
def test_more_than_there_is_cannot_be_kept(length: int) -> None:
    encoder = Encoder()
    encoder.replace_all(MESSAGES[:2])

    with pytest.raises(ValueError, match=f"keep {length} of 2"):
        encoder.truncate(length)


def test_what_is_not_json_changes_nothing() -> None:
    encoder, memory = Encoder(), Memory()
    encoder.replace_all(MESSAGES[:2])
    memory.take(encoder.save(b'{"a":', b"}"))

    with pytest.raises(ValueError):
        encoder.append(b"[")
    with pytest.raises(ValueError):
        encoder.replace_all([MESSAGES[0], b"]"])
    with pytest.raises(ValueError):
        encoder.save(b'{"a":', b"]")

    assert encoder.elements == MESSAGES[:2]
    saved = encoder.save(b'{"a":', b"}", root=True)
    assert decode([memory.take(saved)], memory.fetch) == b'{"a":[%b,%b]}' % (MESSAGES[0], MESSAGES[1])


# --- what goes wrong


def test_blobs_that_the_store_asks_for_are_found_again() -> None:
    encoder = Encoder()
    fields = (b'{"system":"%b","messages":' % (b"s" * 600), b"}")
    encoder.replace_all(MESSAGES)
    saved = encoder.save(*fields)
    wanted = {each.hash: each for each in saved.new_blobs[::7]}

    assert {each.hash: each for each in encoder.blobs(wanted)} == wanted
    assert len(encoder.blobs({each.hash for each in saved.new_blobs})) == len(saved.new_blobs)
    assert encoder.save(*fields).new_blobs == []


def test_a_missing_blob_is_named_wherever_it_belongs() -> None:
    encoder, memory = Encoder(), Memory()
    encoder.append(MESSAGES[0])
    memory.take(encoder.save(b'{"a":"%b","list":' % (b"a" * 600), b',"b":"%b"}' % (b"b" * 600)))
    chain = [encoder.save(b'{"a":"%b","list":' % (b"a" * 600), b',"b":"%b"}' % (b"b" * 600), root=True).value]
    missing = list(memory.blobs)
    memory.blobs.clear()

    with pytest.raises(BlobMissing) as caught:
        decode(chain, memory.fetch)

    assert sorted(caught.value.hashes) == sorted(missing)
    assert len(missing) == 3


def test_values_that_do_not_belong_together_are_damage() -> None:
    memory = Memory()
    chain = grown(Encoder(), MESSAGES[:5])
    other = grown(Encoder(), MESSAGES[10:15])
    for blob in pack(b"[%b]" % b",".join(MESSAGES[:15])).new_blobs:
        memory.blobs[blob.hash] = blob.data

    whole = b"[" + b",".join(MESSAGES[:5]) + b"]"
    assert decode(chain, memory.fetch) == whole
    wrong = [
        ([], "no saved value"),
        (chain[1:], "number 0 .* says that it is number 1"),
        (chain[:2] + chain[3:], "number 2 .* says that it is number 3"),
        ([*chain[:4], other[4]], "do not belong together"),
        ([other[0], *chain[1:]], "do not belong together"),
    ]
    for each, problem in wrong:
        with pytest.raises(BlobDamaged, match=problem):
            decode(each, memory.fetch)


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b'["~l0.00000000"]', b'["~l0.00000000",0', b'["~l0.0000000g","",""]', b'["~l0.00000000","\\q",0]'],
)
def test_what_no_encoder_has_saved_is_damage(value: bytes) -> None:
    with pytest.raises(BlobDamaged):
        decode([value], Memory().fetch)


def test_what_the_first_release_saved_is_still_read() -> None:
    text = b"t" * 512
    run = b'{"n":1},"~~x",%b' % reference(b"s", text)
    blobs = {hash_of(text): text, hash_of(run): run}
    root = b'["~l0.1d00e407","{\\"list\\":",",\\"n\\":1}",%b,{"n":2}]' % reference(b"r", run)
    step = b'["~l1.cec0a978",0,",\\"n\\":2}",{"n":3}]'

    assert decode([root], blobs.__getitem__) == b'{"list":[{"n":1},"~x","%b",{"n":2}],"n":1}' % text
    assert decode([root, step], blobs.__getitem__) == b'{"list":[{"n":1},"~x","%b",{"n":2},{"n":3}],"n":2}' % text
