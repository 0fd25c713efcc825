"""Which names a topic may have."""

import pytest

from driftq.errors import InvalidRequestError
from driftq.model.names import check_topic_name, is_topic_name


@pytest.mark.parametrize("name", ["a", "0", "A.b_c:d-e", "a" * 255, "9..", "v1:orders"])
def test_names(name: str) -> None:
    assert is_topic_name(name)
    check_topic_name(name)


@pytest.mark.parametrize(
    "name", ["", ".a", "_a", "-a", ":a", "a b", "a/b", "a>b", "ä", "a\n", "a" * 256, "٣", "../../etc/passwd"]
)
def test_no_names(name: str) -> None:
    assert not is_topic_name(name)
    with pytest.raises(InvalidRequestError) as refused:
        check_topic_name(name)
    assert refused.value.detail == {"topic": name}
