"""Heads that are read again are not parsed again, and mean what the parser said they mean."""

from collections.abc import Iterator

import pytest

from driftq.http.answer import Answer
from driftq.http.keys import digest_of
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.transport.head_cache import HEAD_KEPT_MAX, HEADS_KEPT_MAX
from driftq.testing import ServerRig
from tests.unit.http.wire import Peer, get


def post(path: str, body: bytes, *headers: str) -> bytes:
    return get(path, f"Content-Length: {len(body)}", *headers, method="POST") + body


class Heard:
    """Keeps what was asked."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> Answer:
        self.requests.append(request)
        return Reply(200)

    def told(self) -> list[tuple[str, str, str, list[tuple[bytes, bytes]], bytes]]:
        return [(one.method, one.path, one.query, one.headers, one.body) for one in self.requests]


def kept(peer: Peer) -> list[bytes]:
    return list(peer.serving.heads.known)


def test_a_head_seen_before_gives_the_same_request_with_its_own_body() -> None:
    heard = Heard()
    peer = Peer(heard)
    for body in (b"one", b"two", b"six"):
        peer.send(post("/a?x=1", body, "X-A: b", "X-A: c"))
    assert len(kept(peer)) == 1
    first, second, third = heard.told()
    assert [told[-1] for told in (first, second, third)] == [b"one", b"two", b"six"]
    assert first[:-1] == second[:-1] == third[:-1]
    assert [request.header(b"x-a") for request in heard.requests] == [b"b"] * 3
    assert heard.requests[1] is not heard.requests[2]


@pytest.mark.parametrize(
    "other",
    [
        post("/a", b"one", "X-A: c"),
        post("/a", b"longer", "X-A: b"),
        post("/a", b"", "X-A: b"),
        post("/ab", b"one", "X-A: b"),
        post("/a?b", b"one", "X-A: b"),
        get("/a", "Content-Length: 3", "X-A: b", method="PUT") + b"one",
        post("/a", b"one", "x-a: b"),
        post("/a", b"one", "X-A: b", "X-A: b"),
        get("/a", "X-A: b", "Transfer-Encoding: chunked", method="POST") + b"3\r\none\r\n0\r\n\r\n",
    ],
)
def test_a_head_that_differs_in_anything_is_parsed(other: bytes) -> None:
    known = post("/a", b"one", "X-A: b")
    heard, fresh = Heard(), Heard()
    peer = Peer(heard)
    for data in (known, known, other, known, other):
        peer.send(data)
    Peer(fresh).send(other)
    assert heard.told()[2] == heard.told()[4] == fresh.told()[0]
    assert heard.told()[0] == heard.told()[1] == heard.told()[3]


def test_another_connection_knows_it_too_and_a_cut_one_is_put_together() -> None:
    heard = Heard()
    peer = Peer(heard)
    data = post("/a", b"body")
    peer.send(data)
    for cut in range(1, len(data)):
        peer.transport = peer.another()
        peer.send(data[:cut])
        peer.send(data[cut:] + data[:cut])
        peer.send(data[cut:])
    assert heard.told() == heard.told()[:1] * (2 * len(data) - 1)


def test_what_is_known_and_what_is_not_are_answered_in_order() -> None:
    heard = Heard()
    peer = Peer(heard)
    peer.send(post("/a", b"1"))
    peer.send(post("/a", b"2") + post("/a", b"3") + get("/b") + post("/a", b"4") + post("/a", b"5")[:-1])
    peer.send(b"6" + post("/a", b"7"))
    assert [(told[1], told[-1]) for told in heard.told()] == [
        *(("/a", b"%d" % n) for n in (1, 2, 3)),
        ("/b", b""),
        *(("/a", b"%d" % n) for n in (4, 6, 7)),
    ]


@pytest.mark.parametrize(
    "data",
    [
        post("/a", b"x", "Authorization: Basic sesame"),
        post("/a", b"x", "Cookie: sesame"),
        post("/a?token=sesame", b"x"),
        post("/a?%74oken=sesame", b"x"),
        post("/a", b"x", "X-Long: " + "x" * HEAD_KEPT_MAX),
        post("/a", b"x", "Expect: 100-continue"),
        post("/a", b"x", "Content-Encoding: identity"),
        get("/a", "Transfer-Encoding: chunked", method="POST") + b"0\r\n\r\n",
        get("/a", "Connection: upgrade", "Upgrade: h3"),
        get("/a", "Connection: close"),
        get("/a", "Connection: keep-alive", version="1.0"),
        get("a:80", method="OPTIONS"),
        b"\r\n" + get("/a"),
        b"\r\n\r\nGET /a HTTP/1.1\r\n\r\n",
    ],
)
def test_secrets_and_all_that_is_unusual_are_not_kept(data: bytes) -> None:
    peer = Peer(Heard())
    peer.send(data)
    assert peer.received.startswith(b"HTTP/1.1 ")
    assert len(peer.serving.heads) == 0


@pytest.mark.parametrize("key", [(), ("Authorization: Bearer sesame",)])
def test_what_is_kept_is_bounded(key: tuple[str, ...]) -> None:
    peer = Peer(Heard())
    for n in range(3 * HEADS_KEPT_MAX // 2):
        peer.send(get(f"/{n}", *key))
    assert 0 < len(peer.serving.heads) <= HEADS_KEPT_MAX


def test_of_a_head_with_a_key_neither_is_kept_and_the_request_is_the_same() -> None:
    heard = Heard()
    peer = Peer(heard)
    for body in (b"one", b"two"):
        peer.send(post("/a?x=1", body, "X-A: b", "Authorization: Bearer open sesame", "X-B: c"))
    assert len(peer.serving.heads) == 1
    first, second = heard.requests
    assert second.key_digest == digest_of(b"open sesame")
    assert second.header(b"authorization") is None
    assert second.headers == [header for header in first.headers if header[0] != b"authorization"]
    assert (first.header(b"x-b"), first.body) == (second.header(b"x-b"), b"one") == (b"c", b"one")
    assert second.body == b"two"
    assert "sesame" not in repr(vars(peer.serving.heads))


@pytest.fixture
def keyed() -> Iterator[Peer]:
    rig = ServerRig(keys="sesame:rw,other:r")
    yield Peer(rig.app.handle)
    rig.close()


def test_every_key_is_looked_at_however_often_the_rest_was_seen(keyed: Peer) -> None:
    for key, status in (("sesame", 404), ("other", 404), ("nobody", 401), ("sesame", 404)) * 2:
        keyed.send(post("/v0/topics/a/diff", b"{}", "Content-Type: application/json", f"Authorization: Bearer {key}"))
        keyed.send(post("/v0/topics/a/diff", b"{}", "Content-Type: application/json"))
        found = [reply[0] for reply in keyed.replies()[-2:]]
        assert found == [status, 401]
