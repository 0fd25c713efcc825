"""HTTP/2 by prior knowledge: the same answers, flow control both ways, and peers that make trouble. inv: 76"""

import gzip
from collections.abc import Callable

import pytest
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from msgspec import json

from driftq.http.answer import Answer, StreamAnswer, Upgrade
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.transport.connection import PREFACE
from driftq.http.transport.h1.reply_order import LINGER_MS
from driftq.http.transport.h1.request_parser import HEADERS_MAX, TARGET_BYTES_MAX
from driftq.http.transport.h2.h2_connection import PING_MS, TROUBLE_MAX
from driftq.http.transport.h2.h2_heads import CONNECTION_WINDOW, EXCHANGE_WINDOW, EXCHANGES_MAX
from driftq.http.transport.outbox import HIGH_WATER
from tests.unit.http.sources import Talk, Voice
from tests.unit.http.transport.test_connection import ServerLine
from tests.unit.http.wire import BODY_BYTES_MAX, Peer, echo


class Client:
    """The other end of one connection."""

    def __init__(self, handle: Callable[[Request], Answer] = echo, *, window: int | None = None, **terms: int) -> None:
        self.peer = Peer(handle, **terms)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.heads: dict[int, dict[bytes, bytes]] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.goaway: int | None = None
        self.window = window
        self._seen = 0
        self.h2.initiate_connection()
        if window is not None:
            self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.flush()

    def flush(self) -> None:
        """Send what there is, and read what comes."""
        for _ in range(100):
            data = self.h2.data_to_send()
            if data:
                self.peer.send(data)
            self.peer.turn()
            got = self.peer.received[self._seen :]
            self._seen += len(got)
            if not got and not data:
                return
            for event in self.h2.receive_data(got):
                self._take(event)
        raise AssertionError("it does not come to rest")

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.ResponseReceived):
            self.heads[event.stream_id] = dict(event.headers)
            self.bodies.setdefault(event.stream_id, b"")
        elif isinstance(event, events.DataReceived):
            self.bodies[event.stream_id] += event.data
            if self.window is None:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, events.StreamEnded):
            self.ended.add(event.stream_id)
        elif isinstance(event, events.StreamReset):
            self.resets[event.stream_id] = int(event.error_code)
        elif isinstance(event, events.ConnectionTerminated):
            self.goaway = int(event.error_code or 0)

    def open(self, path: str = "/a", *headers: tuple[str, str], method: str = "GET", end: bool = True) -> int:
        number = self.h2.get_next_available_stream_id()
        head = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "here")]
        self.h2.send_headers(number, [*head, *headers], end_stream=end)
        return number

    def ask(self, path: str = "/a", *headers: tuple[str, str], body: bytes | None = None, method: str = "GET") -> int:
        number = self.open(path, *headers, method=method if body is None else "POST", end=body is None)
        rest = body or b""
        while rest:
            self.flush()
            size = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size, len(rest))
            self.h2.send_data(number, rest[:size], end_stream=size == len(rest))
            rest = rest[size:]
        if body == b"":
            self.h2.end_stream(number)
        self.flush()
        return number

    def answer(self, number: int) -> tuple[int, bytes]:
        return int(self.heads[number][b":status"]), self.bodies[number]

    def code(self, number: int) -> tuple[int, str]:
        status, body = self.answer(number)
        return status, json.decode(body)["error"]["code"]


def test_a_request_is_answered_with_what_http_1_gets() -> None:
    client = Client()
    number = client.ask("/a?b=c", body=b"xyz")
    assert client.answer(number) == (200, b"POST /a b=c xyz")
    assert len(client.heads[number].pop(b"x-request-id")) == 24
    assert client.heads[number] == {b":status": b"200", b"content-type": b"text/plain", b"content-length": b"15"}
    assert number in client.ended
    assert client.resets == {}


def test_the_preface_may_come_byte_by_byte() -> None:
    client = Client()
    peer = Peer()
    assert client.h2 is not None
    for byte in PREFACE:
        assert not peer.received
        peer.send(bytes([byte]))
    assert peer.received


def test_what_only_begins_like_the_preface_is_http_1() -> None:
    peer = Peer()
    for part in (b"P", b"R", b"OPFIND /a HTTP/1.1\r\nHost: h\r\n\r\n"):
        peer.send(part)
    assert peer.replies()[0][0] == 200


