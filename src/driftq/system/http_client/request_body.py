"""Request bodies that are sent piece by piece, without I/O: which bytes to send, and whether they can be sent again.

A body has a known length, or is sent in chunks. The pieces of an iterator can be read once; those of any other
iterable, such as a list or an object with an `__iter__` that opens a file, once for each try.

Invariants
- `spent` is true as soon as a piece was read that cannot be read again. Such a request is not sent a second time.
- With a length, exactly that many bytes are sent, or the request ends with a ValueError: never more, and never a
  shorter body that a server would consider complete.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator

_LAST_CHUNK = b"0\r\n\r\n"


class Body:
    """The body of a request, from an iterable of bytes; an AsyncClient accepts asynchronous ones too.

    `length` is the number of all bytes, if it is known.
    """

    def __init__(self, pieces: Iterable[bytes] | AsyncIterable[bytes], length: int | None = None) -> None:
        if isinstance(pieces, str | bytes | bytearray | memoryview):
            raise TypeError(f"a body in pieces must be an iterable of bytes, not {type(pieces).__name__}")
        if length is not None and length < 0:
            raise ValueError("the length of a body must be at least 0")
        self._pieces = pieces
        self.length = length
        self.spent = False
        """Whether a piece was read that cannot be read again."""

    def sent(self) -> Iterator[bytes]:
        """Yield the bytes to send, from the beginning. Raises ValueError for a wrong length."""
        if not isinstance(self._pieces, Iterable):
            raise TypeError("only an AsyncClient can send an asynchronous body")
        pieces = iter(self._pieces)
        self.spent = pieces is self._pieces
        framing = _Framing(self.length)
        for piece in pieces:
            if piece:
                yield framing.piece(piece)
        if last := framing.last():
            yield last

    async def sent_async(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes to send, from the beginning. Raises ValueError for a wrong length."""
        if isinstance(self._pieces, Iterable):
            for message in self.sent():
                yield message
            return
        pieces = aiter(self._pieces)
        self.spent = pieces is self._pieces
        framing = _Framing(self.length)
        async for piece in pieces:
            if piece:
                yield framing.piece(piece)
        if last := framing.last():
            yield last


class _Framing:
    """Turns the pieces of one body into the bytes on the connection."""

    def __init__(self, length: int | None) -> None:
        self._length = length
        self._size = 0

    def piece(self, piece: bytes) -> bytes:
        """Return the bytes that carry a piece. Raises ValueError if it exceeds the length."""
        self._size += len(piece)
        if self._length is None:
            return b"%x\r\n%b\r\n" % (len(piece), piece)
        if self._size > self._length:
            raise ValueError(f"the body has more bytes than its length, {self._length}")
        return piece

    def last(self) -> bytes:
        """Return the bytes after the last piece. Raises ValueError if some are missing."""
        if self._length is None:
            return _LAST_CHUNK
        if self._size != self._length:
            raise ValueError(f"the body has {self._size} bytes, but its length is {self._length}")
        return b""
