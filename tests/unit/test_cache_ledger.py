"""The ledger's format: nothing but a record written for this stripe of this version makes it present."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fusestripe.cache.ledger import (
    RECORD_SIZE,
    StripeTable,
    decode_header,
    decode_record,
    decode_records,
    encode_header,
    encode_record,
)
from fusestripe.units import ObjectVersion

words = st.text(st.characters(codec="utf-8"), max_size=40)
versions = st.builds(ObjectVersion, words, words, st.integers(0, 1 << 40), words)
stripe_sizes = st.integers(1, 1 << 18).map(lambda pages: pages * 4096)
checksums = st.integers(0, (1 << 64) - 1)
keys = st.binary(min_size=16, max_size=16)


@given(versions, stripe_sizes, st.binary(max_size=100))
def test_a_header_comes_back_whatever_follows_it(
    version: ObjectVersion, stripe_size: int, rest: bytes
) -> None:
    content = encode_header(version, stripe_size)
    header = decode_header(content + rest)
    assert header is not None
    assert (header.version, header.stripe_size, header.records_at) == (version, stripe_size, len(content))
    assert header.records_at % 512 == 0


@given(versions, stripe_sizes, st.data())
def test_a_header_with_another_byte_is_none_or_the_same(
    version: ObjectVersion, stripe_size: int, data: st.DataObject
) -> None:
    content = bytearray(encode_header(version, stripe_size))
    whole = decode_header(bytes(content))
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    assert decode_header(bytes(content)) in (None, whole)  # the same: the byte was padding


@given(versions, stripe_sizes, st.data())
def test_a_header_cut_short_is_none_or_the_same(
    version: ObjectVersion, stripe_size: int, data: st.DataObject
) -> None:
    content = encode_header(version, stripe_size)
    cut = content[: data.draw(st.integers(0, len(content) - 1))]
    assert decode_header(cut) in (None, decode_header(content))


@given(st.binary(max_size=600))
def test_no_other_bytes_are_a_header(content: bytes) -> None:
    assert decode_header(content) is None


@given(keys, stripe_sizes, st.integers(0, 1 << 40), checksums)
def test_a_record_comes_back(key: bytes, stripe_size: int, index: int, checksum: int) -> None:
    record = encode_record(key, stripe_size, index, checksum)
    assert len(record) == RECORD_SIZE
    assert decode_record(key, stripe_size, index, record) == checksum


@given(keys, keys, stripe_sizes, st.integers(0, 99), st.integers(0, 99), checksums)
def test_a_record_of_another_version_or_index_is_absent(
    key: bytes, other: bytes, stripe_size: int, index: int, elsewhere: int, checksum: int
) -> None:
    record = encode_record(key, stripe_size, index, checksum)
    if other != key:
        assert decode_record(other, stripe_size, index, record) is None
    if elsewhere != index:
        assert decode_record(key, stripe_size, elsewhere, record) is None
    assert decode_record(key, 2 * stripe_size, index, record) is None


@given(keys, checksums, st.integers(0, RECORD_SIZE - 1), st.integers(1, 255))
def test_a_damaged_record_is_absent(key: bytes, checksum: int, position: int, change: int) -> None:
    record = bytearray(encode_record(key, 4096, 3, checksum))
    record[position] ^= change
    assert decode_record(key, 4096, 3, bytes(record)) is None


@given(keys, checksums, checksums, st.integers(1, RECORD_SIZE - 1))
def test_a_torn_record_is_absent_or_one_of_the_two(key: bytes, old: int, new: int, torn: int) -> None:
    before, after = (encode_record(key, 4096, 0, checksum) for checksum in (old, new))
    assert decode_record(key, 4096, 0, after[:torn] + before[torn:]) in (None, old, new)
    assert decode_record(key, 4096, 0, after[:torn] + bytes(RECORD_SIZE - torn)) in (None, new)


def test_zeros_are_absent() -> None:
    assert decode_record(bytes(16), 4096, 0, bytes(RECORD_SIZE)) is None


@given(st.dictionaries(st.integers(0, 20), checksums), st.integers(0, 21 * RECORD_SIZE))
def test_a_ledger_cut_short_has_the_records_before_the_cut(records: dict[int, int], cut: int) -> None:
    version = ObjectVersion("s3://bucket", "a", 21 * 4096 - 1, "e")
    content = bytearray(encode_header(version, 4096))
    header = decode_header(bytes(content))
    assert header is not None
    content += bytes(21 * RECORD_SIZE)
    for index, checksum in records.items():
        at = header.records_at + index * RECORD_SIZE
        content[at : at + RECORD_SIZE] = encode_record(bytes.fromhex(version.key), 4096, index, checksum)
    found = dict(decode_records(header, bytes(content[: header.records_at + cut])))
    assert found == {index: sum_ for index, sum_ in records.items() if (index + 1) * RECORD_SIZE <= cut}


steps = st.lists(
    st.tuples(st.sampled_from(["put", "clear", "verify", "forget"]), st.integers(0, 4), st.integers(0, 2))
)


@given(steps)
def test_a_table_is_a_dictionary_of_checksums_and_a_set_of_the_verified(
    steps: list[tuple[str, int, int]],
) -> None:
    table = StripeTable(5)
    present: dict[int, int] = {}
    verified: set[int] = set()
    for step, index, checksum in steps:
        if step == "put":
            if present.get(index) != checksum:
                verified.discard(index)
            present[index] = checksum
            table.put(index, checksum)
        elif step == "clear":
            present.pop(index, None)
            verified.discard(index)
            table.clear(index)
        elif step == "verify":
            if present.get(index) == checksum:
                verified.add(index)
            table.mark_verified(index, checksum)
        else:
            verified.clear()
            table.forget_verified()
        assert table.indices() == sorted(present)
        assert table.verified_indices() == sorted(verified)
        assert table.count == len(present)
        assert all(table.checksum(index) == sum_ for index, sum_ in present.items())
        assert table.present_bytes(4 * 100 + 7, 100) == sum(7 if index == 4 else 100 for index in present)
