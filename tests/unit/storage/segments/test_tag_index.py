"""The tag index finds every row, says honestly when it is not sure, and is as good as absent when damaged."""

import random
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.blocks.open_block import OpenBlock
from driftq.storage.segments.tag_index import TagIndex, tag_rows
from tests.unit.storage import samples

# Few letters, zero bytes and 0xff among them, and parts longer than a key: ties, padding and overlong tags meet.
letters = st.sampled_from([b"\0", b"a", b"b", b"\xff"])
tags = st.builds(
    lambda front, middle, back: front + middle + back,
    st.sampled_from([b"", b"user/", b"user/2024-01-01/"]),
    st.lists(letters, max_size=10).map(b"".join),
    st.sampled_from([b"", b"", b"-and-more"]),
)
entries = st.lists(st.tuples(tags, st.integers(0, 70_000)), max_size=30, unique_by=lambda entry: entry[1])


def check_exact(index: TagIndex, given_tags: Sequence[tuple[bytes, int]], tag: bytes) -> bool:
    """Does a lookup find what is there? Returns whether it was sure."""
    expected = sorted(row for name, row in given_tags if name == tag)
    rows, certain = index.exact(tag)
    if certain:
        assert list(rows) == expected
    assert set(expected) <= set(rows)
    return certain


def check_prefix(index: TagIndex, given_tags: Sequence[tuple[bytes, int]], prefix: bytes) -> bool:
    """The same for a prefix; rows come in the order of their tags."""
    expected = [row for name, row in sorted(given_tags) if name.startswith(prefix)]
    rows, certain = index.prefix(prefix)
    if certain:
        assert list(rows) == expected
    assert set(expected) <= set(rows)
    assert index.may_match_prefix(prefix) or not expected
    return certain


@given(entries, st.lists(tags, max_size=10), st.integers(0, 12))
def test_every_row_is_found_and_certainty_is_earned(
    given_tags: list[tuple[bytes, int]], others: list[bytes], cut: int
) -> None:
    index = TagIndex.build(given_tags)
    assert len(index) == len(given_tags)
    for tag in [*(tag for tag, _ in given_tags), *others, b""]:
        check_exact(index, given_tags, tag)
        check_exact(index, given_tags, tag + b"\0")
        for prefix in (tag, tag[:cut], tag + b"\0", tag[: len(tag) - 1], tag + b"\xff"):
            check_prefix(index, given_tags, prefix)


@given(entries)
def test_encoding_keeps_everything(given_tags: list[tuple[bytes, int]]) -> None:
    index = TagIndex.build(given_tags)
    again = TagIndex.decode(index.encode())
    assert again is not None
    assert again.encode() == index.encode()
    assert (again.first, again.last, len(again)) == (index.first, index.last, len(index))
    for tag, _ in given_tags:
        assert again.exact(tag) == index.exact(tag)
        assert again.prefix(tag[:3]) == index.prefix(tag[:3])


@pytest.mark.parametrize(
    "pattern",
    ["%d", "user-%08d", "p%d", "tenant-7/orders/2024/%06d", "%x", "é-%d"],
    ids=lambda pattern: pattern.strip("%"),
)
def test_common_tags_are_found_for_certain(pattern: str) -> None:
    names = [(pattern % number).encode() for number in range(1000, 1500)] * 2
    random.Random(1).shuffle(names)
    given_tags = [(name, row) for row, name in enumerate(names)]
    index = TagIndex.build(given_tags)
    for name in {*names, b"user-", b"", b"nothing", b"user-0000100"}:
        assert check_exact(index, given_tags, name)
        assert check_prefix(index, given_tags, name)
        assert check_prefix(index, given_tags, name[:-1])


def test_a_tag_that_ends_inside_its_key_is_certain_beside_longer_ones() -> None:
    given_tags = [(b"a", 0), (b"abc", 1), (b"abcdefgh", 2), (b"abcdefghijk", 3)]
    index = TagIndex.build(given_tags)
    assert check_exact(index, given_tags, b"a")
    assert check_exact(index, given_tags, b"abc")
    assert not check_exact(index, given_tags, b"abcdefghijk")
    assert check_prefix(index, given_tags, b"abcdefgh")
    assert not check_prefix(index, given_tags, b"abcdefghij")


