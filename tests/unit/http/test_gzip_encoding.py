"""gzip both ways: what is packed, what is refused, and what a thread does."""

import gzip
import zlib

import pytest

from driftq.errors import DriftQError, InvalidRequestError
from driftq.http.gzip_encoding import INLINE_MAX, PACKED_MIN, packed, takes_gzip, unpacked
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.v0.bodies import check_size
from driftq.http.v0.errors import error_reply
from tests.unit.http.wire import BODY_BYTES_MAX, Peer, get

MIB = 1 << 20


def body_back(request: Request) -> Reply:
    """An app that answers with the body, after the checks of one."""
    try:
        check_size(request, BODY_BYTES_MAX if request.path == "/small" else 8 * MIB)
    except DriftQError as error:
        return error_reply(error)
    return Reply(200, request.body)


def post(body: bytes, *headers: str, path: str = "/small") -> bytes:
    return get(path, f"Content-Length: {len(body)}", *headers, method="POST") + body


# --- requests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", " GZIP "])
def test_a_packed_body_is_unpacked(coding: str) -> None:
    peer = Peer(body_back)
    peer.send(post(gzip.compress(b"plain"), f"Content-Encoding: {coding}") + post(b"too", "Content-Encoding: identity"))
    assert [body for _, _, body in peer.replies()] == [b"plain", b"too"]


def test_a_body_counts_with_its_unpacked_size() -> None:
    peer = Peer(body_back)
    for size, status in ((BODY_BYTES_MAX, 200), (BODY_BYTES_MAX + 1, 413), (MIB, 413)):
        peer.send(post(gzip.compress(b"x" * size)[:], "Content-Encoding: gzip"))
        assert peer.replies()[-1][0] == status
        peer = Peer(body_back) if status == 413 else peer


def test_a_body_that_is_no_gzip_is_400_and_another_coding_is_415() -> None:
    peer = Peer(body_back)
    whole = gzip.compress(b"plain")
    for wrong in (b"plain", whole[:-1], whole[:5], whole[:-8] + bytes(8), whole + b"behind"):
        peer.send(post(wrong, "Content-Encoding: gzip"))
        assert peer.replies()[-1][0] == 400
    peer.send(post(b"x", "Content-Encoding: br"))
    assert peer.replies()[-1][0] == 415
    peer.send(post(b"x"))
    assert peer.replies()[-1][0] == 200


def test_what_is_wrong_with_a_body_is_told_by_who_wants_it() -> None:
    peer = Peer(lambda request: Reply(404))
    peer.send(post(b"x", "Content-Encoding: br") + post(b"x", "Content-Encoding: gzip"))
    assert [status for status, _, _ in peer.replies()] == [404, 404]


def test_several_members_are_one_body() -> None:
    assert unpacked(gzip.compress(b"a") + gzip.compress(b"b"), 2) == b"ab"
    assert unpacked(gzip.compress(b"a") + gzip.compress(b"b"), 1) is None
    assert unpacked(b"", 1) == b""
    with pytest.raises(InvalidRequestError):
        unpacked(zlib.compress(b"a"), 10)


def test_a_large_body_is_unpacked_by_a_thread_and_what_is_behind_it_waits() -> None:
    peer = Peer(body_back, body_bytes_max=8 * MIB)
    large = b"x" * (INLINE_MAX + 1)
    peer.connection.data_received(post(gzip.compress(large), "Content-Encoding: gzip", path="/a") + post(b"b"))
    assert not peer.received
    peer.turn()
    assert [body for _, _, body in peer.replies()] == [large, b"b"]


def test_a_peer_that_goes_while_its_body_is_unpacked_asked_for_nothing() -> None:
    asked: list[Request] = []

    def note(request: Request) -> Reply:
        asked.append(request)
        return Reply(200)

    peer = Peer(note, body_bytes_max=8 * MIB)
    peer.connection.data_received(post(gzip.compress(b"x" * (INLINE_MAX + 1)), "Content-Encoding: gzip"))
    peer.lose()
    assert asked == []


# --- replies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "takes"),
    [
        (b"gzip", True),
        (b"deflate, gzip", True),
        (b"GZIP;q=0.5, br", True),
        (b"x-gzip", True),
        (b"gzip;q=0", False),
        (b"gzip; q=0.000", False),
        (b"br", False),
        (b"*", False),
        (b"", False),
        (b"notgzip", False),
    ],
)
def test_gzip_is_taken_where_it_is_listed(value: bytes, takes: bool) -> None:
    assert takes_gzip([(b"accept-encoding", value)]) is takes
    assert not takes_gzip([(b"accept", value)])


def answered(reply: Reply, *headers: str, method: str = "GET") -> tuple[dict[bytes, bytes], bytes]:
    peer = Peer(lambda _: reply)
    peer.send(get("/a", *headers, method=method))
    [(_, found, body)] = peer.replies()
    return found, body


def test_a_reply_that_is_worth_it_is_packed_for_who_takes_it() -> None:
    plain = b"word " * 1000
    headers, body = answered(Reply(200, plain), "Accept-Encoding: gzip")
    assert (headers[b"content-encoding"], headers[b"vary"]) == (b"gzip", b"accept-encoding")
    assert gzip.decompress(body) == plain
    assert answered(Reply(200, plain))[1] == plain
    assert answered(Reply(200, b"x" * (PACKED_MIN - 1)), "Accept-Encoding: gzip")[1] == b"x" * (PACKED_MIN - 1)
    assert answered(Reply(200, plain, b"application/octet-stream"), "Accept-Encoding: gzip")[1] == plain


def test_a_large_reply_is_packed_by_a_thread() -> None:
    plain = [b"%d" % number * 1000 for number in range(1000)]
    peer = Peer(lambda _: Reply(200, b"[", more=plain))
    peer.connection.data_received(get("/a", "Accept-Encoding: gzip"))
    assert not peer.received
    peer.turn()
    [(_, _, body)] = peer.replies()
    assert gzip.decompress(body) == b"[" + b"".join(plain)


def test_a_packed_reply_keeps_its_head() -> None:
    found = packed(Reply(201, b"x" * 2000, b"text/plain", ((b"a", b"b"),)))
    assert (found.status, found.content_type, found.headers[0]) == (201, b"text/plain", (b"a", b"b"))
