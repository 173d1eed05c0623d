"""Any JSON text, with what is long in it moved into blobs, and back."""

from __future__ import annotations

import itertools
import json

import pytest
from blob_kit import LOOK_ALIKES, VALUES, Memory, blob, message, reference
from hypothesis import given, settings

from peen.store.blobs.decode import named, unpack
from peen.store.blobs.encoder import pack
from peen.store.blobs.errors import BlobDamaged, BlobMissing
from peen.store.blobs.runs import MAX_RUN_BYTES, MIN_FOLD_BYTES, MIN_RUN_BYTES, split_elements
from peen.store.blobs.text import hash_of


@settings(deadline=None)
@given(VALUES)
def test_any_json_text_comes_back_byte_for_byte(value: bytes) -> None:
    memory = Memory()
    packed = memory.take(pack(value))

    assert unpack(packed, memory.fetch) == value
    assert named(packed, memory.blobs) == set(memory.blobs), "a blob was made that nothing needs"
    json.loads(packed)


@settings(deadline=None)
@given(VALUES)
def test_what_is_known_is_not_handed_out_again(value: bytes) -> None:
    first = pack(value)

    second = pack(value, {each.hash for each in first.new_blobs})

    assert second == (first.value, [], True)


@pytest.mark.parametrize(
    "text", [b'{"a":', b"", b"1 2", b'"\n"', b"[1,]", b"NaN", b'"\xff"', b"[" * 5000 + b"]" * 5000]
)
def test_what_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        pack(text)


# --- strings


def test_a_string_of_512_bytes_is_a_blob_of_its_own_and_a_shorter_one_is_not() -> None:
    short, long = b"a" * 511, b"a" * 512
    packed = pack(b'{"short":"%b","long":"%b"}' % (short, long))

    assert packed.value == b'{"short":"%b","long":%b}' % (short, reference(b"s", long))
    assert packed.new_blobs == [blob(long)]


def test_a_string_counts_as_it_is_spelled() -> None:
    spelled = b"\\u0041" * 86  # 516 bytes, 86 characters

    assert pack(b'"%b"' % spelled).new_blobs == [blob(spelled)]


def test_the_same_string_in_two_places_is_one_blob() -> None:
    text = b"x" * 600

    assert pack(b'{"%b":["%b","%b"]}' % (text, text, text)).new_blobs == [blob(text)]


@pytest.mark.parametrize("text", LOOK_ALIKES)
@pytest.mark.parametrize("size", [1, 600])
def test_data_that_looks_like_a_reference_stays_data(text: bytes, size: int) -> None:
    value = b'["%b",{"%b":"%b"}]' % (text, text, text * size)
    packed = pack(value)

    assert unpack(packed.value, {each.hash: each.data for each in packed.new_blobs}.__getitem__) == value


def test_a_packed_value_can_be_packed_again_as_data() -> None:
    memory = Memory()
    once = memory.take(pack(b"[%b]" % b",".join(message(n) for n in range(50))))
    twice = memory.take(pack(once))

    assert twice != once
    assert unpack(twice, memory.fetch) == once


# --- runs


def elements(count: int) -> list[bytes]:
    return [b'{"n":%d,"text":"a short one that stays in its run"}' % n for n in range(count)]


def array(parts: list[bytes]) -> bytes:
    return b"[" + b",".join(parts) + b"]"


def test_a_long_array_becomes_a_few_references_and_an_open_tail() -> None:
    memory = Memory()
    packed = memory.take(pack(array(elements(5000))))

    assert len(packed) < 4_000
    assert all(len(run) <= MAX_RUN_BYTES for run in memory.blobs.values())
    refs_only = [run for run in memory.blobs.values() if run.startswith(b'"~r') and b"{" not in run]
    assert refs_only, "no run of references was folded"
    assert all(len(run) >= MIN_FOLD_BYTES for run in refs_only)
    assert all(len(run) >= MIN_RUN_BYTES for run in memory.blobs.values() if run not in refs_only)