def test_zero_bytes_that_look_like_padding_are_doubted() -> None:
    given_tags = [(b"a", 0), (b"a\0", 1), (b"b", 2)]
    index = TagIndex.build(given_tags)
    assert not check_exact(index, given_tags, b"a")
    assert not check_exact(index, given_tags, b"a\0")
    assert check_prefix(index, given_tags, b"a")
    assert not check_prefix(index, given_tags, b"a\0")


def test_what_the_first_and_last_tag_rule_out_costs_no_search() -> None:
    index = TagIndex.build([(b"m-1", 0), (b"m-9", 1)])
    assert [index.may_match_prefix(tag) for tag in (b"", b"l", b"m", b"m-9", b"m-91", b"n")] == [
        *(True, False, True, True, False, False)
    ]
    assert index.exact(b"zzz") == index.prefix(b"zzz") == ((), True)


def test_an_index_without_tags_matches_nothing() -> None:
    index = TagIndex.decode(TagIndex.build([]).encode())
    assert index is not None
    assert not index.may_match_prefix(b"")
    assert index.exact(b"") == index.prefix(b"") == ((), True)


def test_rows_take_two_bytes_until_they_need_four() -> None:
    narrow = TagIndex.build([(b"%07d" % row, row) for row in range(0, 65_536, 64)] + [(b"z", 65_535)])
    wide = TagIndex.build([(b"%07d" % row, row) for row in range(0, 65_536, 64)] + [(b"z", 65_536)])
    assert len(wide.encode()) - len(narrow.encode()) == 2 * len(wide)
    assert list(narrow.exact(b"z").rows) == [65_535]
    assert list(wide.exact(b"z").rows) == [65_536]
    assert 10 * len(narrow) < narrow.nbytes < 10 * len(narrow) + 600


def test_rows_are_counted_from_the_first_seq_of_the_segment() -> None:
    first = Block.of(encode_block(samples.make_rows([b"1", b"2"], tag=[b"a", None]), topic_id=1, first_seq=50, ts=1))
    untagged = Block.of(encode_block(samples.make_rows([b"3"]), topic_id=1, first_seq=52, ts=1))
    opened = OpenBlock(60)
    opened.extend(samples.make_rows([b"4", b"5"], tag=[b"a", b""]), 1)
    assert list(tag_rows([first, untagged, opened], 50)) == [(b"a", 0), (b"a", 10), (b"", 11)]
    assert list(TagIndex.build(tag_rows([first, untagged, opened], 50)).exact(b"a").rows) == [0, 10]


@given(entries, st.data())
def test_damage_is_as_good_as_absence(given_tags: list[tuple[bytes, int]], data: st.DataObject) -> None:
    content = bytearray(TagIndex.build(given_tags).encode())
    place = data.draw(st.integers(0, len(content) - 1).filter(lambda place: not 4 <= place < 8))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    assert TagIndex.decode(bytes(content)) is None
    assert TagIndex.decode(bytes(content[:place])) is None


@given(st.binary(max_size=100))
def test_any_bytes_behind_a_right_checksum_raise_nothing(body: bytes) -> None:
    from xxhash import xxh3_64_intdigest

    content = b"DQT\x01" + bytes(4) + xxh3_64_intdigest(body).to_bytes(8, "little") + body
    index = TagIndex.decode(content)
    assert index is None or len(index) == array("I", body[:4])[0]
    assert TagIndex.decode(body) is None or body[:3] == b"DQT"


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("partitions", [1, 3, 12, 200])
def test_rows_are_numbered_by_their_tags(partitions: int, *, wide: bool) -> None:
    rng = random.Random(partitions)
    numbers = {b"p%d" % number: number for number in range(partitions)}
    names = [rng.choice(list(numbers)) for _ in range(500)]
    entries = [(name, row) for row, name in enumerate(names)]
    found = TagIndex.build(entries).numbered(500, numbers, wide=wide)
    assert found is not None
    assert (list(found[0]), found[1]) == ([numbers[name] for name in names], 500)
    assert TagIndex.build([*entries, (b"another", 500)]).numbered(501, numbers, wide=wide) is None
    assert TagIndex.build(entries).numbered(499, numbers, wide=wide) is None


def test_rows_are_not_numbered_where_a_key_does_not_prove_the_tag() -> None:
    index = TagIndex.build([(b"a" * 9, 0), (b"b" * 20, 1)])
    assert index.numbered(2, {b"a" * 9: 0, b"b" * 20: 1}, wide=False) is None
