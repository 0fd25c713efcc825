"""Bodies in pieces: which bytes go out, when a length is wrong, and which bodies can go out again."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from driftq.system.http_client.request_body import Body


def once(*pieces: bytes) -> Iterator[bytes]:
    yield from pieces


async def once_async(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def gathered(body: Body) -> bytes:
    return b"".join([message async for message in body.sent_async()])


def test_a_body_without_a_length_goes_out_in_chunks() -> None:
    whole = b"3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n"
    pieces = (b"abc", b"", b"0123456789abcdef")
    assert b"".join(Body(list(pieces)).sent()) == whole
    assert asyncio.run(gathered(Body(once_async(*pieces)))) == whole
    assert asyncio.run(gathered(Body(pieces))) == whole
    assert b"".join(Body([]).sent()) == b"0\r\n\r\n"


def test_a_body_with_a_length_goes_out_as_it_is() -> None:
    assert b"".join(Body([b"abc", b"de"], 5).sent()) == b"abcde"
    assert b"".join(Body([], 0).sent()) == b""
    assert asyncio.run(gathered(Body(once_async(b"abc", b"de"), 5))) == b"abcde"


@pytest.mark.parametrize(("length", "sent"), [(4, b"abc"), (6, b"abcde")], ids=["too long", "too short"])
def test_a_wrong_length_is_an_error_and_never_too_many_bytes(length: int, sent: bytes) -> None:
    out: list[bytes] = []
    with pytest.raises(ValueError, match=f"length, {length}$|length is {length}$"):
        out.extend(Body([b"abc", b"de"], length).sent())
    assert b"".join(out) == sent
    with pytest.raises(ValueError, match=f"length, {length}$|length is {length}$"):
        asyncio.run(gathered(Body(once_async(b"abc", b"de"), length)))


def test_only_an_iterator_is_spent_and_only_when_a_piece_was_asked_for() -> None:
    for pieces in ([b"a"], (b"a",), {b"a": 1}):
        body = Body(pieces)
        assert list(body.sent()) == list(body.sent())
        assert not body.spent
    seen = []
    body = Body(once(b"a"))
    seen.append(body.spent)
    next(body.sent())
    seen.append(body.spent)
    waiting = Body(once_async(b"a"))
    seen.append(waiting.spent)
    asyncio.run(gathered(waiting))
    seen.append(waiting.spent)
    assert seen == [False, True, False, True]


@pytest.mark.parametrize("pieces", ["text", b"bytes", bytearray(b"bytes")])
def test_one_piece_is_not_pieces(pieces: bytes) -> None:
    with pytest.raises(TypeError, match="iterable of bytes"):
        Body(pieces)  # type: ignore[arg-type]


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        Body([], -1)
