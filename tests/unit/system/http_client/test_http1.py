"""Requests as bytes, and responses from bytes: what is taken, what is refused, and when a connection may go on."""

import ssl
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.system.http_client.http1 import (
    BODY_BYTES_MAX,
    HEAD_BYTES_MAX,
    LARGE_BYTES_MIN,
    Endpoint,
    HttpError,
    Proxy,
    RequestHead,
    ResponseReader,
)
from driftq.system.http_client.request_body import Body

HEAD = RequestHead("here:4000", {"user-agent": "test"})


def read(*pieces: bytes, method: str = "GET") -> ResponseReader:
    reader = ResponseReader()
    reader.expect(method)
    for piece in pieces:
        reader.feed(piece)
    return reader


def test_a_request_is_its_head() -> None:
    assert HEAD.request("POST", "/v0/topics/a", {"x": "1 &"}, {"a": "b"}, b"body") == (
        b"POST /v0/topics/a?x=1%20%26 HTTP/1.1\r\n"
        b"host: here:4000\r\nuser-agent: test\r\na: b\r\ncontent-length: 4\r\n\r\n"
    )
    assert HEAD.request("GET", "/a b", {}, {}, None).startswith(b"GET /a%20b HTTP/1.1\r\n")
    assert HEAD.request("DELETE", "/a?b=c", {"d": "e"}, {}, None).startswith(b"DELETE /a?b=c&d=e HTTP/1.1\r\n")
    assert b"content-length: 0\r\n" in HEAD.request("PUT", "/a", {}, {}, None)


def test_a_body_in_pieces_says_how_it_ends() -> None:
    assert HEAD.request("POST", "/a", {}, {}, Body([])).endswith(
        b"user-agent: test\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    assert HEAD.request("POST", "/a", {}, {}, Body([], 7)).endswith(b"user-agent: test\r\ncontent-length: 7\r\n\r\n")


def test_heads_that_are_kept_are_not_mixed_up() -> None:
    made = [
        HEAD.request("GET", "/a", {"b": "c"}, {}, None),
        HEAD.request("GET", "/a", {}, {"b": "c"}, None),
        HEAD.request("GET", "/a", {}, {"b": "c"}, b"1"),
        HEAD.request("POST", "/a", {}, {"b": "c"}, None),
    ]
    assert len(set(made)) == len(made)
    for number in range(2000):
        HEAD.request("GET", f"/{number}", {}, {}, None)
    assert HEAD.request("GET", "/a", {"b": "c"}, {}, None) == made[0]


def test_a_tunnel_names_an_address_of_version_6_in_brackets() -> None:
    proxy = Proxy("proxy", 80, {})
    tls = ssl.create_default_context()
    assert (Endpoint("::1", 443, tls, proxy=proxy).tunnel() or b"").startswith(b"CONNECT [::1]:443 HTTP/1.1\r\n")
    assert (Endpoint("here", 443, tls, proxy=proxy).tunnel() or b"").startswith(b"CONNECT here:443 HTTP/1.1\r\n")


PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: a1\r\ncontent-length: %d\r\n\r\n"
TURNED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: a1\r\n\r\n"


@given(st.binary(max_size=60), st.integers(0, 60), st.binary(max_size=3), st.integers(1, 200))
def test_the_usual_head_is_read_as_the_parser_reads_it(body: bytes, length: int, surplus: bytes, cut: int) -> None:
    """In one piece an answer takes the short way, in two it goes to the parser."""
    for announced, head in product((len(body), length), (PLAIN, TURNED)):
        whole = head % announced + body + surplus
        seen = []
        for pieces in ([whole], [whole[:cut], whole[cut:]]):
            reader = read(*filter(None, pieces))
            seen.append((reader.status, reader.headers, reader.complete, reader.take(), reader.reusable))
        assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"a": "b\r\nevil: 1"}),
        ("PUT", {"Content-Length": "3"}),
        ("PUT", {"transfer-encoding": "chunked"}),
        ("GET", {"a b": "c"}),
        ("GET", {"a": "\x00"}),
        ("GE T", {}),
        ("", {}),
    ],
)
def test_what_would_change_the_request_is_refused(method: str, headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="HTTP"):
        HEAD.request(method, "/", {}, headers, None)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_response_is_read_whatever_its_pieces(step: int) -> None:
    whole = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\ntransfer-encoding: chunked\r\n\r\n"
        b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\ntrailer: t\r\n\r\n"
    )
    reader = read(*(whole[at : at + step] for at in range(0, len(whole), step)))
    assert (reader.status, reader.take(), reader.complete, reader.reusable) == (200, b"abcde", True, True)
    assert reader.headers == {"x-a": "1, 2", "transfer-encoding": "chunked"}
    reader.expect("GET")
    reader.feed(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert (reader.status, reader.take(), reader.complete, reader.reusable) == (204, b"", True, True)


def test_a_response_without_a_length_ends_with_its_connection() -> None:
    reader = read(b"HTTP/1.1 200 OK\r\n\r\nall ", b"of it")
    assert not reader.complete
    reader.end()
    assert (reader.take(), reader.complete, reader.reusable) == (b"all of it", True, False)


@pytest.mark.parametrize(
    "whole",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\naHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nb",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\na",
        b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\na",
    ],
    ids=["a second response", "a byte too many", "close", "an old version"],
)
def test_a_connection_does_not_go_on_after(whole: bytes) -> None:
    reader = read(whole)
    assert (reader.complete, reader.take(), reader.reusable) == (True, b"a", False)


