"""Frames that are made once for all who are told the same, and never given to somebody else."""

from driftq.http.v0.streams.watch_events import JOINED_MAX, Frames, decode_id


def test_an_id_is_made_once_for_those_who_stand_at_one_place() -> None:
    frames = Frames()
    first = frames.id_of({"a": 1, "b": 2})
    assert frames.id_of({"a": 1, "b": 2}) is first
    other = frames.id_of({"a": 1, "b": 3})
    assert decode_id(first) == {"a": 1, "b": 2}
    assert decode_id(other) == {"a": 1, "b": 3}


def test_a_frame_that_says_caught_up_is_about_one_id_topic_and_head() -> None:
    frames = Frames()
    first = frames.caught_up(b"X", "a", 7)
    assert first == b'id: X\nevent: caught-up\ndata: {"topic":"a","head_seq":7}\n\n'
    assert frames.caught_up(b"X", "a", 7) is first
    others = [frames.caught_up(b"Y", "a", 7), frames.caught_up(b"Y", "b", 7), frames.caught_up(b"Y", "b", 8)]
    assert others == [
        b'id: Y\nevent: caught-up\ndata: {"topic":"a","head_seq":7}\n\n',
        b'id: Y\nevent: caught-up\ndata: {"topic":"b","head_seq":7}\n\n',
        b'id: Y\nevent: caught-up\ndata: {"topic":"b","head_seq":8}\n\n',
    ]


def test_the_same_parts_are_joined_once_and_many_bytes_are_not_copied() -> None:
    frames = Frames()
    (first,) = frames.joined([b"a", b"b"])
    (again,) = frames.joined([b"a", b"b"])
    assert first is again
    assert first == b"ab"
    assert list(frames.joined([b"a", b"c"])) == [b"ac"]
    large = [b"a", b"x" * JOINED_MAX]
    assert list(frames.joined(large)) == large
    assert list(frames.joined([b"a", b"b"])) == [b"ab"]
