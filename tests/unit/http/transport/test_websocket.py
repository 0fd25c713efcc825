"""The WebSocket: handshake, messages, pace, ends."""

import pytest
from msgspec import json
from wsproto.connection import CLIENT
from wsproto.connection import Connection as Frames
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from driftq.http.answer import Upgrade
from driftq.http.request import Request
from driftq.http.transport.websocket import CLOSE_MS
from tests.unit.http.sources import Talk
from tests.unit.http.wire import BODY_BYTES_MAX, Peer, get

HANDSHAKE = {
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "X-Request-Id": "mine",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
ACCEPTED = (
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    b"x-request-id: mine\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)


def handshake(**changes: str | None) -> bytes:
    headers = HANDSHAKE | {name.replace("_", "-"): value for name, value in changes.items()}
    return get("/ws", *(f"{name}: {value}" for name, value in headers.items() if value is not None))


class Client:
    """The other end of a socket."""

    def __init__(self) -> None:
        self.talk = Talk()
        self.peer = Peer(lambda _: Upgrade(self.talk))
        self.frames = Frames(CLIENT)
        self._seen = len(ACCEPTED)
        self.peer.send(handshake())

    def send(self, *events: Event) -> None:
        self.peer.send(b"".join(self.frames.send(event) for event in events))

    def events(self) -> list[Event]:
        """What came since it was asked last."""
        data = self.peer.received[self._seen :]
        self._seen += len(data)
        self.frames.receive_data(data)
        return list(self.frames.events())


def has_room(client: Client) -> bool:
    return client.talk.sink is not None and client.talk.sink.room


def test_a_handshake_is_answered_and_what_came_behind_it_is_heard() -> None:
    talk = Talk()
    peer = Peer(lambda _: Upgrade(talk))
    peer.send(handshake() + Frames(CLIENT).send(TextMessage("early")))
    assert peer.received == ACCEPTED
    assert talk.heard == ["opened", "early"]


@pytest.mark.parametrize(
    "change",
    [
        {"Upgrade": None},
        {"Upgrade": "h2c"},
        {"Connection": None},
        {"Connection": "close"},
        {"Sec_WebSocket_Key": None},
        {"Sec_WebSocket_Key": "short"},
        {"Sec_WebSocket_Version": None},
        {"Sec_WebSocket_Version": "8"},
    ],
)
def test_what_is_no_handshake_is_refused_with_the_envelope(change: dict[str, str | None]) -> None:
    talk = Talk()
    peer = Peer(lambda _: Upgrade(talk))
    peer.send(handshake(**change))
    [(status, _, body)] = peer.replies()
    assert status == 400
    assert json.decode(body)["error"]["code"] == "invalid_request"
    assert talk.heard == ["closed"]


def test_text_and_binary_are_heard_whole() -> None:
    client = Client()
    client.send(
        TextMessage("é", message_finished=False),
        TextMessage("x", message_finished=False),
        TextMessage("y"),
        BytesMessage(b"\xff"),
    )
    assert client.talk.heard == ["opened", "éxy", b"\xff"]


def test_a_ping_gets_a_pong() -> None:
    client = Client()
    client.send(Ping(b"p"))
    assert client.events() == [Pong(b"p")]


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536, 200_000])
def test_a_message_is_one_text_frame(size: int) -> None:
    client = Client()
    assert client.talk.sink is not None
    client.talk.sink.send(b"x" * size)
    client.peer.turn()
    events = client.events()
    assert all(isinstance(event, TextMessage) for event in events)
    assert "".join(event.data for event in events if isinstance(event, TextMessage)) == "x" * size


def test_a_message_too_long_ends_the_socket() -> None:
    client = Client()
    client.send(TextMessage("é" * (BODY_BYTES_MAX // 2)))
    assert client.talk.heard[1:] == ["é" * (BODY_BYTES_MAX // 2)]
    client.send(TextMessage("x" * BODY_BYTES_MAX, message_finished=False), TextMessage("y", message_finished=False))
    assert client.events() == [CloseConnection(1009, reason="")]
    assert client.talk.heard[-1] == "closed"


def test_the_peer_may_end_it() -> None:
    client = Client()
    client.send(CloseConnection(1000))
    assert client.events() == [CloseConnection(1000, reason="")]
    assert client.talk.heard == ["opened", "closed"]
    assert client.peer.transport.is_closing()
    client.peer.lose()
    assert client.talk.heard == ["opened", "closed"]


def test_who_ends_it_waits_for_the_peer_to_say_so_too_but_not_for_ever() -> None:
    for answers in (True, False):
        client = Client()
        assert client.talk.sink is not None
        client.talk.sink.send(b"last")
        client.talk.sink.close(1001)
        client.talk.sink.send(b"too late")
        assert not client.talk.sink.room
        client.peer.turn()
        assert client.events() == [TextMessage("last"), CloseConnection(1001, reason="")]
        assert client.talk.heard == ["opened", "closed"]
        assert not client.peer.transport.is_closing()
        if answers:
            client.send(CloseConnection(1001))
        else:
            client.peer.runtime.advance(CLOSE_MS)
        assert client.peer.transport.is_closing()


def test_what_is_no_frame_ends_the_socket() -> None:
    for wrong, code in ((b"\xff\xff\xff", 1002), (b"\x81\x81\x00\x00\x00\x00\xff", 1007), (b"\x81\x01x", 1002)):
        client = Client()
        client.peer.send(wrong)
        [event] = client.events()
        assert isinstance(event, CloseConnection)
        assert event.code == code
        assert client.talk.heard == ["opened", "closed"]
        assert client.peer.transport.is_closing()


def test_a_source_that_does_not_listen_hears_later() -> None:
    client = Client()
    assert client.talk.sink is not None
    client.talk.sink.listen(False)
    assert not client.peer.transport.is_reading()
    client.send(TextMessage("a"), TextMessage("b"))
    assert client.talk.heard == ["opened"]
    client.talk.sink.listen(True)
    client.peer.turn()
    assert client.peer.transport.is_reading()
    assert client.talk.heard == ["opened", "a", "b"]


def test_a_peer_that_does_not_read_is_not_heard_and_there_is_no_room() -> None:
    client = Client()
    client.peer.connection.pause_writing()
    assert not has_room(client)
    assert not client.peer.transport.is_reading()
    client.peer.connection.resume_writing()
    assert has_room(client)
    assert client.peer.transport.is_reading()
    assert client.talk.heard == ["opened", "room"]


def test_a_server_that_goes_lets_sockets_say_goodbye() -> None:
    client = Client()
    client.peer.peers.finish()
    client.peer.turn()
    assert client.events() == [TextMessage("bye"), CloseConnection(1001, reason="")]
    client.peer.lose()
    assert client.talk.heard == ["opened", "closed"]


def test_a_socket_waits_for_the_replies_before_it() -> None:
    talk = Talk()

    def handle(request: Request) -> Upgrade:
        return Upgrade(talk)

    peer = Peer(handle)
    peer.send(get("/ws") + handshake())
    assert peer.received.startswith(b"HTTP/1.1 400")
    assert peer.received.endswith(ACCEPTED)
