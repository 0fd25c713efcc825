"""Deleting records over the wire (http-v0 §10)."""

from typing import Any

import pytest

from driftq.testing import ServerRig

PATH = "/v0/topics/t/delete"


@pytest.fixture
def rig() -> ServerRig:
    rig = ServerRig()
    tags = ["a", "ab", None, "a*", "b"]
    records = [{"data": n} if tag is None else {"data": n, "tag": tag} for n, tag in enumerate(tags)]
    rig.ok("POST", "/v0/topics/t", {"records": records})
    return rig


def left(rig: ServerRig) -> list[int]:
    return [record["$seq"] for record in rig.diff("t")["records"]]


def test_the_answer_tells_what_is_left(rig: ServerRig) -> None:
    """inv: 5, 32"""
    body = rig.ok("POST", PATH, {"before_seq": 3})
    assert set(body.pop("performance")) == {"server_total_ms"}
    assert body == {"topic": "t", "deleted": 2, "earliest_seq": 3, "head_seq": 5, "count": 3, "bytes": 3}
    assert (left(rig), rig.diff("t")["tombstone"]) == ([3, 4, 5], None)


@pytest.mark.parametrize(
    ("body", "seqs"),
    [
        ({"match": "a"}, [2, 3, 4, 5]),
        ({"match": "a*"}, [1, 2, 3, 5]),
        ({"match": ["tag", "Eq", "b"]}, [1, 2, 3, 4]),
        ({"match": ["tag", "Glob", "a*"]}, [3, 5]),
        ({"match": ["tag", "Glob", "*"]}, [3]),
        ({"match": ["tag", "Glob", "a*"], "before_seq": 3}, [3, 4, 5]),
        ({"match": None, "before_seq": 2}, [2, 3, 4, 5]),
        ({"match": "a", "before_seq": None}, [2, 3, 4, 5]),
        ({"before_seq": (1 << 64) - 1}, []),
        ({"before_seq": 0}, [1, 2, 3, 4, 5]),
    ],
)
def test_what_is_selected_goes_and_nothing_else(rig: ServerRig, body: dict[str, Any], seqs: list[int]) -> None:
    """inv: 29, 31"""
    before = rig.ok("GET", "/v0/topics/t")["count"]
    answer = rig.ok("POST", PATH, body)
    assert left(rig) == seqs
    assert before - answer["deleted"] == answer["count"] == len(seqs)
    rig.kill()
    assert left(rig) == seqs


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"match": None, "before_seq": None},
        {"before_seq": -1},
        {"before_seq": "1"},
        {"before_seq": 1.0},
        {"before_seq": 1 << 64},
        {"match": 1},
        {"match": {}},
        {"match": []},
        {"match": ["tag", "Eq"]},
        {"match": ["node", "Eq", "a"]},
        {"match": ["tag", "Like", "a"]},
        {"match": ["tag", "Glob", "a"]},
        {"match": ["tag", "Eq", 1]},
        {"match": ["tag", "Eq", "a", "b"]},
        {"match": True},
        [],
    ],
)
def test_a_selector_that_is_none_is_400_before_the_topic_is_looked_for(rig: ServerRig, body: Any) -> None:
    """inv: 33"""
    assert rig.code("POST", PATH, body) == (400, "invalid_request")
    assert rig.code("POST", "/v0/topics/absent/delete", body) == (400, "invalid_request")
    assert left(rig) == [1, 2, 3, 4, 5]


def test_an_absent_topic_is_404_and_other_methods_405(rig: ServerRig) -> None:
    """inv: 21, 33"""
    assert rig.code("POST", "/v0/topics/absent/delete", {"before_seq": 1}) == (404, "topic_not_found")
    for path in (PATH, "/v0/topics/t/diff"):
        for method in ("GET", "PUT", "DELETE", "PATCH"):
            assert rig.code(method, path) == (405, "method_not_allowed")
    assert rig.code("POST", PATH) == (415, "unsupported_media_type")


def test_a_record_written_later_is_never_touched(rig: ServerRig) -> None:
    """inv: 30"""
    rig.ok("POST", PATH, {"match": "a", "before_seq": 1 << 40})
    rig.ok("POST", "/v0/topics/t", {"records": [{"data": "later", "tag": "a"}]})
    rig.kill()
    assert left(rig) == [2, 3, 4, 5, 6]
