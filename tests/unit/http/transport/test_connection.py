"""One connection: order, keep-alive, limits, and what becomes of bytes that are no request."""

import asyncio

import pytest
from msgspec import json

from driftq.errors import ThrottledError
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.transport.h1.reply_order import LINGER_MS, PIPELINE_MAX
from driftq.http.transport.h1.request_parser import HEADER_BYTES_MAX, HEADERS_MAX, TARGET_BYTES_MAX
from driftq.http.v0.errors import refusal
from driftq.system.runtime import Pending
from tests.unit.http.wire import BODY_BYTES_MAX, Peer, get


class ServerLine:
    """Takes requests now and answers later."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Request, Pending[Reply]]] = []

    def __call__(self, request: Request) -> Pending[Reply]:
        pending: Pending[Reply] = Pending()
        self.waiting.append((request, pending))
        return pending

    def answer(self, number: int) -> None:
        request, pending = self.waiting[number]
        pending.resolve(Reply(200, request.path.encode()))


def bodies(peer: Peer) -> list[bytes]:
    return [body for _, _, body in peer.replies()]


def refusal_of(peer: Peer) -> tuple[int, str]:
    """Status and code of the last reply, which is an envelope and ends the connection."""
    status, headers, body = peer.replies()[-1]
    assert headers[b"connection"] == b"close"
    assert headers[b"content-type"] == b"application/json"
    envelope = json.decode(body, type=dict[str, dict[str, object]])
    assert list(envelope) == ["error"]
    assert envelope["error"]["message"]
    return status, str(envelope["error"]["code"])


# --- order --------------------------------------------------------------------------------------------------------


def test_head_and_body_leave_in_one_write() -> None:
    peer = Peer()
    peer.send(get("/a?b=c", "X-Request-Id: mine"))
    assert peer.transport.writes == [
        b"HTTP/1.1 200 OK\r\nx-request-id: mine\r\ncontent-type: text/plain\r\ncontent-length: 11\r\n\r\nGET /a b=c "
    ]
    assert not peer.transport.is_closing()


def test_requests_that_come_together_are_answered_together_and_in_order() -> None:
    peer = Peer()
    peer.send(get("/a") + get("/b") + get("/c"))
    assert bodies(peer) == [b"GET /a  ", b"GET /b  ", b"GET /c  "]
    assert len(peer.transport.writes) == 1


def test_a_request_may_come_byte_by_byte() -> None:
    peer = Peer()
    request = get("/a", "Content-Length: 3", method="POST") + b"xyz"
    for place in range(len(request)):
        assert not peer.received
        peer.send(request[place : place + 1])
    assert bodies(peer) == [b"POST /a  xyz"]


def test_a_reply_waits_for_those_before_it() -> None:
    server_line = ServerLine()
    peer = Peer(server_line)
    peer.send(get("/a") + get("/b") + get("/c"))
    server_line.answer(2)
    server_line.answer(1)
    assert not peer.received
    server_line.answer(0)
    assert bodies(peer) == [b"/a", b"/b", b"/c"]
    assert len(peer.transport.writes) == 1


def test_an_answer_that_fails_is_an_envelope_and_the_connection_goes_on() -> None:
    server_line = ServerLine()
    peer = Peer(server_line)
    peer.send(get("/a") + get("/b") + get("/c"))
    server_line.waiting[0][1].fail(ThrottledError("later", retry_after_ms=1500))
    server_line.waiting[1][1].fail(ValueError("a bug"))
    server_line.answer(2)
    (first, headers, _), (second, _, body), (third, _, _) = peer.replies()
    assert (first, headers[b"retry-after"], second, third) == (429, b"2", 500, 200)
    assert b"a bug" not in body
    assert not peer.transport.is_closing()


def test_who_asks_faster_than_the_server_answers_is_not_read_from() -> None:
    server_line = ServerLine()
    peer = Peer(server_line)
    peer.send(get() * (PIPELINE_MAX - 1))
    assert peer.transport.is_reading()
    peer.send(get())
    assert not peer.transport.is_reading()
    server_line.answer(0)
    assert peer.transport.is_reading()


def test_no_more_than_so_many_requests_of_a_peer_are_under_way_however_they_come() -> None:
    server_line = ServerLine()
    peer = Peer(server_line)
    peer.send(get("/a") * (2 * PIPELINE_MAX))
    assert len(server_line.waiting) == PIPELINE_MAX
    server_line.answer(0)
    assert len(server_line.waiting) == PIPELINE_MAX + 1
    for number in range(1, 2 * PIPELINE_MAX):
        server_line.answer(number)
    assert len(bodies(peer)) == 2 * PIPELINE_MAX


def test_many_requests_at_once_leave_others_a_turn() -> None:
    peer = Peer()
    peer.send(get("/first"))
    peer.connection.data_received(get("/a") * (3 * PIPELINE_MAX))
    between = len(peer.transport.writes)
    peer.turn()
    assert 1 < between < len(peer.transport.writes)
    assert len(bodies(peer)) == 1 + 3 * PIPELINE_MAX


def test_who_does_not_read_is_not_read_from() -> None:
    peer = Peer()
    peer.send(get())
    peer.connection.pause_writing()
    assert not peer.transport.is_reading()
    peer.connection.resume_writing()
    assert peer.transport.is_reading()


# --- life ---------------------------------------------------------------------------------------------------------


def test_connection_close_is_the_last_request() -> None:
    peer = Peer()
    peer.send(get("/a", "Connection: close") + get("/b"))
    [(status, headers, body)] = peer.replies()
    assert (status, headers[b"connection"], body) == (200, b"close", b"GET /a  ")
    assert peer.transport.is_closing()


def test_http_1_0_ends_unless_it_asks_to_stay() -> None:
    peer = Peer()
    peer.send(get("/a", "Connection: keep-alive", version="1.0"))
    assert not peer.transport.is_closing()
    peer.send(get("/b", version="1.0"))
    assert peer.transport.is_closing()
    assert [headers[b"connection"] for _, headers, _ in peer.replies()] == [b"keep-alive", b"close"]


def test_head_has_the_head_of_get_and_no_body() -> None:
    peer = Peer()
    peer.send(get(method="HEAD"))
    assert peer.received.endswith(b"content-length: 9\r\n\r\n")


def test_an_upgrade_is_not_taken_and_the_connection_goes_on() -> None:
    peer = Peer()
    peer.send(get("/a", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: x") + get("/b"))
    peer.send(get("/c"))
    assert bodies(peer) == [b"GET /a  ", b"GET /b  ", b"GET /c  "]


def test_the_form_of_a_target_that_proxies_use_is_understood() -> None:
    peer = Peer()
    peer.send(get("http://here:4000/a/b?c=d") + get("HTTP://here"))
    assert bodies(peer) == [b"GET /a/b c=d ", b"GET /  "]


def test_a_peer_that_sends_no_more_still_gets_what_it_asked_for() -> None:
    server_line = ServerLine()
    peer = Peer(server_line)
    peer.send(get())
    assert peer.connection.eof_received()
    assert not peer.transport.is_closing()
    server_line.answer(0)
    assert peer.replies()[0][1][b"connection"] == b"close"
    assert peer.transport.is_closing()


def test_a_peer_that_asked_for_nothing_may_go() -> None:
    assert not Peer().connection.eof_received()


def test_an_answer_for_a_peer_that_is_gone_goes_nowhere() -> None:
    server_line = ServerLine()
    peer = Peer(server_line)
    peer.send(get())
    peer.connection.connection_lost(None)
    server_line.answer(0)
    assert not peer.received


def test_a_server_that_goes_lets_an_idle_peer_go_and_a_waiting_one_have_its_reply() -> None:
    server_line = ServerLine()
    idle, waiting = Peer(server_line), Peer(server_line)
    waiting.send(get())
    for peer in (idle, waiting):
        peer.peers.finish()
    assert idle.transport.is_closing()
    assert not waiting.transport.is_closing()
    waiting.send(get("/too-late"))
    server_line.answer(0)
    assert bodies(waiting) == [b"/a"]
    assert waiting.transport.is_closing()


def test_peers_are_waited_for_and_can_be_cut_off() -> None:
    peer = Peer(ServerLine())
    peer.send(get())
    peer.peers.abort()
    assert peer.transport.aborted
    peer.connection.connection_lost(None)
    asyncio.run(asyncio.wait_for(peer.peers.wait_empty(), 1))


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"nonsense\r\n\r\n",
        b"GET /a HTTP/3.7\r\n\r\n",
        b"GET /a HTTP/1.1\r\nno colon here\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        get("/a", "Content-Length: 3", "Transfer-Encoding: chunked", method="POST"),
        get("/a", "Content-Length: 3", "Content-Length: 4", method="POST"),
        get("/a", "Content-Length: -1", method="POST"),
        get("/a", "Transfer-Encoding: chunked", method="POST") + b"zz\r\n",
    ],
)
def test_what_is_not_http_gets_an_envelope_in_its_turn_and_is_the_last(wrong: bytes) -> None:
    peer = Peer()
    peer.send(get("/before"))
    peer.send(wrong + get("/behind"))
    assert refusal_of(peer) == (400, "invalid_request")
    assert [status for status, _, _ in peer.replies()] == [200, 400]


def test_a_refused_peer_may_finish_sending_for_a_while() -> None:
    """Closing a socket with unread bytes in it resets it, and the peer never sees why it was refused."""
    peer = Peer()
    peer.send(b"nonsense\r\n\r\n")
    assert peer.transport.ended
    assert not peer.transport.is_closing()
    peer.send(get() * 10)
    assert len(peer.replies()) == 1
    peer.runtime.advance(LINGER_MS)
    assert peer.transport.is_closing()


def test_a_refused_peer_that_hangs_up_is_not_waited_for() -> None:
    peer = Peer()
    peer.send(b"nonsense\r\n\r\n")
    assert not peer.connection.eof_received()
    peer.connection.connection_lost(None)
    peer.runtime.advance(LINGER_MS)
    assert not peer.transport.is_closing()


def test_a_long_target_passes_and_one_too_long_is_414() -> None:
    peer = Peer()
    peer.send(get("/" + "a" * (60 << 10)))
    assert peer.replies()[0][0] == 200
    peer.send(get("/" + "a" * TARGET_BYTES_MAX))
    assert refusal_of(peer) == (414, "invalid_request")


def test_headers_too_many_or_too_long_are_431() -> None:
    peer = Peer()
    peer.send(get("/a", *(f"x-{number}: 1" for number in range(HEADERS_MAX - 1))))
    assert peer.replies()[0][0] == 200
    peer.send(get("/a", *(f"x-{number}: 1" for number in range(HEADERS_MAX))))
    assert refusal_of(peer) == (431, "invalid_request")
    peer = Peer()
    peer.send(get("/a", f"x: {'a' * HEADER_BYTES_MAX}"))
    assert refusal_of(peer) == (431, "invalid_request")


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nx: ", b""])
def test_a_head_without_an_end_is_431_however_slowly_it_comes(start: bytes) -> None:
    peer = Peer()
    peer.send(start)
    for _ in range(40):
        peer.send((b"a" if start else b"\r\n") * 4096)
    assert refusal_of(peer) == (431, "invalid_request")


def test_trailers_count_as_headers() -> None:
    peer = Peer()
    peer.send(get("/a", "Transfer-Encoding: chunked", method="POST") + b"1\r\nx\r\n0\r\n")
    for number in range(20):
        peer.send(b"t-%d: %b\r\n" % (number, b"a" * 4096))
    assert refusal_of(peer) == (431, "invalid_request")


def sized(request: Request) -> Reply:
    """An app that wants the body only of what is not below /absent."""
    if request.path == "/absent":
        return refusal("not_found", "no")
    return refusal("payload_too_large", "yes") if request.oversized else Reply(200, request.body)


def test_a_body_too_long_is_told_to_the_app_before_it_is_read_and_is_the_last() -> None:
    for path, refused in (("/a", (413, "payload_too_large")), ("/absent", (404, "not_found"))):
        peer = Peer(sized)
        peer.send(get("/a", f"Content-Length: {BODY_BYTES_MAX}", method="POST") + b"x" * BODY_BYTES_MAX)
        assert peer.replies()[0][0] == 200
        peer.send(get(path, f"Content-Length: {BODY_BYTES_MAX + 1}", method="POST"))
        assert refusal_of(peer) == refused
        peer.send(b"x" * (BODY_BYTES_MAX + 1) + get())
        assert len(peer.replies()) == 2
        peer.runtime.advance(LINGER_MS)
        assert peer.transport.is_closing()


def test_a_chunked_body_too_long_is_told_to_the_app() -> None:
    peer = Peer(sized)
    chunk = b"1f4\r\n" + b"x" * 500 + b"\r\n"
    peer.send(get("/a", "Transfer-Encoding: chunked", method="POST") + 2 * chunk + b"0\r\n\r\n")
    assert bodies(peer) == [b"x" * 1000]
    peer.send(get("/a", "Transfer-Encoding: chunked", method="POST") + 3 * chunk + b"0\r\n\r\n")
    assert refusal_of(peer) == (413, "payload_too_large")