def test_a_response_to_head_has_no_body() -> None:
    reader = read(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n", method="HEAD")
    assert (reader.complete, reader.take(), reader.reusable) == (True, b"", False)


@pytest.mark.parametrize(
    "whole",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * HEAD_BYTES_MAX,
    ],
    ids=[
        "not HTTP",
        "two lengths",
        "length and chunks",
        "a negative length",
        "a bad chunk",
        "an upgrade",
        "a long head",
    ],
)
def test_what_is_not_a_response_is_an_error(whole: bytes) -> None:
    with pytest.raises(HttpError) as failed:
        read(whole)
    assert failed.value.sent


@pytest.mark.parametrize(
    "whole",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n",
    ],
    ids=["nothing", "half a head", "an interim response", "half a body", "no last chunk"],
)
def test_a_response_that_ends_early_is_an_error(whole: bytes) -> None:
    reader = read(*([whole] if whole else []))
    with pytest.raises(HttpError, match="closed the connection"):
        reader.end()


LARGE = bytes(range(256)) * (LARGE_BYTES_MIN // 256) + b"end"


def filled(reader: ResponseReader, rest: bytes, step: int = 1 << 20) -> ResponseReader:
    """Put the rest of a large body where the reader wants it."""
    while rest:
        room = reader.room()
        assert room is not None
        size = min(step, len(room), len(rest))
        room[:size] = rest[:size]
        reader.received(size)
        rest = rest[size:]
    return reader


@pytest.mark.parametrize("step", [4097, 1 << 20, 1 << 30])
@pytest.mark.parametrize("first", [0, 1, 1000])
def test_a_large_body_is_received_where_it_stays(first: int, step: int) -> None:
    reader = read(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(LARGE) + LARGE[:first])
    filled(reader, LARGE[first:], step)
    assert (reader.status, reader.complete, reader.reusable, reader.room()) == (200, True, False, None)
    assert reader.take() == LARGE
    assert reader.reusable
    reader.expect("GET")
    reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n")
    assert reader.room() is None
    reader.feed(b"a")
    assert (reader.take(), reader.complete, reader.reusable) == (b"a", True, True)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nconnection: close\r\n", b"HTTP/1.0 200 OK\r\n"])
def test_a_connection_does_not_go_on_after_a_large_body_either(head: bytes) -> None:
    reader = filled(read(head + b"content-length: %d\r\n\r\n" % len(LARGE)), LARGE)
    assert (reader.take(), reader.complete, reader.reusable) == (LARGE, True, False)


@pytest.mark.parametrize("surplus", [b"x", b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nb"])
def test_what_comes_after_a_large_body_ends_the_connection(surplus: bytes) -> None:
    reader = filled(read(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(LARGE)), LARGE)
    reader.feed(surplus)
    assert (reader.take(), reader.complete, reader.reusable) == (LARGE, True, False)


@pytest.mark.parametrize("first", [b"", b"abc"])
def test_a_large_body_that_ends_early_is_an_error(first: bytes) -> None:
    reader = read(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(LARGE))
    filled(reader, first)
    with pytest.raises(HttpError, match="in the middle"):
        reader.end()
    assert not reader.reusable


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: %d\r\n" % (LARGE_BYTES_MIN - 1),
        b"content-length: %d\r\n" % (BODY_BYTES_MAX + 1),
        b"content-length: %d\r\n" % 10**15,
        b"transfer-encoding: chunked\r\n",
        b"",
    ],
    ids=["small", "too large", "absurd", "chunked", "unknown"],
)
def test_no_memory_is_set_aside_for_any_other_body(head: bytes) -> None:
    assert read(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n").room() is None
    assert read(b"HTTP/1.1 200 OK\r\n" + head).room() is None
