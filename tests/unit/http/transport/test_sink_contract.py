"""The contract of `driftq.http.answer` that every sink keeps, whatever it writes to: one script for all of them."""

import logging
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftq.http.transport.outbox import HIGH_WATER
from tests.unit.http.transport.readers import READERS, AsgiMessageReader, MessageReader, Reader, Source

PATIENCE_MS = 10_000
"""Longer than a sink may wait for a peer that does not read the end."""
PIECE = 10_000
MOST = 2 * HIGH_WATER + PIECE
"""The most bytes that wait for a reader: one bound in the sink, one in the socket, and the last piece."""

FRAMING = 100
"""More bytes than the frame of one write; some sinks count frames too."""
STREAMS = [name for name, kind in READERS.items() if kind.is_stream]

Open = Callable[[Source], Reader]


@pytest.fixture(params=READERS)
def open_reader(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Return a function that opens one sink for a source, and the reader at its other end."""
    opened: list[Reader] = []

    def open_one(source: Source) -> Reader:
        opened.append(READERS[request.param](source))
        return opened[-1]

    yield open_one
    for reader in opened:
        assert not reader.source.wrong
        reader.end()


def pieces(count: int) -> list[bytes]:
    """Return pieces of `PIECE` bytes, each different from the others."""
    return [(b"%06d." % number * PIECE)[:PIECE] for number in range(count)]


def ended(reader: Reader) -> bool:
    """Whether the server has forgotten the connection, or at least the stream on it."""
    return not reader.source.has_room() and reader.source.calls[-1] == "closed"


def test_bytes_arrive_once_and_in_order(open_reader: Open) -> None:
    source = Source()
    reader = open_reader(source)
    for number, size in enumerate((1, 0, 100, HIGH_WATER - 1, HIGH_WATER, HIGH_WATER + 1, 3 * HIGH_WATER, 7)):
        source.write(bytes([97 + number]) * size)
        source.write(b"pushed", push=True)
        if number % 2:
            reader.turn()
            source.write(b"alone", push=True)
    reader.turn()
    assert reader.got == source.written
    assert source.calls[0] == "opened"
    assert not reader.complete


def test_there_is_room_below_the_bound_and_none_from_there(open_reader: Open) -> None:
    source = Source()
    reader = open_reader(source)
    source.write(b"x" * (HIGH_WATER - FRAMING))
    assert source.has_room()
    source.write(b"y" * FRAMING)
    assert not source.has_room()
    reader.turn()
    assert source.has_room()
    assert source.calls == ["opened", "room"]
    source.write(b"z")
    reader.turn()
    assert source.calls == ["opened", "room"]


def test_a_reader_that_stops_bounds_the_memory_and_loses_nothing(open_reader: Open) -> None:
    source = Source()
    reader = open_reader(source)
    everything = pieces(100)
    reader.stop()
    source.feed(*everything)
    for _ in range(20):
        reader.turn()
    assert source.waiting
    assert not source.has_room()
    assert HIGH_WATER <= len(source.written) - len(reader.got) <= MOST
    if reader.is_stream:
        assert HIGH_WATER <= source.stream.unsent <= MOST + 1000
    calls = list(source.calls)
    reader.turn()
    assert source.calls == calls, "a source that waits is not called"
    reader.go_on()
    reader.turn()
    assert source.waiting == []
    assert reader.got == b"".join(everything)


def test_room_is_announced_once_for_each_time_that_there_was_none(open_reader: Open) -> None:
    source = Source()
    reader = open_reader(source)
    for times in range(1, 4):
        reader.stop()
        while source.has_room():
            source.write(b"x" * PIECE)
            reader.turn()
        before = source.calls.count("room")
        reader.turn()
        assert source.calls.count("room") == before
        reader.go_on()
        reader.turn()
        assert source.calls.count("room") == before + 1, times
    reader.stop()
    source.write(b"a little")
    reader.go_on()
    reader.turn()
    assert source.calls.count("room") == before + 1
    assert reader.got == source.written


def test_a_source_that_closes_is_read_to_its_end(open_reader: Open) -> None:
    source = Source()
    reader = open_reader(source)
    source.write(b"x" * 2 * HIGH_WATER)
    source.close()
    assert source.calls == ["opened"]
    assert not source.has_room()
    written = bytes(source.written)
    source.write(b"too late")
    source.close()
    reader.turn()
    assert source.calls == ["opened", "closed"]
    assert reader.got == written
    assert reader.complete
    assert not reader.broken
    reader.advance(PATIENCE_MS)
    reader.leave()
    reader.turn()
    assert source.calls == ["opened", "closed"]


@pytest.mark.parametrize("call", ["opened", "room"])
def test_a_source_may_close_inside_a_call(open_reader: Open, call: str) -> None:
    source = Source()

    def write_and_close() -> None:
        source.write(b"last")
        source.close()

    source.on[call] = write_and_close
    reader = open_reader(source)
    if call == "room":
        source.write(b"x" * HIGH_WATER)
    reader.turn()
    assert source.calls == (["opened", "closed"] if call == "opened" else ["opened", "room", "closed"])
    assert reader.got == source.written
    assert reader.complete


def test_a_source_that_closes_does_not_wait_for_a_reader_that_has_stopped(open_reader: Open) -> None:
    source = Source()
    reader = open_reader(source)
    reader.stop()
    source.feed(*pieces(100))
    reader.turn()
    source.close()
    reader.turn()
    calls = list(source.calls)
    assert calls[-1] == "closed"
    reader.go_on()
    reader.turn()
    assert reader.got == source.written
    assert reader.complete
    assert source.calls == calls


def test_the_end_of_a_stream_that_is_never_read_is_given_up(open_reader: Open) -> None:
    source = Source()
    reader = open_reader(source)
    reader.stop()
    source.feed(*pieces(100))
    reader.turn()
    source.close()
    reader.turn()
    reader.advance(PATIENCE_MS)
    reader.go_on()
    reader.turn()
    assert reader.broken
    assert not reader.complete
    assert source.written.startswith(reader.got)
    assert source.calls.count("closed") == 1


@pytest.mark.parametrize("stopped", [False, True])
def test_a_reader_that_leaves_ends_the_stream(open_reader: Open, stopped: bool) -> None:
    source = Source()
    reader = open_reader(source)
    if stopped:
        reader.stop()
    source.feed(*pieces(100))
    reader.turn()
    got = reader.got
    reader.leave()
    reader.turn()
    assert ended(reader)
    source.write(b"to no reader")
    source.close()
    reader.turn()
    reader.advance(PATIENCE_MS)
    assert source.calls.count("closed") == 1
    assert reader.got == got
    if reader.is_stream:
        assert source.stream.unsent == 0


def test_a_reader_that_leaves_after_the_close_ends_the_stream_once(open_reader: Open) -> None:
    source = Source()
    reader = open_reader(source)
    reader.stop()
    source.feed(*pieces(100))
    reader.turn()
    source.close()
    reader.leave()
    reader.turn()
    assert ended(reader)
    assert source.calls.count("closed") == 1


@pytest.mark.parametrize("call", ["opened", "room", "goodbye"])
def test_a_source_that_fails_is_seen_as_incomplete(
    open_reader: Open, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(failing=call)
    with caplog.at_level(logging.ERROR):
        reader = open_reader(source)
        if call == "room":
            reader.stop()
            source.feed(*pieces(20))
            reader.turn()
            reader.go_on()
        elif call == "goodbye":
            source.write(b"before")
            reader.turn()
        reader.serving.peers.finish()
        reader.turn()
    assert "inside" in caplog.text
    assert (
        source.calls
        == {
            "opened": ["opened", "closed"],
            "room": ["opened", "room", "closed"],
            "goodbye": ["opened", "goodbye", "closed"],
        }[call]
    )
    assert ended(reader)
    assert reader.broken
    assert not reader.complete
    assert source.written.startswith(reader.got)


@pytest.mark.parametrize("kind", [MessageReader, AsgiMessageReader])
def test_a_source_that_fails_receives_no_further_message(
    kind: type[MessageReader | AsgiMessageReader], caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(failing="received")
    reader = kind(source)
    with caplog.at_level(logging.ERROR):
        reader.say("first", "second")
        reader.turn()
    assert "inside" in caplog.text
    assert source.calls == ["opened", "received", "closed"]
    assert reader.broken
    reader.end()


def test_a_source_that_fails_at_its_end_fails_alone(open_reader: Open, caplog: pytest.LogCaptureFixture) -> None:
    source = Source(failing="closed")
    reader = open_reader(source)
    source.write(b"all")
    with caplog.at_level(logging.ERROR):
        source.close()
        reader.turn()
    assert "inside" in caplog.text
    assert (reader.got, reader.complete) == (b"all", True)


@pytest.mark.parametrize("open_reader", STREAMS, indirect=True)
@pytest.mark.parametrize("stopped", [False, True])
def test_a_stream_that_is_cut_is_seen_as_incomplete(open_reader: Open, stopped: bool) -> None:
    source = Source()
    reader = open_reader(source)
    if stopped:
        reader.stop()
    source.feed(*pieces(20))
    reader.turn()
    source.cut()
    assert not source.has_room()
    assert source.calls[-1] != "closed"
    source.write(b"too late")
    reader.turn()
    assert source.calls.count("closed") == 1
    assert source.calls[-1] == "closed"
    assert source.stream.unsent == 0
    reader.go_on()
    reader.turn()
    assert reader.broken
    assert not reader.complete
    source.cut()
    reader.advance(PATIENCE_MS)
    assert source.calls.count("closed") == 1


@pytest.mark.parametrize("stopped", [False, True])
def test_a_server_that_shuts_down_lets_the_source_close(open_reader: Open, stopped: bool) -> None:
    source = Source()
    reader = open_reader(source)
    if stopped:
        reader.stop()
        source.feed(*pieces(100))
        reader.turn()
    else:
        source.write(b"before ")
    reader.serving.peers.finish()
    reader.turn()
    assert source.calls.count("goodbye") == 1
    assert source.calls[-1] == "closed"
    assert reader.complete is not stopped
    reader.advance(PATIENCE_MS)
    assert len(reader.serving.peers) == 0, "no connection is left, even if its reader has stopped"
    if not stopped:
        assert reader.got == b"before bye"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3 * HIGH_WATER)),
        st.tuples(st.just("feed"), st.integers(1, 30)),
        st.sampled_from([("stop", 0), ("go on", 0), ("turn", 0)]),
    ),
    max_size=25,
)


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=25)
@given(steps=STEPS)
def test_no_order_of_steps_loses_or_repeats_a_byte_or_a_call(name: str, steps: list[tuple[str, int]]) -> None:
    source = Source()
    reader = READERS[name](source)
    try:
        for number, (step, size) in enumerate(steps):
            if step == "write":
                source.write(bytes([97 + number]) * size, push=bool(number % 2))
            elif step == "feed":
                source.feed(*pieces(size))
            else:
                {"stop": reader.stop, "go on": reader.go_on, "turn": reader.turn}[step]()
            assert source.written.startswith(reader.got)
        reader.go_on()
        reader.turn()
        assert source.waiting == []
        assert source.has_room()
        source.close()
        reader.turn()
        assert reader.got == source.written
        assert reader.complete
        assert source.calls[0] == "opened"
        assert source.calls[-1] == "closed"
        assert source.wrong == []
    finally:
        reader.end()
