"""Spans name late frames and nothing else, only what was synced, and a reader believes only the log writer's."""

import random

import pytest

from driftq.storage.blocks.frame import Kind, encode_control
from driftq.storage.wal import memory_spans as spans
from driftq.storage.wal.frame_salt import salted
from driftq.storage.wal.memory_spans import Span, SpanNotes, find_spans

SALT = 0x1234_5678_9ABC_DEF0


def _named(notes: SpanNotes, synced: int) -> list[Span]:
    body = notes.body(synced, at_end=True)
    return [] if body is None else spans._decode(body)


@pytest.mark.parametrize("seed", range(20))
def test_every_byte_of_a_span_is_of_a_late_frame(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "SPAN_BYTES_MAX", 2000)
    monkeypatch.setattr(spans, "SPAN_BYTES_MIN", 200)
    monkeypatch.setattr(spans, "TOPICS_MAX", 5)
    rng = random.Random(seed)
    notes, place = SpanNotes(), 8192
    late: dict[int, tuple[int, int, int]] = {}
    for _ in range(400):
        size = 8 * rng.randrange(9, 40)
        if rng.random() < 0.9:
            topic, ts = rng.randrange(8), rng.randrange(1000)
            notes.late(place, place + size, topic, ts)
            late[place] = (place + size, topic, ts)
        else:
            notes.other()
        place += size
    found = _named(notes, place)
    assert found
    for span in found:
        at, topics, stamps = span.start, set(), set()
        while at < span.end:
            at, topic, ts = late[at]
            topics.add(topic)
            stamps.add(ts)
        assert (at, topics, max(stamps)) == (span.end, set(span.topics), span.ts)
        assert 200 <= span.end - span.start < 2000 + 320
    assert [span.start for span in found] == sorted(span.start for span in found)


def test_a_span_is_named_only_when_it_was_synced_and_long_enough() -> None:
    notes = SpanNotes()
    notes.late(8192, 8192 + spans.SPAN_BYTES_MIN, 1, 5)
    assert _named(notes, 8192 + spans.SPAN_BYTES_MIN - 8) == []
    assert notes.body(1 << 30) is None
    assert _named(notes, 1 << 30) == [Span(8192, 8192 + spans.SPAN_BYTES_MIN, 5, [1])]
    assert _named(notes, 1 << 30) == []


def _frame(body: bytes, salt: int = SALT) -> bytes:
    return b"".join(salted([encode_control(Kind.SPANS, body, topic_id=0, op=0, ts=0)], salt))


def test_the_last_frame_counts_and_one_with_another_salt_does_not() -> None:
    first, second = ([Span(8, 16, 1, [1])], [Span(8, 24, 1, [1, 2])])
    early, late = _frame(spans._encode(first)), _frame(spans._encode(second))
    content = bytes(64) + early + bytes(80) + late
    assert find_spans(content, SALT) == second
    assert find_spans(content[:-8], SALT) == first
    assert find_spans(content + _frame(spans._encode(first), SALT + 1), SALT) == second
    assert find_spans(content[32:], SALT, 32) == second
    assert find_spans(bytes(100), SALT) == []


@pytest.mark.parametrize("before", [*range(0, 400, 40), 3 * spans._WINDOW])
def test_a_frame_is_found_wherever_the_windows_of_the_search_end(before: int) -> None:
    named = [Span(8, 16, 1, [1])]
    content = bytes(before + 64) + _frame(spans._encode(named)) + bytes(2 * spans._WINDOW - 100)
    assert find_spans(content, SALT) == named


@pytest.mark.parametrize(
    "wrong", [[Span(16, 8, 1, [1])], [Span(8, 24, 1, []), Span(16, 32, 1, [])], [Span(0, 999, 1, [])]]
)
def test_spans_that_cannot_be_are_not_believed(wrong: list[Span]) -> None:
    assert find_spans(bytes(64) + _frame(spans._encode(wrong)), SALT) == []