def test_windows_and_limits_are_announced() -> None:
    client = Client()
    settings = client.h2.remote_settings
    assert settings.max_concurrent_streams == EXCHANGES_MAX
    assert settings.initial_window_size == EXCHANGE_WINDOW
    number = client.open(end=False)
    assert client.h2.local_flow_control_window(number) == EXCHANGE_WINDOW
    assert client.h2.outbound_flow_control_window == CONNECTION_WINDOW


def test_exchanges_do_not_wait_for_each_other() -> None:
    server_line = ServerLine()
    client = Client(server_line)
    numbers = [client.open(f"/{place}") for place in range(3)]
    client.flush()
    server_line.answer(2)
    server_line.answer(0)
    client.flush()
    assert [number in client.ended for number in numbers] == [True, False, True]
    server_line.answer(1)
    client.flush()
    assert [client.answer(number)[1] for number in numbers] == [b"/0", b"/1", b"/2"]


def test_head_has_no_body_and_an_empty_reply_is_one() -> None:
    client = Client(lambda _: Reply(200, b"abc"))
    number = client.ask(method="HEAD")
    assert client.answer(number) == (200, b"")
    assert client.heads[number][b"content-length"] == b"3"
    client = Client(lambda _: Reply(200))
    assert client.answer(client.ask()) == (200, b"")


def test_a_body_larger_than_the_windows_comes_whole() -> None:
    body = b"x" * (2 * CONNECTION_WINDOW)
    client = Client(lambda request: Reply(200, b"%d" % len(request.body)), body_bytes_max=len(body))
    assert client.answer(client.ask(body=body)) == (200, b"%d" % len(body))


def test_a_reply_larger_than_the_windows_goes_whole_and_others_are_not_held_up() -> None:
    large = [b"%d," % number * 1000 for number in range(500)]
    client = Client(lambda request: Reply(200, b"[", more=large) if request.path == "/large" else Reply(200, b"small"))
    first, second = client.open("/large"), client.open("/small")
    client.flush()
    assert client.answer(first)[1] == b"[" + b"".join(large)
    assert client.answer(second)[1] == b"small"


def test_a_peer_without_window_gets_the_rest_when_it_has_some() -> None:
    client = Client(lambda _: Reply(200, b"x" * 3000), window=1000)
    first = client.ask()
    assert (len(client.bodies[first]), first in client.ended) == (1000, False)
    second = client.ask()
    assert len(client.bodies[second]) == 1000
    client.h2.increment_flow_control_window(5000, first)
    client.flush()
    assert (len(client.bodies[first]), first in client.ended) == (3000, True)
    assert second not in client.ended


def test_a_packed_body_and_a_packed_reply() -> None:
    client = Client(lambda request: Reply(200, request.body))
    plain = b"word" * 200
    number = client.ask("/a", ("content-encoding", "gzip"), ("accept-encoding", "gzip"), body=gzip.compress(plain))
    assert client.answer(number) == (200, plain)
    client = Client(lambda request: Reply(200, b"word" * 1000))
    number = client.ask("/a", ("accept-encoding", "gzip"))
    assert gzip.decompress(client.bodies[number]) == b"word" * 1000


def test_a_body_too_long_is_told_to_the_app_and_its_rest_is_not_wanted() -> None:
    client = Client(lambda request: Reply(413 if request.oversized else 200))
    for headers in ([("content-length", str(2 * BODY_BYTES_MAX))], []):
        number = client.open("/a", *headers, method="POST", end=False)
        client.h2.send_data(number, b"x" * (BODY_BYTES_MAX + 1))
        client.flush()
        assert client.answer(number)[0] == 413
        assert client.resets[number] == ErrorCodes.NO_ERROR
    assert client.answer(client.ask())[0] == 200


def test_who_sends_many_bodies_at_one_time_is_asked_to_do_it_one_by_one() -> None:
    client = Client()
    numbers = [client.open(method="POST", end=False) for _ in range(3)]
    for number in numbers:
        client.h2.send_data(number, b"x" * BODY_BYTES_MAX)
    client.flush()
    assert client.resets == {numbers[2]: ErrorCodes.REFUSED_STREAM}
    client.h2.end_stream(numbers[0])
    client.flush()
    assert client.answer(numbers[0])[0] == 200


def test_long_targets_pass_and_heads_too_large_are_refused() -> None:
    client = Client(lambda request: Reply(200, b"%d" % len(request.path)))
    assert client.answer(client.ask("/" + "a" * (60 << 10)))[1] == b"%d" % (1 + (60 << 10))
    assert client.code(client.ask("/" + "a" * TARGET_BYTES_MAX)) == (414, "invalid_request")
    many = [(f"x-{number}", "1") for number in range(HEADERS_MAX + 1)]
    assert client.code(client.ask("/a", *many)) == (431, "invalid_request")


