"""How long a peer may take, and `Expect`."""

from driftq.http.answer import StreamAnswer
from driftq.http.reply import Reply
from driftq.http.transport.h1.reply_order import LINGER_MS
from driftq.http.transport.h1.request_parser import BODY_STEP
from tests.unit.http.sources import Voice
from tests.unit.http.transport.test_connection import ServerLine, refusal_of
from tests.unit.http.wire import Peer, get

HEADER_MS, BODY_MS, IDLE_MS = 400, 800, 2000


def timed(handle: object = None) -> Peer:
    terms = {"header_timeout_ms": HEADER_MS, "body_timeout_ms": BODY_MS, "keepalive_timeout_ms": IDLE_MS}
    return Peer(**terms) if handle is None else Peer(handle, **terms)  # type: ignore[arg-type]


def test_a_peer_that_says_nothing_is_let_go() -> None:
    peer = timed()
    peer.runtime.advance(HEADER_MS - 1)
    assert not peer.transport.is_closing()
    peer.runtime.advance(1)
    assert peer.transport.is_closing()
    assert not peer.received


def test_who_comes_when_there_are_enough_is_told_so_and_let_go() -> None:
    serving = timed().serving
    peer = Peer(connections_max=1)
    assert len(serving.peers) == 1
    first = peer.transport
    second = peer.another()
    assert not first.is_closing()
    assert second.writes[0].startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b'"limit":"max_connections"' in second.writes[0]
    assert second.ended
    assert len(peer.peers) == 1


def test_a_head_that_takes_too_long_is_408() -> None:
    peer = timed()
    peer.send(b"GET /a HT")
    peer.runtime.advance(HEADER_MS - 1)
    assert not peer.received
    peer.runtime.advance(HEADER_MS // 2)
    assert refusal_of(peer) == (408, "invalid_request")
    peer.runtime.advance(LINGER_MS)
    assert peer.transport.is_closing()


def test_a_body_that_takes_too_long_is_408_however_it_trickles() -> None:
    peer = timed()
    peer.send(get("/a", "Content-Length: 100", method="POST"))
    for _ in range(8):
        peer.send(b"x")
        peer.runtime.advance(BODY_MS // 8)
    assert not peer.received
    peer.runtime.advance(BODY_MS // 2)
    assert refusal_of(peer) == (408, "invalid_request")


def test_a_large_body_may_take_longer_as_long_as_it_gets_on() -> None:
    size = 10 * BODY_STEP
    peer = Peer(lambda request: Reply(200), body_timeout_ms=BODY_MS, body_bytes_max=size)
    peer.send(get("/a", f"Content-Length: {size}", method="POST"))
    for _ in range(10):
        peer.runtime.advance(BODY_MS // 2)
        assert not peer.received
        peer.send(b"x" * BODY_STEP)
    assert peer.replies()[0][0] == 200


def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    peer = timed()
    for _ in range(10):
        peer.send(get())
        peer.runtime.advance(IDLE_MS // 2)
    assert len(peer.replies()) == 10
    assert not peer.transport.is_closing()
    peer.runtime.advance(IDLE_MS)
    assert peer.transport.is_closing()
    assert len(peer.replies()) == 10


def test_who_waits_for_an_answer_or_reads_a_stream_may_wait() -> None:
    waiting = timed(ServerLine())
    reading = timed(lambda _: StreamAnswer(Voice()))
    for peer in (waiting, reading):
        peer.send(get())
        peer.runtime.advance(10 * IDLE_MS)
        assert not peer.transport.is_closing()


def test_who_does_not_read_its_replies_is_cut_off_and_a_slow_reader_is_not() -> None:
    peer = timed(lambda _: Reply(200, b"x" * 100))
    peer.send(get())
    peer.connection.pause_writing()
    for unsent in range(1000, 900, -10):
        peer.transport.unsent = unsent
        peer.runtime.advance(IDLE_MS // 2)
    assert not peer.transport.aborted
    peer.runtime.advance(IDLE_MS)
    assert peer.transport.aborted


def test_a_last_reply_that_nobody_takes_is_not_waited_for() -> None:
    peer = timed()
    peer.send(get("/a", "Connection: close"))
    assert not peer.transport.aborted
    peer.runtime.advance(LINGER_MS)
    assert peer.transport.aborted


# --- Expect -------------------------------------------------------------------------------------------------------


def test_who_expects_to_be_told_to_go_on_is_told_in_turn() -> None:
    server_line = ServerLine()
    peer = Peer(server_line)
    peer.send(get("/first"))
    peer.send(get("/a", "Content-Length: 3", "Expect: 100-continue", method="POST"))
    assert not peer.received
    server_line.answer(0)
    assert peer.received.endswith(b"/firstHTTP/1.1 100 Continue\r\n\r\n")
    peer.send(b"xyz")
    server_line.answer(1)
    assert peer.received.endswith(b"/a")


def test_who_would_send_too_much_is_not_told_to_go_on() -> None:
    peer = Peer(lambda request: Reply(413 if request.oversized else 200))
    peer.send(get("/a", "Content-Length: 100000", "Expect: 100-continue", method="POST"))
    assert peer.received.startswith(b"HTTP/1.1 413")
