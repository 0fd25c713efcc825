"""Pages and cursors of lists (http-v0 §1.9)."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.errors import InvalidRequestError
from driftq.http.request import Request
from driftq.http.v0.paging import Paging, decode_cursor, encode_cursor

NAMES = st.from_regex(r"[A-Ca-c0][ab0.:>-]{0,4}", fullmatch=True)


@given(NAMES)
def test_a_cursor_is_safe_in_a_url_and_comes_back(name: str) -> None:
    cursor = encode_cursor(name)
    assert all(letter.isalnum() or letter in "-_" for letter in cursor)
    assert decode_cursor(cursor) == decode_cursor(cursor + "=" * (-len(cursor) % 4)) == name


@given(st.text(max_size=30))
def test_any_other_text_is_a_cursor_or_400(text: str) -> None:
    with suppress(InvalidRequestError):
        assert isinstance(decode_cursor(text), str)


@pytest.mark.parametrize(
    ("query", "size"),
    [
        ("", 100),
        ("page_size=0", 1),
        ("page_size=7", 7),
        ("page_size=1001", 1000),
        ("page_size=x", 100),
        ("page_size=", 100),
    ],
)
def test_sizes_are_clamped_and_what_is_no_number_is_the_default(query: str, size: int) -> None:
    assert Paging.of(Request("GET", "/", query)).size == size
    assert Paging.of(Request("GET", "/", "page_size=" + "9" * 5000)).size == 100


BEGINNINGS = st.sampled_from(["", "a", "ab", "B", "0", "zz", "a."])


@given(st.sets(NAMES), st.integers(1, 5), BEGINNINGS, st.sets(NAMES), st.sets(BEGINNINGS.filter(bool)))
def test_pages_are_disjoint_sorted_and_complete(
    names: set[str], size: int, prefix: str, hidden: set[str], allowed: set[str]
) -> None:
    """inv: 41, 73"""
    ordered = sorted(names)
    may = tuple(allowed)
    wanted = [name for name in ordered if name.startswith(prefix) and name not in hidden]
    wanted = [name for name in wanted if not may or name.startswith(may)]
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        paging = Paging(prefix, decode_cursor(cursor), size)
        page, cursor = paging.cut(ordered, lambda name: name not in hidden, may)
        assert len(page) == size or cursor is None
        found += page
    assert found == wanted
