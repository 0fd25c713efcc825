"""Streams over HTTP/1: chunks, room, ends, and what stands behind them."""

import logging

import pytest

from driftq.http.answer import Sink, StreamAnswer
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.transport.h1.reply_order import LINGER_MS
from driftq.http.transport.outbox import HIGH_WATER
from tests.unit.http.sources import Voice
from tests.unit.http.wire import Peer, get

NAMED = "X-Request-Id: mine"
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: mine\r\ncache-control: no-store\r\n"
    b"connection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n"
)


class Studio:
    """Answers /stream with the voice it has, and all else at once."""

    def __init__(self, *first: bytes) -> None:
        self.voice = Voice(*first)
        self.asked: list[str] = []

    def __call__(self, request: Request) -> StreamAnswer | Reply:
        self.asked.append(request.path)
        if request.path == "/stream":
            return StreamAnswer(self.voice, headers=((b"cache-control", b"no-store"),))
        return Reply(200, request.path.encode())


def opened(*first: bytes) -> tuple[Peer, Voice]:
    studio = Studio(*first)
    peer = Peer(studio)
    peer.send(get("/stream", NAMED))
    return peer, studio.voice


def has_room(voice: Voice) -> bool:
    return voice.sink is not None and voice.sink.room


def test_the_head_leaves_at_once_and_with_what_there_is() -> None:
    peer, _ = opened()
    assert peer.transport.writes == [HEAD]
    peer, _ = opened(b"a\n", b"bc\n")
    assert peer.transport.writes == [HEAD + b"2\r\na\n\r\n3\r\nbc\n\r\n"]


def test_what_is_written_in_one_turn_leaves_in_one_write() -> None:
    peer, voice = opened()
    voice.say(b"a")
    voice.say(b"b")
    assert len(peer.transport.writes) == 1
    peer.turn()
    assert peer.transport.writes[1:] == [b"1\r\na\r\n1\r\nb\r\n"]
    voice.say(b"c" * 20_000)
    peer.turn()
    assert peer.transport.writes[2:] == [b"4e20\r\n" + b"c" * 20_000 + b"\r\n"]


def test_a_stream_that_is_closed_ends_with_the_last_chunk_and_the_connection_goes_on() -> None:
    peer, voice = opened(b"a")
    assert voice.sink is not None
    voice.sink.close()
    voice.say(b"too late")
    assert voice.heard == ["opened"]
    peer.turn()
    assert voice.heard == ["opened", "closed"]
    assert peer.received == HEAD + b"1\r\na\r\n0\r\n\r\n"
    peer.send(get("/next"))
    assert peer.received.endswith(b"/next")
    assert not peer.transport.is_closing()


def test_what_stands_behind_a_stream_is_taken_up_at_its_end() -> None:
    studio = Studio()
    peer = Peer(studio)
    peer.send(get("/before") + get("/stream", NAMED) + get("/behind") + get("/last"))
    assert studio.asked == ["/before", "/stream"]
    assert studio.voice.sink is not None
    studio.voice.sink.close()
    peer.turn()
    assert studio.asked == ["/before", "/stream", "/behind", "/last"]
    assert peer.received.endswith(b"/last")


def test_a_client_of_http_1_0_gets_bare_bytes_up_to_the_end_of_the_connection() -> None:
    studio = Studio(b"a")
    peer = Peer(studio)
    peer.send(get("/stream", "Connection: keep-alive", version="1.0"))
    assert studio.voice.sink is not None
    studio.voice.sink.close()
    peer.turn()
    head, _, body = peer.received.partition(b"\r\n\r\n")
    assert (body, b"connection: close" in head, b"chunked" in head) == (b"a", True, False)
    assert peer.transport.is_closing()


def test_head_of_a_stream_is_its_head_and_nothing_is_opened() -> None:
    studio = Studio(b"a")
    peer = Peer(studio)
    peer.send(get("/stream", NAMED, method="HEAD") + get("/next"))
    assert peer.received.startswith(HEAD + b"HTTP/1.1 200")
    assert studio.voice.heard == ["closed"]


def test_a_peer_that_goes_ends_its_stream() -> None:
    peer, voice = opened()
    peer.lose()
    assert voice.heard == ["opened", "closed"]
    voice.say(b"to nobody")
    peer.turn()
    assert peer.received == HEAD
    assert voice.sink is not None
    assert not voice.sink.room


def test_a_peer_that_hangs_up_while_nothing_is_said_is_noticed() -> None:
    peer, _ = opened()
    assert not peer.connection.eof_received()
    assert peer.transport.aborted


def test_a_stream_whose_turn_never_came_hears_that_it_is_over() -> None:
    studio = Studio()
    peer = Peer(studio)
    peer.send(get("/a"))
    peer.connection.pause_writing()
    peer.connection.data_received(get("/stream", NAMED))
    peer.lose()
    assert studio.voice.heard == []
    assert studio.asked == ["/a"]


def test_there_is_room_until_the_peer_does_not_read_and_again_when_it_does() -> None:
    peer, voice = opened()
    assert has_room(voice)
    peer.connection.pause_writing()
    assert not has_room(voice)
    peer.connection.resume_writing()
    assert has_room(voice)
    assert voice.heard == ["opened", "room"]
    peer.connection.pause_writing()
    peer.lose()
    assert voice.heard == ["opened", "room", "closed"]


def test_one_turn_has_no_room_for_more_than_the_high_water_mark() -> None:
    peer, voice = opened()
    assert peer.transport.limits is not None
    assert peer.transport.limits[0] == HIGH_WATER
    voice.say(b"x" * HIGH_WATER)
    assert not has_room(voice)
    peer.turn()
    assert has_room(voice)
    assert voice.heard == ["opened", "room"]


def test_the_end_of_a_stream_that_nobody_reads_is_not_waited_for() -> None:
    peer, voice = opened()
    peer.connection.pause_writing()
    assert voice.sink is not None
    voice.sink.close()
    peer.turn()
    assert peer.transport.is_closing()
    assert not peer.transport.aborted
    peer.runtime.advance(LINGER_MS)
    assert peer.transport.aborted


def test_a_server_that_goes_lets_streams_say_goodbye() -> None:
    peer, voice = opened()
    peer.peers.finish()
    peer.turn()
    assert peer.received == HEAD + b"3\r\nbye\r\n0\r\n\r\n"
    assert voice.heard == ["opened", "goodbye", "closed"]
    assert peer.transport.is_closing()


def test_a_source_that_fails_has_its_connection_cut(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Voice):
        def opened(self, sink: Sink) -> None:
            raise ZeroDivisionError("inside")

    studio = Studio()
    studio.voice = Broken()
    peer = Peer(studio)
    with caplog.at_level(logging.ERROR):
        peer.send(get("/stream", NAMED))
    assert peer.transport.aborted
    assert "inside" in caplog.text