def test_trailers_are_tolerated() -> None:
    client = Client()
    number = client.open(method="POST", end=False)
    client.h2.send_data(number, b"body")
    client.h2.send_headers(number, [("x-trailer", "1")], end_stream=True)
    client.flush()
    assert client.answer(number) == (200, b"POST /a  body")


def test_who_expects_to_be_told_to_go_on_is_told() -> None:
    client = Client()
    number = client.open("/a", ("expect", "100-continue"), method="POST", end=False)
    client.flush()
    client.h2.send_data(number, b"body", end_stream=True)
    client.flush()
    assert client.answer(number) == (200, b"POST /a  body")


def test_a_websocket_is_refused() -> None:
    talk = Talk()
    client = Client(lambda _: Upgrade(talk))
    assert client.code(client.ask()) == (400, "invalid_request")
    assert talk.heard == ["closed"]


# --- streams ------------------------------------------------------------------------------------------------------


def streaming(*first: bytes, window: int | None = None) -> tuple[Client, Voice, int]:
    voice = Voice(*first)
    client = Client(lambda _: StreamAnswer(voice, headers=((b"cache-control", b"no-store"),)), window=window)
    return client, voice, client.ask()


def has_room(voice: Voice) -> bool:
    return voice.sink is not None and voice.sink.room


def test_a_stream_is_sent_as_it_is_written_and_ends_when_it_is_closed() -> None:
    client, voice, number = streaming(b"a")
    assert client.heads[number][b"cache-control"] == b"no-store"
    assert client.bodies[number] == b"a"
    voice.say(b"b")
    voice.say(b"c")
    writes = len(client.peer.transport.writes)
    client.peer.turn()
    assert len(client.peer.transport.writes) == writes + 1
    client.flush()
    assert client.bodies[number] == b"abc"
    assert voice.sink is not None
    voice.say(b"d")
    voice.sink.close()
    voice.say(b"too late")
    client.flush()
    assert client.bodies[number] == b"abcd"
    assert number in client.ended
    assert voice.heard == ["opened", "closed"]
    client.peer.runtime.advance(LINGER_MS)
    assert client.resets == {}


def test_a_stream_has_no_room_beyond_the_window_and_the_high_water_mark() -> None:
    client, voice, number = streaming(window=1000)
    voice.say(b"x" * 1000)
    client.flush()
    assert has_room(voice)
    voice.say(b"x" * HIGH_WATER)
    client.flush()
    assert not has_room(voice)
    assert voice.sink is not None
    assert voice.sink.unsent == HIGH_WATER
    assert len(client.bodies[number]) == 1000
    client.h2.increment_flow_control_window(500, number)
    client.flush()
    assert voice.heard == ["opened", "room"]
    assert len(client.bodies[number]) == 1500


def test_a_stream_has_no_room_while_the_peer_does_not_read() -> None:
    client, voice, _ = streaming()
    client.peer.connection.pause_writing()
    assert not has_room(voice)
    assert not client.peer.transport.is_reading()
    client.peer.connection.resume_writing()
    assert has_room(voice)
    assert client.peer.transport.is_reading()
    assert voice.heard == ["opened", "room"]


def test_a_stream_that_is_reset_or_whose_connection_goes_is_closed() -> None:
    client, voice, number = streaming()
    client.h2.reset_stream(number, ErrorCodes.CANCEL)
    client.flush()
    assert voice.heard == ["opened", "closed"]
    client, voice, _ = streaming()
    client.peer.lose()
    assert voice.heard == ["opened", "closed"]
    voice.say(b"to nobody")
    client.peer.turn()


def test_the_end_of_a_stream_that_nobody_reads_is_not_waited_for() -> None:
    client, voice, number = streaming(b"x" * 2000, window=1000)
    assert voice.sink is not None
    voice.sink.close()
    client.flush()
    assert voice.heard == ["opened", "closed"]
    client.peer.runtime.advance(LINGER_MS)
    client.flush()
    assert client.resets == {number: ErrorCodes.CANCEL}


def test_head_of_a_stream_is_its_head() -> None:
    voice = Voice(b"a")
    client = Client(lambda _: StreamAnswer(voice))
    number = client.ask(method="HEAD")
    assert (client.answer(number), number in client.ended) == ((200, b""), True)
    assert voice.heard == ["closed"]