def test_an_element_put_in_front_leaves_all_but_the_first_runs_as_they_were() -> None:
    parts = elements(2000)
    before = {each.hash for each in pack(array(parts)).new_blobs}

    after = pack(array([b'{"first":true}', *parts]), before)

    assert 0 < len(after.new_blobs) <= 6
    assert len(before) > 50


def test_elements_that_never_end_a_run_are_cut_at_16_kib() -> None:
    # All elements are the same, so either each of them may end a run or none; this one may not.
    candidates = (b'"%d %b"' % (n, b"x" * 20) for n in itertools.count())
    part = next(text for text in candidates if pack(array([text] * 60)).new_blobs == [])
    blobs = pack(array([part] * 4000)).new_blobs

    assert {len(each.data) for each in blobs if part in each.data} == {
        MAX_RUN_BYTES // (len(part) + 1) * (len(part) + 1) - 1
    }


def test_arrays_inside_arrays_and_objects_are_folded_too() -> None:
    inner = array(elements(100))
    value = b'{"a":{"b":[1,%b,{"c":%b}]},"d":%b}' % (inner, inner, inner)
    packed = pack(value)

    assert len(packed.value) < len(inner)
    assert len(packed.new_blobs) <= len(pack(inner).new_blobs) + 3, "equal arrays do not share their runs"
    assert unpack(packed.value, {each.hash: each.data for each in packed.new_blobs}.__getitem__) == value


@settings(deadline=None)
@given(VALUES)
def test_an_array_is_split_into_what_makes_it_up_again(value: bytes) -> None:
    parts = [value, b"1", value]

    assert split_elements(b",".join(parts)) == parts


# --- what is wrong


def test_every_blob_that_is_missing_is_named_and_reading_level_by_level_ends() -> None:
    value = array(elements(5000))
    saved = pack(value)
    everything = {each.hash: each.data for each in saved.new_blobs}
    here: dict[bytes, bytes] = {}
    for _level in range(10):
        if here == everything:
            break
        with pytest.raises(BlobMissing) as missing:
            unpack(saved.value, here.__getitem__)
        assert here.keys().isdisjoint(missing.value.hashes)
        here |= {digest: everything[digest] for digest in missing.value.hashes}

    assert unpack(saved.value, here.__getitem__) == value


def test_a_blob_with_other_bytes_is_damage() -> None:
    saved = pack(b'"%b"' % (b"a" * 600))
    digest = saved.new_blobs[0].hash

    other = {digest: b"b" * 600}
    with pytest.raises(BlobDamaged, match=digest.hex()):
        unpack(saved.value, other.__getitem__)


@pytest.mark.parametrize("text", [b'["~x"]', b'["~s"]', b'["~r%b"]' % (b"A" * 42), b'{"~l":1}', b'["~l0.1"]'])
def test_a_text_that_no_pack_has_made_is_damage(text: bytes) -> None:
    nothing: dict[bytes, bytes] = {}
    with pytest.raises(BlobDamaged):
        unpack(text, nothing.__getitem__)
    with pytest.raises(BlobDamaged):
        named(text, {})


def test_runs_that_stand_for_more_than_memory_holds_are_not_expanded() -> None:
    runs = {hash_of(b""): b""}
    last = b""
    for _level in range(40):
        last = b",".join([reference(b"r", last)] * 10)
        runs[hash_of(last)] = last

    with pytest.raises(BlobDamaged, match="more than 1000000 bytes"):
        unpack(b"[%b]" % reference(b"r", last), runs.__getitem__, max_bytes=1_000_000)


def test_what_a_run_of_this_save_names_is_named_and_what_a_string_seems_to_name_is_not() -> None:
    other = b"b" * 600
    text = b"not a name: " + reference(b"s", b"a" * 600)
    run = reference(b"s", other) + b"," + reference(b"s", text)

    assert named(b"[%b]" % reference(b"r", run), {}) == {hash_of(run)}
    new = {hash_of(run): run, hash_of(text): text}
    assert named(b"[%b]" % reference(b"r", run), new) == {hash_of(run), hash_of(other), hash_of(text)}
