"""Names of users as directories."""

from hypothesis import given
from hypothesis import strategies as st

from driftq.pipeline.lake.table_layout import directory_name

NAMES = st.text(min_size=1, max_size=300)


@given(NAMES)
def test_a_directory_is_one_plain_name(name: str) -> None:
    made = directory_name(name)
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-~")
    assert made[0] not in "._"
    assert 1 <= len(made) <= 255


@given(NAMES, NAMES)
def test_two_names_never_share_a_directory(one: str, other: str) -> None:
    assert (directory_name(one) == directory_name(other)) == (one == other)


def test_plain_names_stay_readable() -> None:
    assert directory_name("orders.eu-1") == "orders.eu-1"
    assert directory_name("@runs") == "~40runs"


def test_a_name_cannot_leave_its_place() -> None:
    assert directory_name("../../etc") == "~2e.~2f..~2fetc"
    assert directory_name("..") == "~2e."


def test_case_is_told_apart_where_the_file_system_does_not() -> None:
    assert directory_name("Orders").lower() != directory_name("orders").lower()


def test_a_long_name_keeps_its_beginning() -> None:
    one, other = directory_name("a" * 254 + "b"), directory_name("a" * 254 + "c")
    assert one != other
    assert one[:120] == other[:120] == "a" * 120