def test_a_source_that_fails_ends_its_stream_only() -> None:
    client, voice, number = streaming()
    voice.room = None  # type: ignore[assignment, method-assign]
    client.peer.connection.pause_writing()
    client.peer.connection.resume_writing()
    client.flush()
    assert client.resets == {number: ErrorCodes.INTERNAL_ERROR}
    assert not client.peer.transport.is_closing()


# --- life ---------------------------------------------------------------------------------------------------------


def test_a_server_that_goes_says_so_answers_what_was_asked_and_takes_no_more() -> None:
    server_line, voice = ServerLine(), Voice()
    client = Client(lambda request: StreamAnswer(voice) if request.path == "/stream" else server_line(request))
    waiting, reading = client.open("/wait"), client.open("/stream")
    client.flush()
    client.peer.peers.finish()
    late = client.open("/late")
    client.peer.send(client.h2.data_to_send())
    assert not client.peer.transport.is_closing()
    server_line.answer(0)
    client.peer.turn()
    assert client.peer.transport.is_closing()
    assert voice.heard == ["opened", "goodbye", "closed"]
    assert [request.path for request, _ in server_line.waiting] == ["/wait"]
    frames = client.peer.received
    assert b"/wait" in frames
    assert b"bye" in frames
    assert (waiting, reading, late) == (1, 3, 5)


def test_an_idle_server_that_goes_closes_at_once() -> None:
    client = Client()
    client.peer.peers.finish()
    assert client.peer.transport.is_closing()


def test_a_peer_that_does_not_answer_pings_is_gone() -> None:
    terms = {"keepalive_timeout_ms": 10 * PING_MS, "body_timeout_ms": 10 * PING_MS}
    for answers in (True, False):
        client = Client(ServerLine(), **terms)
        client.ask()
        for _ in range(4):
            client.peer.runtime.advance(PING_MS)
            if answers:
                client.flush()
        assert client.peer.transport.aborted is not answers


def test_an_idle_connection_is_closed() -> None:
    client = Client(keepalive_timeout_ms=1000)
    client.ask()
    client.peer.runtime.advance(1500)
    client.flush()
    assert client.peer.transport.is_closing()
    assert client.goaway == ErrorCodes.NO_ERROR


def test_a_body_that_takes_too_long_is_408() -> None:
    client = Client(body_timeout_ms=1000)
    number = client.open(method="POST", end=False)
    client.flush()
    client.peer.runtime.advance(2000)
    client.flush()
    assert client.code(number) == (408, "invalid_request")


def test_an_answer_for_an_exchange_that_is_gone_goes_nowhere() -> None:
    server_line = ServerLine()
    client = Client(server_line)
    number = client.ask()
    client.h2.reset_stream(number)
    client.flush()
    server_line.answer(0)
    client.flush()
    assert number not in client.heads


# --- trouble ------------------------------------------------------------------------------------------------------


def pings(client: Client) -> None:
    for _ in range(TROUBLE_MAX + 1):
        client.h2.ping(b"12345678")


def settings(client: Client) -> None:
    for _ in range(TROUBLE_MAX + 1):
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 70_000})


def rapid_resets(client: Client) -> None:
    for _ in range(TROUBLE_MAX + 1):
        client.h2.reset_stream(client.open())


def empty_data(client: Client) -> None:
    number = client.open(method="POST", end=False)
    for _ in range(TROUBLE_MAX + 1):
        client.h2.send_data(number, b"")


@pytest.mark.parametrize("trouble", [pings, settings, rapid_resets, empty_data])
def test_who_makes_trouble_is_told_to_calm_down(trouble: Callable[[Client], None]) -> None:
    client = Client(ServerLine())
    trouble(client)
    client.peer.send(client.h2.data_to_send())
    for event in client.h2.receive_data(client.peer.received[client._seen :]):
        client._take(event)
    assert client.goaway == ErrorCodes.ENHANCE_YOUR_CALM
    assert client.peer.transport.is_closing()


def test_a_busy_peer_is_no_trouble() -> None:
    client = Client()
    for _ in range(TROUBLE_MAX + 100):
        client.h2.ping(b"12345678")
        client.ask()
    assert not client.peer.transport.is_closing()


@pytest.mark.parametrize(
    "garbage", [b"\x00" * 100, b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x08\x06\x00\x00\x00\x00\x01" * 3]
)
def test_what_is_no_frame_ends_the_connection(garbage: bytes) -> None:
    peer = Peer()
    peer.send(PREFACE + garbage * 1000)
    assert peer.transport.is_closing()
    peer.send(garbage)
